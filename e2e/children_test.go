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

// child is a process that a `master run` started.
type child struct {
	pid  int
	args []string
}

// kind is what the child is: master, pserver, or the id of a trainer.
func (c child) kind() string {
	switch {
	case slices.Contains(c.args, "pserver"):
		return "pserver"
	case slices.Contains(c.args, "trainer"):
		return c.args[slices.Index(c.args, "--id")+1]
	}
	return "master"
}

// children are the processes that a process started and that still run, by process number.
func children(t testing.TB, parent int) (list []child) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(stats) == 0 {
		t.Skip("needs /proc, which lists the processes that a process started")
	}
	for _, path := range stats {
		pid, of, state := readStat(path)
		if of != parent || state == "Z" {
			continue
		}
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || len(line) == 0 {
			continue // it ended meanwhile
		}
		list = append(list, child{pid, strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")})
	}
	slices.SortFunc(list, func(a, b child) int { return a.pid - b.pid })
	return list
}

// readStat reads a /proc/PID/stat; zeroes when the process has ended.
func readStat(path string) (pid, parent int, state string) {
	stat, err := os.ReadFile(path)
	end := bytes.LastIndexByte(stat, ')') // the name before it may have anything in it
	if err != nil || end < 0 {
		return 0, 0, ""
	}
	fields := strings.Fields(string(stat[end+1:]))
	pid, _ = strconv.Atoi(filepath.Base(filepath.Dir(path)))
	parent, _ = strconv.Atoi(fields[1])
	return pid, parent, fields[0]
}

// ended reports whether a process is gone.
func (c child) ended() bool {
	pid, _, state := readStat(fmt.Sprintf("/proc/%d/stat", c.pid))
	return pid == 0 || state == "Z"
}
