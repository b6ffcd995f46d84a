package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// roomy is what must be free: each etcd of a test takes 128 MiB for its log.
const roomy = 8 << 30

// isRoomy says whether a folder is in memory and does for the tests: they run programs in it, and their S3 server keeps
// attributes of files.
func isRoomy(folder string) bool {
	var s unix.Statfs_t
	if unix.Statfs(folder, &s) != nil || s.Type != unix.TMPFS_MAGIC || s.Flags&unix.ST_NOEXEC != 0 || s.Bavail*uint64(s.Bsize) < roomy {
		return false
	}
	file, err := os.CreateTemp(folder, "attributes-")
	if err != nil {
		return false
	}
	defer os.Remove(file.Name())
	defer file.Close()
	return unix.Fsetxattr(int(file.Fd()), "user.test", []byte("1"), 0) == nil
}
