package main

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// setEnvironment sets environment variables for the tests.
//
// Unless TMPDIR is set, temporary directories of tests are in memory. On a disk, tests with checkpoints or etcd would spend most of
// their time in fsync. Killed processes lose no data in memory files. The build directory of go stays on the disk.
//
// Unless GORACE is set, programs with the race detector end immediately. By default, each waits a second.
//
// The function end removes the files that setEnvironment wrote.
func setEnvironment(memory string) (end func(), err error) {
	env, end := map[string]string{"GORACE": cmp.Or(os.Getenv("GORACE"), "atexit_sleep_ms=0")}, func() {}
	if os.Getenv("TMPDIR") == "" && isRoomy(memory) {
		env["TMPDIR"] = memory
		if env["GOENV"], end, err = goEnvironment(cmp.Or(os.Getenv("GOTMPDIR"), os.TempDir())); err != nil {
			return nil, err
		}
		if err := os.Unsetenv("GOTMPDIR"); err != nil {
			return end, err
		}
	}
	for name, value := range env {
		if err := os.Setenv(name, value); err != nil {
			return end, err
		}
	}
	return end, nil
}

// goEnvironment writes a configuration file of the go command: the user's file, with the build directory. In the environment,
// GOTMPDIR would also be the parent of the directories of T.TempDir.
func goEnvironment(builds string) (file string, end func(), err error) {
	own, err := exec.Command("go", "env", "GOENV").Output()
	if err != nil {
		return "", nil, fmt.Errorf("go env GOENV: %w", err)
	}
	var text []byte
	if path := strings.TrimSpace(string(own)); path != "off" {
		if text, err = os.ReadFile(path); err != nil && !os.IsNotExist(err) {
			return "", nil, err
		}
	}
	dir, err := os.MkdirTemp(builds, "testreport")
	if err != nil {
		return "", nil, err
	}
	end = func() { os.RemoveAll(dir) } //nolint:errcheck // a small file in a directory of temporary files
	file = filepath.Join(dir, "env")
	return file, end, os.WriteFile(file, fmt.Appendf(text, "\nGOTMPDIR=%s\n", builds), 0o600)
}
