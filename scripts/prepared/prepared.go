// Package prepared finds the programs that `make setup` installs in the cache for tests: a Python interpreter with the
// packages of scripts/requirements.txt, and an S3 server. scripts/cache.sh decides where they are.
package prepared

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// File returns the path of a file in an entry of the cache. If `make setup` has not built the entry, File skips the test, or
// fails it if REQUIRE is "all".
func File(t testing.TB, entry string, elem ...string) string {
	t.Helper()
	root, err := root()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(root, "scripts", "cache.sh"), entry).Output()
	path := filepath.Join(append([]string{string(out[:max(len(out)-1, 0)])}, elem...)...)
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		missing := fmt.Sprintf("%s: expected it in the cache: %v: run `make setup`", entry, err)
		if os.Getenv("REQUIRE") == "all" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	return path
}

// Python returns the path of a Python interpreter that can import the packages of scripts/requirements.txt.
func Python(t testing.TB) string {
	t.Helper()
	return File(t, "python", "bin", "python3")
}

// Torch returns the path of a Python interpreter that can import PyTorch.
func Torch(t testing.TB) string {
	t.Helper()
	for _, name := range []string{"/usr/bin/python3", "python3"} { // the package of Debian is for the first
		path, err := exec.LookPath(name)
		if err == nil && exec.CommandContext(t.Context(), path, "-c", "import torch.distributed").Run() == nil {
			return path
		}
	}
	missing := "torch: expected PyTorch for python3: run `make setup`, or install python3-torch"
	if os.Getenv("REQUIRE") == "all" {
		t.Fatal(missing)
	}
	t.Skip(missing)
	return ""
}

// root returns the directory of go.mod above the working directory.
func root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
	}
	return "", errors.New("no go.mod above the working directory")
}
