package main

// Where the system has no certificates of authorities, as in the image, those of Mozilla verify the servers of object stores.
import _ "golang.org/x/crypto/x509roots/fallback"
