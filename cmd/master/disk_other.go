//go:build !(linux || darwin || freebsd)

package main

import "errors"

// freeBytes is not known on this platform.
func freeBytes(string) (uint64, error) { return 0, errors.ErrUnsupported }
