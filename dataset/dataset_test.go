package dataset_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"trainmaster/dataset"
	"trainmaster/recordio"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// writeFile creates a file with the given number of chunks, each of two records.
func writeFile(t testing.TB, path string, chunks int) {
	t.Helper()
	var file bytes.Buffer
	w := recordio.NewWriter(&file, recordio.WriterOptions{RecordsPerChunk: 2})
	for i := range 2 * chunks {
		if err := w.Write(fmt.Appendf(nil, "record %d of %s", i, filepath.Base(path))); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	put(t, path, file.Bytes())
}

func put(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func link(t testing.TB, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

// folder returns a new directory with the files a-0, a-1 and b-0 of 1, 2 and 3 chunks, the files sub/c-0 and other/d-0 of
// one chunk, and a hidden file.
func folder(t testing.TB) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, chunks := range map[string]int{"a-0": 1, "a-1": 2, "b-0": 3, "sub/c-0": 1, "other/d-0": 1, ".a-hidden": 1} {
		writeFile(t, filepath.Join(dir, name), chunks)
	}
	return dir
}

func list(t testing.TB, s dataset.Source, names ...string) dataset.Listing {
	t.Helper()
	l, err := s.List(t.Context(), names)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func under(dir string, names ...string) []string {
	paths := make([]string, len(names))
	for i, name := range names {
		paths[i] = filepath.Join(dir, name)
	}
	return paths
}

func pathsOf(l dataset.Listing) []string {
	var paths []string
	for _, f := range l.Files {
		paths = append(paths, f.Path)
	}
	return paths
}

func TestListExpandsNames(t *testing.T) {
	dir := folder(t)
	writeFile(t, filepath.Join(dir, "odd[1]*"), 1)
	link(t, "a-0", filepath.Join(dir, "link"))
	link(t, "sub", filepath.Join(dir, "linked"))
	for _, c := range []struct {
		names []string
		want  []string
	}{
		{[]string{"a-0"}, []string{"a-0"}},
		{[]string{"b-0", "a-1", "a-0"}, []string{"a-0", "a-1", "b-0"}},
		{[]string{"a-*", "*-0", "a-0", "./a-0", "sub/../a-0"}, []string{"a-0", "a-1", "b-0"}},
		{[]string{"a-[1-9]", "?-0"}, []string{"a-0", "a-1", "b-0"}},
		{[]string{"*/?-0"}, []string{"linked/c-0", "other/d-0", "sub/c-0"}},
		{[]string{"*/c-0"}, []string{"linked/c-0", "sub/c-0"}},
		{[]string{".a*"}, []string{".a-hidden"}},
		{[]string{"odd[1]*"}, []string{"odd[1]*"}},
		{[]string{"link"}, []string{"link"}},
	} {
		if got := pathsOf(list(t, dataset.Source{}, under(dir, c.names...)...)); !slices.Equal(got, under(dir, c.want...)) {
			t.Errorf("%q: found %q, expected %q", c.names, got, c.want)
		}
	}
	t.Run("relative", func(t *testing.T) {
		t.Chdir(dir)
		if got := pathsOf(list(t, dataset.Source{}, "sub/*", "a-0")); !slices.Equal(got, under(dir, "a-0", "sub/c-0")) {
			t.Errorf("found %q", got)
		}
	})
}

func TestListDescribesFiles(t *testing.T) {
	dir := folder(t)
	path := filepath.Join(dir, "b-0")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	got := list(t, dataset.Source{}, path).Files[0]
	want := dataset.File{Path: path, Size: int64(len(content)), ModTime: info.ModTime(), Header: [20]byte(content)}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestDigest computes the digest from its description and checks its inputs.
func TestDigest(t *testing.T) {
	dir := folder(t)
	var b []byte
	for _, path := range under(dir, "a-0", "b-0") {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b = append(append(b, path...), 0)
		b = binary.LittleEndian.AppendUint64(b, uint64(len(content)))
		b = append(b, content[:20]...)
	}
	original := list(t, dataset.Source{}, under(dir, "b-0", "a-0")...).Digest
	if want := sha256.Sum256(b); original != want {
		t.Fatalf("digest: found %x, expected %x", original, want)
	}
	if got := list(t, dataset.Source{}, under(dir, "*-0", "a-0")...).Digest; got != original {
		t.Error("same files in another order and by a glob: expected the same digest")
	}
	if got := list(t, dataset.Source{}, under(dir, "a-0", "a-1")...).Digest; got == original {
		t.Error("other files: expected another digest")
	}
	path := filepath.Join(dir, "b-0")
	touched := time.Now().Add(time.Hour)
	if err := os.Chtimes(path, touched, touched); err != nil {
		t.Fatal(err)
	}
	if got := list(t, dataset.Source{}, under(dir, "*-0")...).Digest; got != original {
		t.Error("other modification time: expected the same digest")
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	content[4]++ // the checksum of the first chunk
	put(t, path, content)
	if got := list(t, dataset.Source{}, under(dir, "*-0")...).Digest; got == original {
		t.Error("file of the same size with another first chunk: expected another digest")
	}
}

// TestListRefuses covers F42. An open of a FIFO or a device would block the test.
func TestListRefuses(t *testing.T) {
	dir := folder(t)
	put(t, filepath.Join(dir, "bad/empty"), nil)
	if err := syscall.Mkfifo(filepath.Join(dir, "bad/fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	link(t, "loop2", filepath.Join(dir, "bad/loop1"))
	link(t, "loop1", filepath.Join(dir, "bad/loop2"))
	link(t, "nowhere", filepath.Join(dir, "bad/dangling"))
	link(t, "fifo", filepath.Join(dir, "bad/link-to-fifo"))
	socket, err := net.Listen("unix", filepath.Join(dir, "bad/socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	for _, c := range []struct {
		name  string
		want  error
		words string
	}{
		{"bad/missing", fs.ErrNotExist, ""},
		{"bad/empty", recordio.ErrEmpty, ""},
		{"bad/fifo", recordio.ErrNotRegular, "FIFO"},
		{"bad/link-to-fifo", recordio.ErrNotRegular, "FIFO"},
		{"bad/loop1", syscall.ELOOP, ""},
		{"bad/loop1/file", syscall.ELOOP, ""},
		{"bad/dangling", fs.ErrNotExist, ""},
		{"bad/socket", recordio.ErrNotRegular, "socket"},
		{"sub", recordio.ErrNotRegular, "directory"},
		{"nothing-*", dataset.ErrNoMatch, ""},
		{"missing/*", dataset.ErrNoMatch, ""},
		{"a-0/*", dataset.ErrNoMatch, ""},
		{"a-[", filepath.ErrBadPattern, ""},
	} {
		_, err := dataset.Source{}.List(t.Context(), under(dir, c.name, "a-0"))
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), filepath.Join(dir, c.name)) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: found error %v, expected %v", c.name, err, c.want)
		}
	}
	name := filepath.Join(dir, "bad/caf\xe9")
	put(t, name, []byte("x"))
	for _, named := range []string{name, filepath.Join(dir, "bad/caf*")} { // a message over gRPC has only text
		if _, err := (dataset.Source{}).List(t.Context(), []string{named}); !errors.Is(err, dataset.ErrBadName) || !strings.Contains(err.Error(), `caf\xe9`) {
			t.Errorf("a name that is not UTF-8: found error %v, expected %v", err, dataset.ErrBadName)
		}
	}
	if _, err := (dataset.Source{}).List(t.Context(), []string{"/dev/zero"}); !errors.Is(err, recordio.ErrNotRegular) {
		t.Errorf("device: found error %v", err)
	}
	for _, names := range [][]string{nil, {""}, {"a\x00b"}, {"s3://bucket/file"}} {
		if _, err := (dataset.Source{}).List(t.Context(), names); err == nil {
			t.Errorf("%q: expected an error", names)
		}
	}
}

// F63: a URL is no path. Only URLs of object stores are read, and only below a root: a client selects no other address.
func TestURLIsRefused(t *testing.T) {
	for _, name := range []string{"http://169.254.169.254/latest", "file:///etc/passwd", "ftp://bucket/*", "s3:///file", "gs://", "azblob://?domain=127.0.0.1"} {
		for _, source := range []dataset.Source{{}, {AnyURL: true}, {Roots: []string{"/", "s3://bucket"}}} {
			if _, err := source.List(t.Context(), []string{name}); !errors.Is(err, dataset.ErrScheme) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	roots := []string{t.TempDir(), "s3://bucket/train"}
	for _, name := range []string{
		"s3://bucket/file", "s3://bucket/train2/a", "s3://bucket/train*", "s3://other/train/a", "s3://bucket/train/a?endpoint=http://169.254.169.254", "s3://bucket/",
		"s3://bucket/train/a?region=eu-central-1",
	} {
		for _, source := range []dataset.Source{{}, {Roots: roots[:1]}, {Roots: roots}, {Roots: roots, AnyURL: true}} {
			if _, err := source.List(t.Context(), []string{name}); !errors.Is(err, dataset.ErrOutsideRoots) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s in %q: %v", name, source.Roots, err)
			}
		}
	}
	if _, err := (dataset.Source{Roots: roots[1:]}).List(t.Context(), []string{"/etc/passwd"}); !errors.Is(err, dataset.ErrOutsideRoots) {
		t.Errorf("a file although only objects are permitted: %v", err)
	}
	for _, root := range []string{"s3://bucket/train*", "http://bucket", "s3://"} {
		if _, err := dataset.NewRoots([]string{root}); err == nil {
			t.Errorf("the root %s was accepted", root)
		}
	}
}

// TestGlobReportsUnreadableDirectories uses a glob that filepath.Glob expands without the files of unreadable
// directories.
func TestGlobReportsUnreadableDirectories(t *testing.T) {
	if os.Getuid() == 0 {
		t.Log("root can read every directory: a symbolic link loop replaces the unreadable directory")
	}
	dir := folder(t)
	closed := filepath.Join(dir, "sub")
	if os.Getuid() == 0 {
		closed = filepath.Join(dir, "closed")
		link(t, "closed", closed)
	} else if err := os.Chmod(closed, 0); err != nil {
		t.Fatal(err)
	}
	_, err := dataset.Source{}.List(t.Context(), under(dir, "*/*"))
	if err == nil || !strings.Contains(err.Error(), closed) {
		t.Errorf("found error %v", err)
	}
}

// TestRoots covers F62.
func TestRoots(t *testing.T) {
	dir := folder(t)
	link(t, "../sub/c-0", filepath.Join(dir, "other/escape"))
	link(t, "../sub", filepath.Join(dir, "other/escaping"))
	link(t, "d-0", filepath.Join(dir, "other/inside"))
	link(t, "other", filepath.Join(dir, "alias"))
	writeFile(t, filepath.Join(dir, "other-too/e-0"), 1)
	for _, root := range []string{"other", "alias"} {
		s := dataset.Source{Roots: under(dir, root)}
		for _, name := range []string{"other/d-0", "other/*-0", "other/inside", root + "/d-0", root + "/../" + root + "/d-0"} {
			if l := list(t, s, under(dir, name)...); len(l.Files) != 1 {
				t.Errorf("root %s: %s: found %q", root, name, pathsOf(l))
			}
		}
		for _, name := range []string{
			"a-0", "sub/c-0", "other-too/e-0", "other/../sub/c-0", "other/../*", "missing", "missing/*", "*/*", "other/escape",
			"other/escaping/c-0", "other/escaping/*", "other/e*", "..", "/",
		} {
			_, err := s.List(t.Context(), []string{dir + "/" + name})
			if !errors.Is(err, dataset.ErrOutsideRoots) {
				t.Errorf("root %s: %s: found error %v", root, name, err)
			}
		}
		if _, err := s.List(t.Context(), []string{"/etc/passwd"}); !errors.Is(err, dataset.ErrOutsideRoots) {
			t.Errorf("/etc/passwd: found error %v", err)
		}
	}
	if _, err := (dataset.Source{Roots: under(dir, "missing")}).List(t.Context(), under(dir, "a-0")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing root: found error %v", err)
	}
	list(t, dataset.Source{Roots: []string{"/"}}, filepath.Join(dir, "a-0"))
}

// TestStatInsideRoots covers F62: a path of a request, without globs.
func TestStatInsideRoots(t *testing.T) {
	dir := folder(t)
	link(t, "../sub/c-0", filepath.Join(dir, "other/escape"))
	link(t, "d-0", filepath.Join(dir, "other/inside"))
	writeFile(t, filepath.Join(dir, "other/dir/f-0"), 1)
	roots, err := dataset.NewRoots(under(dir, "other"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"d-0", "inside"} {
		path := filepath.Join(dir, "other", name)
		if stamp, err := roots.Stat(t.Context(), nil, path); err != nil || dataset.Check(path, stamp) != nil {
			t.Errorf("%s: found %v, %v", name, stamp, err)
		}
	}
	for name, want := range map[string]error{
		"a-0": dataset.ErrOutsideRoots, "other/escape": dataset.ErrOutsideRoots, "other/../a-0": dataset.ErrOutsideRoots, "other/dir": recordio.ErrNotRegular,
		"other/*": fs.ErrNotExist, "other/missing": fs.ErrNotExist, "missing": dataset.ErrOutsideRoots,
	} {
		if _, err := roots.Stat(t.Context(), nil, dir+"/"+name); !errors.Is(err, want) {
			t.Errorf("%s: found error %v, expected %v", name, err, want)
		}
	}
}

func TestErrorsOfManyFilesAreCounted(t *testing.T) {
	dir := folder(t)
	for i := range 20 {
		put(t, filepath.Join(dir, fmt.Sprintf("bad-%02d", i)), nil)
	}
	_, err := dataset.Source{}.List(t.Context(), under(dir, "*-*"))
	many, ok := errors.AsType[*dataset.FilesError](err)
	if !ok || many.Bad != 20 || many.Files != 23 || len(many.BadNames) != 20 || filepath.Base(many.BadNames[19]) != "bad-19" {
		t.Fatalf("found error %#v", err)
	}
	for _, words := range []string{"20 of 23 files", "bad-00", "bad-04: byte 0", "and 15 more"} {
		if !strings.Contains(err.Error(), words) {
			t.Errorf("error %q: expected %q", err, words)
		}
	}
}

func TestListIsCancelled(t *testing.T) {
	dir := folder(t)
	ctx, cancel := context.WithCancel(t.Context())
	s := dataset.Source{Parallel: 1, Progress: func(done, total int) {
		if done == 1 {
			cancel()
		}
	}}
	if _, err := s.List(ctx, under(dir, "*-0", "*/*-0")); !errors.Is(err, context.Canceled) {
		t.Fatalf("found error %v", err)
	}
}

func TestDifference(t *testing.T) {
	e := func(path string, size int64) dataset.Entry { return dataset.Entry{Path: path, Size: size} }
	for _, c := range []struct {
		have, want []dataset.Entry
		sentence   string
	}{
		{nil, nil, ""},
		{[]dataset.Entry{e("/a", 1), e("/b", 2)}, []dataset.Entry{e("/b", 2), e("/a", 1)}, ""},
		{
			[]dataset.Entry{e("/a", 1)}, []dataset.Entry{e("/a", 2)},
			"the job's dataset has 1 file, this one has 1; 1 of another size: /a (2 bytes, not 1)",
		},
		{
			[]dataset.Entry{e("/a", 1), e("/b", 1), e("/z", 1)}, []dataset.Entry{e("/c", 1), e("/b", 7)},
			"the job's dataset has 3 files, this one has 2; 2 missing: /a, /z; 1 added: /c; 1 of another size: /b (7 bytes, not 1)",
		},
		{
			nil, []dataset.Entry{e("/5", 1), e("/4", 1), e("/3", 1), e("/2", 1), e("/1", 1)},
			"the job's dataset has 0 files, this one has 5; 5 added: /1, /2, /3 and 2 more",
		},
	} {
		if got := dataset.Difference(c.have, c.want); got != c.sentence {
			t.Errorf("%v, %v:\n got %q\nwant %q", c.have, c.want, got, c.sentence)
		}
	}
}

// TestCheck covers F41.
func TestCheck(t *testing.T) {
	dir := folder(t)
	path := filepath.Join(dir, "a-0")
	stamp := list(t, dataset.Source{}, path).Files[0].Stamp()
	if err := dataset.Check(path, stamp); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, replace := range map[string]func() error{
		"other size": func() error { return os.WriteFile(path, append(content, 1), 0o600) },
		"other time": func() error {
			if err := os.WriteFile(path, content, 0o600); err != nil {
				return err
			}
			return os.Chtimes(path, time.Now(), time.Unix(0, stamp.ModTime+1000))
		},
		"folder":  func() error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
		"removed": func() error { return os.Remove(path) },
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.WriteFile(path, content, 0o600), os.Chtimes(path, time.Time{}, time.Unix(0, stamp.ModTime))); err != nil {
				t.Fatal(err)
			}
			if err := dataset.Check(path, stamp); err != nil {
				t.Fatalf("the restored file: %v", err)
			}
			if err := replace(); err != nil {
				t.Fatal(err)
			}
			if err := dataset.Check(path, stamp); !errors.Is(err, dataset.ErrReplaced) || !strings.Contains(err.Error(), path) {
				t.Errorf("found error %v", err)
			}
		})
	}
}
