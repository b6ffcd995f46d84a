package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestInstallCopiesThisProgram(t *testing.T) {
	dir := t.TempDir()
	for range 2 { // the second time, it replaces the file
		var out, errs bytes.Buffer
		if code := run(t.Context(), []string{"install", dir}, &out, &errs); code != 0 || strings.TrimSpace(out.String()) != filepath.Join(dir, "master") {
			t.Fatalf("exit code %d: %s%s", code, out.String(), errs.String())
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	found, err := os.ReadFile(filepath.Join(dir, "master"))
	if err != nil || !bytes.Equal(found, want) {
		t.Errorf("expected the bytes of this program, found %d bytes, %v", len(found), err)
	}
	if info, err := os.Stat(filepath.Join(dir, "master")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("expected the mode 0755, found %v, %v", info.Mode(), err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("expected one file, found %v, %v", left, err)
	}
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"install", filepath.Join(dir, "absent")}, &out, &errs); code != 1 || !strings.Contains(errs.String(), "absent") {
		t.Errorf("an absent directory: exit code %d: %s", code, errs.String())
	}
}
