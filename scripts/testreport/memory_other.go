//go:build !linux

package main

func isRoomy(string) bool { return false }
