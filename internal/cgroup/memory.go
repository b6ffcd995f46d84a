// Package cgroup reads the memory of the container in which this process runs.
//
// Only limits of the container itself count: on a machine without a limit there is nothing to read.
package cgroup

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Root is the directory of cgroups in a container.
const Root = "/sys/fs/cgroup"

// Memory is the memory of a container in bytes.
type Memory struct {
	// Used is the working set: the kernel can drop inactive pages of files before it ends a process.
	Used  uint64
	Limit uint64
}

// unlimited is less than the limit of version 1 that stands for none, and more than any machine has.
const unlimited = 1 << 60

// ReadMemory returns the memory of the container whose cgroups, of version 2 or 1, are below root. ok is false if it has no limit.
func ReadMemory(root string) (m Memory, ok bool) {
	for _, v := range []struct{ dir, used, limit, inactive string }{
		{root, "memory.current", "memory.max", "inactive_file"},
		{filepath.Join(root, "memory"), "memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file"},
	} {
		limit, err := readNumber(filepath.Join(v.dir, v.limit))
		if err != nil || limit >= unlimited {
			continue
		}
		used, err := readNumber(filepath.Join(v.dir, v.used))
		if err != nil {
			continue
		}
		return Memory{Used: used - min(used, readField(filepath.Join(v.dir, "memory.stat"), v.inactive)), Limit: limit}, true
	}
	return Memory{}, false
}

func readNumber(path string) (uint64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(string(bytes.TrimSpace(text)), 10, 64)
}

// readField returns a field of a file with a name and a number in each line; 0: there is none.
func readField(path, name string) uint64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if key, value, _ := strings.Cut(lines.Text(), " "); key == name {
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				return 0
			}
			return n
		}
	}
	return 0
}
