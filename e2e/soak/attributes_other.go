//go:build !linux

package main

import "syscall"

// childAttributes returns attributes for a child with its own process group, so that Ctrl-C reaches only this program.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
