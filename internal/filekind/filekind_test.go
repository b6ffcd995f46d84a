package filekind_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"trainmaster/internal/filekind"
)

func TestChecksNameTheFoundKind(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Symlink("nowhere", link)); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		err  error
		want string // "": no error
	}{
		"file":                    {filekind.CheckFile(file), ""},
		"directory as a file":     {filekind.CheckFile(dir), "expected a regular file, found a directory"},
		"file as a directory":     {filekind.CheckFolder(file), "expected a directory, found a file"},
		"link to nothing":         {filekind.CheckFile(link), "found a link to"},
		"new file":                {filekind.CheckNew(filepath.Join(dir, "new"), false), ""},
		"existing file":           {filekind.CheckNew(file, false), "--force"},
		"existing file, replaced": {filekind.CheckNew(file, true), ""},
		"link, replaced":          {filekind.CheckNew(link, true), "found a link, which --force does not replace"},
	} {
		if tt.want == "" && tt.err != nil || tt.want != "" && (tt.err == nil || !strings.Contains(tt.err.Error(), tt.want)) {
			t.Errorf("%s: found %v, expected %q", name, tt.err, tt.want)
		}
	}
	if err := filekind.CheckFile(link); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("link to nothing: found %v, expected fs.ErrNotExist", err)
	}
}
