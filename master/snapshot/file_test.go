package snapshot_test

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"trainmaster/master/snapshot"
)

// content returns keys and files. One file is larger than one read.
func content(big []byte) snapshot.Content {
	return snapshot.Content{
		Head: snapshot.Head{Job: "digits", Set: 7, Model: true},
		Items: func(yield func(snapshot.Item, error) bool) {
			_ = yield(snapshot.Item{Key: "/a", Value: []byte("1")}, nil) && yield(snapshot.Item{Key: "/b", Value: big[:1000]}, nil)
		},
		Files: func(yield func(snapshot.Member, error) bool) {
			_ = yield(snapshot.Member{Path: "ps-0/x", Size: int64(len(big)), Data: bytes.NewReader(big)}, nil) &&
				yield(snapshot.Member{Path: "sets/empty", Data: strings.NewReader("")}, nil)
		},
	}
}

func bytesOf(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * i >> 3)
	}
	return b
}

// A written file is read in order: keys, then files, with files read completely or skipped.
func TestRoundTrip(t *testing.T) {
	big := bytesOf(3 << 20)
	path := filepath.Join(t.TempDir(), "job.tms")
	if err := snapshot.Write(path, content(big)); err != nil {
		t.Fatal(err)
	}
	f, err := snapshot.Open(path)
	if err != nil || f.Head.Job != "digits" || f.Head.Set != 7 {
		t.Fatalf("%+v, %v", f, err)
	}
	var keys, files []string
	for i, err := range f.Items() {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, i.Key+"="+string(i.Value[:1]))
	}
	for _, look := range []bool{true, false} {
		for m, err := range f.Files() {
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, m.Path)
			if !look {
				continue
			}
			data, err := io.ReadAll(m.Data)
			if want := big[:m.Size]; err != nil || !bytes.Equal(data, want) {
				t.Errorf("%s has %d bytes, %v; expected %d", m.Path, len(data), err, len(want))
			}
		}
	}
	if !slices.Equal(keys, []string{"/a=1", "/b=\x00"}) || !slices.Equal(files, []string{"ps-0/x", "sets/empty", "ps-0/x", "sets/empty"}) {
		t.Errorf("found %q and %q", keys, files)
	}
}

// Each flipped bit and each truncation is an error.
func TestDamaged(t *testing.T) {
	var b bytes.Buffer
	if err := snapshot.Encode(&b, content(bytesOf(2000))); err != nil {
		t.Fatal(err)
	}
	whole := b.Bytes()
	if _, err := snapshot.Parse("whole", whole); err != nil {
		t.Fatal(err)
	}
	for at := 0; at < len(whole); at += 17 {
		flipped := slices.Clone(whole)
		flipped[at] ^= 1
		if _, err := snapshot.Parse("flipped", flipped); !errors.Is(err, snapshot.ErrDamaged) {
			t.Fatalf("bit of byte %d: %v", at, err)
		}
		if _, err := snapshot.Parse("short", whole[:at]); !errors.Is(err, snapshot.ErrDamaged) {
			t.Fatalf("cut at %d: %v", at, err)
		}
	}
}

// A file with another size than declared ends the writing. An existing snapshot is unchanged.
func TestWriteRefusesFileOfOtherSize(t *testing.T) {
	c := content(bytesOf(2000))
	c.Files = func(yield func(snapshot.Member, error) bool) {
		yield(snapshot.Member{Path: "x", Size: 5, Data: strings.NewReader("four")}, nil)
	}
	dir := t.TempDir()
	if err := snapshot.Write(filepath.Join(dir, "job.tms"), c); err == nil || !strings.Contains(err.Error(), "x: expected 5 bytes, found 4") {
		t.Errorf("found %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) > 0 {
		t.Errorf("remaining files: %v, %v", left, err)
	}
}
