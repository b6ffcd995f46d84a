package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// child is a child process of `master run`.
type child struct {
	pid  int
	args []string
}

// kind returns master, pserver, or the id of a trainer.
func (c child) kind() string {
	switch {
	case slices.Contains(c.args, "pserver"):
		return "pserver"
	case slices.Contains(c.args, "trainer"):
		return c.args[slices.Index(c.args, "--id")+1]
	}
	return "master"
}

// children returns the running child processes, in the order of their ids.
func children(t testing.TB, parent int) (list []child) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(stats) == 0 {
		t.Skip("needs /proc to list child processes")
	}
	for _, path := range stats {
		pid, of, state := readStat(path)
		if of != parent || state == "Z" {
			continue
		}
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || len(line) == 0 {
			continue // the process has ended
		}
		list = append(list, child{pid, strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")})
	}
	slices.SortFunc(list, func(a, b child) int { return a.pid - b.pid })
	return list
}

// readStat reads a /proc/PID/stat. It returns zero values if the process has ended.
func readStat(path string) (pid, parent int, state string) {
	stat, err := os.ReadFile(path)
	end := bytes.LastIndexByte(stat, ')') // the name may contain any character
	if err != nil || end < 0 {
		return 0, 0, ""
	}
	fields := strings.Fields(string(stat[end+1:]))
	pid, _ = strconv.Atoi(filepath.Base(filepath.Dir(path)))
	parent, _ = strconv.Atoi(fields[1])
	return pid, parent, fields[0]
}

// ended reports whether the process has ended.
func (c child) ended() bool {
	pid, _, state := readStat(fmt.Sprintf("/proc/%d/stat", c.pid))
	return pid == 0 || state == "Z"
}
