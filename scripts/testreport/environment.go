package main

import (
	"cmp"
	"os"
)

// setEnvironment changes that of the tests.
//
// Their temporary folders are in memory, unless TMPDIR names others: of a test that writes checkpoints or runs an etcd, fsync would be
// most of the time, and what it kills are processes, which lose nothing that they wrote. Where go builds stays as it is.
//
// A program with the race detector waits a second before it exits, for what other threads have to say, unless GORACE says otherwise;
// so do the many that tests start.
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
