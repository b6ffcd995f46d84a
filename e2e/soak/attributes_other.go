//go:build !linux

package main

import "syscall"

// childAttributes gives a child a process group of its own, so that Ctrl-C is for this program alone.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
