package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	pb "trainmaster/proto/trainmaster/v1"
)

// F51: the disk is full. No set is written, which status says, the one before it stays whole, and training goes on; with room
// again there are new ones.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	smallDisk(t, j.checkpoints(), "16m")
	j.master("--passes", "100000", "--ps", "2", "--checkpoint-keep", "1000") // none goes, but by a mistake
	for range 2 {
		j.server()
	}
	j.trainer("a")
	kept, _ := j.awaitSet(2, 0)

	ballast := filepath.Join(j.checkpoints(), "ballast")
	full := j.awaitStatus("a checkpoint fails", func(s *pb.StatusReply) bool {
		fill(t, ballast) // what was not finished is removed, and makes room
		return strings.Contains(s.Checkpoint.GetFailure(), "no space left")
	})
	j.awaitStatus("training goes on without room", func(s *pb.StatusReply) bool {
		fill(t, ballast)
		return s.Totals.GetCommits() > full.Totals.GetCommits()+10 && s.Checkpoint.GetFailure() != ""
	})
	run(t, j.dir, "model", "export", j.setArg(kept.Number), "--file", filepath.Join(t.TempDir(), "kept.safetensors")).wants(t, 0)
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	j.awaitStatus("there is room again", func(s *pb.StatusReply) bool {
		return s.Checkpoint.GetFailure() == "" && s.Checkpoint.GetSet() > full.Checkpoint.GetSet()
	})
}

// fill lets a file grow until its disk is full.
func fill(t testing.TB, path string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // it could not be written to the end anyway
	for piece := make([]byte, 4096); err == nil; {
		_, err = file.Write(piece)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("fill the disk: %v, expected it to get full", err)
	}
}

// smallDisk mounts a file system of a size on a folder that it makes.
func smallDisk(t *testing.T, dir, size string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		missing := "a small file system is missing: mounting one needs root: " + err.Error()
		if os.Getenv("REQUIRE") == "all" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
}
