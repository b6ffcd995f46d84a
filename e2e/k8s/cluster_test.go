//go:build k8s

package k8s

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A second cluster runs at the same time. Its owner is a process.
func TestClusterEndsWithItsOwner(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	dir, err := newDirectory()
	if err != nil {
		t.Fatal(err)
	}
	owner := exec.Command("sleep", "1h")
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	s := supervisor{root: c.root, dir: dir}
	t.Cleanup(func() {
		if err := s.remove(); err != nil {
			t.Error(err)
		}
		owner.Process.Kill()
	})
	environment := []string{runVariable + "=" + dir, fmt.Sprintf("K8S_OWNER=%d", owner.Process.Pid)}
	if _, err := c.run("", "env", append(environment, filepath.Join(c.root, "scripts", "k8s", "start.sh"), "control", "node")...); err != nil {
		t.Fatal(err)
	}
	if left := traces(t, dir); len(left) < 6 {
		t.Errorf("traces of a running cluster: expected processes, a mount, cgroups and a directory, found %v", left)
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if state, err := owner.Process.Wait(); err != nil || state.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatal(state, err)
	}
	Until(t, 3*time.Minute, func() error {
		if left := traces(t, dir); len(left) > 0 {
			return fmt.Errorf("cluster without its owner: expected no trace, found %v", left)
		}
		return nil
	})
}

// traces lists what a cluster has on this machine: its directory, processes, mounts and cgroups.
func traces(t *testing.T, dir string) (found []string) {
	t.Helper()
	if _, err := os.Stat(dir); err == nil {
		found = append(found, dir)
	}
	processes, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range processes {
		text, err := os.ReadFile(file)
		if err == nil && bytes.Contains(text, []byte("TRAINMASTER_K8S="+dir+"\x00")) {
			found = append(found, file)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir) {
			found = append(found, line)
		}
	}
	for _, pattern := range []string{"/sys/fs/cgroup/*/", "/sys/fs/cgroup/"} {
		cgroups, err := filepath.Glob(pattern + filepath.Base(dir))
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, cgroups...)
	}
	return found
}
