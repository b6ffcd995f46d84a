package parts_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"trainmaster/internal/objectstore/s3test"
	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/checkpoint/storage"
	"trainmaster/trainer/parts"
)

func open(t *testing.T, where string) *parts.Store {
	t.Helper()
	s, err := parts.Open(where)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// read returns the content of a part.
func read(t *testing.T, where, name string) []byte {
	t.Helper()
	place, err := storage.Open(where)
	if err != nil {
		t.Fatal(err)
	}
	defer place.Close()
	f, err := place.Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	content := make([]byte, f.Size())
	if _, err := f.ReadAt(content, 0); err != nil {
		t.Fatal(err)
	}
	return content
}

// F243, F244: several writers of one part leave the part of the first writer, whole, and all of them succeed.
func TestPartIsCreatedOnce(t *testing.T) {
	for name, where := range map[string]func(t *testing.T) string{
		"directory": func(t *testing.T) string { return filepath.Join(t.TempDir(), "made", "out") },
		"s3":        func(t *testing.T) string { return s3test.Start(t).URL("job/out") },
	} {
		t.Run(name, func(t *testing.T) {
			at := where(t)
			a, b := open(t, at), open(t, at)
			if err := errors.Join(a.Write(t.Context(), "part-1", []byte("first")), b.Write(t.Context(), "part-1", []byte("second"))); err != nil {
				t.Fatal(err)
			}
			if got := read(t, at, "part-1"); string(got) != "first" {
				t.Errorf("found %q, expected the part of the first writer", got)
			}
			var group sync.WaitGroup
			for i := range 8 {
				group.Go(func() {
					if err := a.Write(t.Context(), "part-2", bytes.Repeat([]byte{byte('a' + i)}, 100_000)); err != nil {
						t.Error(err)
					}
				})
			}
			group.Wait()
			if got := read(t, at, "part-2"); len(got) != 100_000 || !bytes.Equal(got, bytes.Repeat(got[:1], len(got))) {
				t.Errorf("found %d bytes, expected the 100,000 of one writer", len(got))
			}
			if err := errors.Join(a.Claim(t.Context(), "01"), b.Claim(t.Context(), "01")); err != nil {
				t.Error(err)
			}
			if err := b.Claim(t.Context(), "02"); !errors.Is(err, parts.ErrOtherJob) || !strings.Contains(err.Error(), "choose an empty directory") {
				t.Errorf("another job: got %v", err)
			}
			if name == "directory" {
				list, err := checkpoint.Disk(at).List(t.Context(), "")
				if fmt.Sprint(list) != "[JOB part-1 part-2]" || err != nil {
					t.Errorf("found %q, %v, expected no temporary file", list, err)
				}
			}
		})
	}
}

func TestDirectoryThatCannotBeWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := parts.Open(filepath.Join(file, "out")); err == nil || !strings.Contains(err.Error(), "expected a directory that can be written") {
		t.Errorf("got %v", err)
	}
}
