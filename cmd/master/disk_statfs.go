//go:build linux || darwin || freebsd

package main

import "syscall"

// freeBytes returns the space that this user has on the disk of a directory.
func freeBytes(dir string) (uint64, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return s.Bavail * uint64(s.Bsize), nil //nolint:gosec // a size is not negative
}
