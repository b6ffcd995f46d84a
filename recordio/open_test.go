package recordio_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"trainmaster/recordio"
)

func TestOpenErrorNamesFileType(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("gone/target", link); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		link:                      link + ": expected a file, found a symbolic link to gone/target, which does not exist",
		filepath.Join(file, "in"): filepath.Join(file, "in") + ": expected " + file + " to be a directory, found a file",
		dir:                       dir + ": not a regular file but a directory",
	} {
		_, err := recordio.Open(path)
		if err == nil || !strings.HasPrefix(err.Error(), want) || path == link && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("open %s gave %v, want %q", path, err, want)
		}
	}
	if _, err := recordio.Open(filepath.Join(dir, "two\nlines")); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a missing file gave %v", err)
	}
	odd := filepath.Join(dir, "a\nb")
	if err := os.WriteFile(odd, []byte("no records, 20 bytes or more"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := recordio.Open(odd)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Index(); err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("a file with a line feed in its name gave %v", err)
	}
}
