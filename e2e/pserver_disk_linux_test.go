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

// F51: the disk is full. No set is written, the status reports that, the previous set remains complete, and training
// continues. New sets follow when the disk has space again.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	smallDisk(t, j.checkpoints(), "16m")
	j.master("--passes", "100000", "--ps", "2", "--checkpoint-keep", "1000") // pruning removes no set
	for range 2 {
		j.server()
	}
	j.trainer("a")
	kept, _ := j.awaitSet(2, 0)

	ballast := filepath.Join(j.checkpoints(), "ballast")
	full := j.awaitStatus("a checkpoint fails", func(s *pb.StatusReply) bool {
		fill(t, ballast) // the removal of an unfinished set frees space
		return strings.Contains(s.Checkpoint.GetFailure(), "no space left")
	})
	j.awaitStatus("training continues on the full disk", func(s *pb.StatusReply) bool {
		fill(t, ballast)
		return s.Totals.GetCommits() > full.Totals.GetCommits()+10 && s.Checkpoint.GetFailure() != ""
	})
	run(t, j.dir, "model", "export", j.setArg(kept.Number), "--file", filepath.Join(t.TempDir(), "kept.safetensors")).wants(t, 0)
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	j.awaitStatus("checkpoints succeed again", func(s *pb.StatusReply) bool {
		return s.Checkpoint.GetFailure() == "" && s.Checkpoint.GetSet() > full.Checkpoint.GetSet()
	})
}

// fill appends to a file until its disk is full.
func fill(t testing.TB, path string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // the last write has failed
	for piece := make([]byte, 4096); err == nil; {
		_, err = file.Write(piece)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("fill the disk: expected ENOSPC, found %v", err)
	}
}

// smallDisk creates a directory and mounts a file system of the given size on it.
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
