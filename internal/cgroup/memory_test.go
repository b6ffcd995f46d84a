package cgroup_test

import (
	"os"
	"path/filepath"
	"testing"

	"trainmaster/internal/cgroup"
)

func TestReadMemory(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  cgroup.Memory
		ok    bool
	}{
		"version 2": {map[string]string{
			"memory.current": "1000\n", "memory.max": "4096\n", "memory.stat": "anon 600\ninactive_file 300\nactive_file 100\n",
		}, cgroup.Memory{Used: 700, Limit: 4096}, true},
		"version 2 without a limit": {map[string]string{"memory.current": "1000\n", "memory.max": "max\n"}, cgroup.Memory{}, false},
		"version 1": {map[string]string{
			"memory/memory.usage_in_bytes": "1000\n", "memory/memory.limit_in_bytes": "4096\n", "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 200\n",
		}, cgroup.Memory{Used: 800, Limit: 4096}, true},
		"version 1 without a limit": {map[string]string{
			"memory/memory.usage_in_bytes": "1000\n", "memory/memory.limit_in_bytes": "9223372036854771712\n",
		}, cgroup.Memory{}, false},
		"fewer pages than inactive ones": {map[string]string{"memory.current": "100", "memory.max": "4096", "memory.stat": "inactive_file 300"}, cgroup.Memory{Limit: 4096}, true},
		"no cgroups":                     {nil, cgroup.Memory{}, false},
	} {
		root := t.TempDir()
		for file, text := range c.files {
			path := filepath.Join(root, file)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got, ok := cgroup.ReadMemory(root); ok != c.ok || got != c.want {
			t.Errorf("%s: expected %+v, %v, found %+v, %v", name, c.want, c.ok, got, ok)
		}
	}
}
