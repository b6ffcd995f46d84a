package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// roomy is the required free space: each etcd of a test takes 128 MiB for its log.
const roomy = 8 << 30

// isRoomy reports whether a directory is in memory and has enough space. It must allow execution, and attributes of files for
// the S3 server of the tests.
func isRoomy(dir string) bool {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil || s.Type != unix.TMPFS_MAGIC || s.Flags&unix.ST_NOEXEC != 0 || s.Bavail*uint64(s.Bsize) < roomy {
		return false
	}
	file, err := os.CreateTemp(dir, "attributes-")
	if err != nil {
		return false
	}
	defer os.Remove(file.Name())
	defer file.Close()
	return unix.Fsetxattr(int(file.Fd()), "user.test", []byte("1"), 0) == nil
}
