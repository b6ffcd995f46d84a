package main

// If the system has no certificates of authorities, as in the image, certificates in the program verify the servers of object stores.
import _ "golang.org/x/crypto/x509roots/fallback"
