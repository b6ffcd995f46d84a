package parts_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"trainmaster/pserver/checkpoint"
	"trainmaster/trainer/parts"
)

const (
	writerDir = "PARTS_TEST_DIR" // directory of the writer process
	partSize  = 16 << 20
)

// content returns the content of a part, which names it on each line.
func content(name string) []byte {
	return bytes.Repeat([]byte(name+"\n"), partSize/(len(name)+1))
}

func TestMain(m *testing.M) {
	if dir := os.Getenv(writerDir); dir != "" {
		if err := writeParts(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// writeParts writes parts until the process is killed.
func writeParts(dir string) error {
	s, err := parts.Open(dir)
	for i := 0; err == nil; i++ {
		name := fmt.Sprintf("part-%08d", i)
		err = s.Write(context.Background(), name, content(name))
	}
	return err
}

// F243: a process that is killed while it writes a part leaves the part whole or absent, and another process writes it.
func TestKilledWriterLeavesNoDamagedPart(t *testing.T) {
	cut := 0
	for range 5 {
		dir := filepath.Join(t.TempDir(), "out")
		writer := exec.Command(os.Args[0])
		writer.Env = append(os.Environ(), writerDir+"="+dir)
		writer.Stderr = os.Stderr
		if err := writer.Start(); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(time.Minute); !growing(dir); {
			if time.Now().After(deadline) {
				t.Fatal("the writer writes no part")
			}
		}
		if err := writer.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		writer.Wait() //nolint:errcheck // it was killed
		names, err := checkpoint.Disk(dir).List(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		next := 0
		for _, name := range names {
			if strings.HasPrefix(name, ".") {
				cut++
				continue
			}
			next++
			if got := read(t, dir, name); !bytes.Equal(got, content(name)) {
				t.Fatalf("%s: found %d bytes, expected the %d of a whole part", name, len(got), len(content(name)))
			}
		}
		name := fmt.Sprintf("part-%08d", next)
		if err := open(t, dir).Write(t.Context(), name, content(name)); err != nil {
			t.Fatal(err)
		}
		if got := read(t, dir, name); !bytes.Equal(got, content(name)) {
			t.Fatalf("%s: found %d bytes after a second write", name, len(got))
		}
	}
	t.Logf("%d of 5 writers were killed in the middle of a part", cut)
}

// growing reports whether a file of the directory is not whole.
func growing(dir string) bool {
	files, _ := os.ReadDir(dir) // the writer creates it
	for _, f := range files {
		if info, err := f.Info(); err == nil && info.Size() > 0 && info.Size() < partSize*9/10 {
			return true
		}
	}
	return false
}
