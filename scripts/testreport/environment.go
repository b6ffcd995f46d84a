package main

import (
	"cmp"
	"os"
)

// setEnvironment sets environment variables for the tests.
//
// Unless TMPDIR is set, temporary directories of tests are in memory. On a disk, tests with checkpoints or etcd would spend most of
// their time in fsync. Killed processes lose no data in memory files. The build directory of go stays on the disk.
//
// Unless GORACE is set, programs with the race detector end immediately. By default, each waits a second.
func setEnvironment(memory string) error {
	env := map[string]string{"GORACE": cmp.Or(os.Getenv("GORACE"), "atexit_sleep_ms=0")}
	if os.Getenv("TMPDIR") == "" && isRoomy(memory) {
		env["TMPDIR"], env["GOTMPDIR"] = memory, cmp.Or(os.Getenv("GOTMPDIR"), os.TempDir())
	}
	for name, value := range env {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	return nil
}
