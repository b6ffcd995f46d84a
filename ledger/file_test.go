package ledger_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"trainmaster/ledger"
	"trainmaster/taskqueue"
)

var update = flag.Bool("update", false, "write the golden file")

// exampleFile returns a header and entries of all sizes, for more than one block.
func exampleFile(t testing.TB) (ledger.Header, []ledger.Entry) {
	t.Helper()
	entries, _ := written(t, 12, 4)
	last := entries[len(entries)-1].Commit
	for i := range 4 {
		last += uint64(i)*300 + 1
		entries = append(entries, ledger.Entry{Commit: last, Events: bytes.Repeat([]byte{byte(i), 1, 2}, i*15_000)})
	}
	return ledger.Header{
		Job: "digits", ID: jobID, First: entries[0].Commit, Last: last + 5, Newest: 1_700_000_000_123, Before: "the previous file", Entries: len(entries),
		Outline: taskqueue.Outline{Commit: entries[0].Commit - 1, Sets: []taskqueue.SetOutline{{Tasks: 12, Pass: 3, Open: 1, Aside: []taskqueue.AsideOutline{{Index: 4, Since: 2}}}}},
	}, entries
}

func decode(file []byte) (ledger.Header, []ledger.Entry, error) {
	h, entries, err := ledger.Decode("/there/x.sealed", file)
	if err != nil {
		return h, nil, err
	}
	var list []ledger.Entry
	for e, err := range entries {
		if err != nil {
			return h, list, err
		}
		list = append(list, e)
	}
	return h, list, nil
}

func TestFileRoundTrip(t *testing.T) {
	h, entries := exampleFile(t)
	file, err := ledger.Encode(h, entries)
	if err != nil {
		t.Fatal(err)
	}
	found, list, err := decode(file)
	if err != nil {
		t.Fatal(err)
	}
	if found.Outline.Draining = nil; !reflect.DeepEqual(found, h) {
		t.Errorf("header %+v, expected %+v", found, h)
	}
	equal := slices.EqualFunc(list, entries, func(a, b ledger.Entry) bool { return a.Commit == b.Commit && bytes.Equal(a.Events, b.Events) })
	if !equal {
		t.Errorf("commits %v, expected %v", commits(list), commits(entries))
	}
	for name, wrong := range map[string][]ledger.Entry{"twice": {entries[0], entries[0]}, "before the first": {{Commit: h.First - 1}}, "after the last": {{Commit: h.Last + 1}}} {
		if _, err := ledger.Encode(h, wrong); err == nil {
			t.Errorf("%s: encoded", name)
		}
	}
	empty, err := ledger.Encode(ledger.Header{First: 1, Last: 10}, nil)
	if _, list, decodeErr := decode(empty); err != nil || decodeErr != nil || len(list) != 0 {
		t.Errorf("without entries: %v, %v, %v", list, err, decodeErr)
	}
}

// Every version of the file format remains readable. The events in the golden file have version 1.
func TestGoldenFile(t *testing.T) {
	const path = "testdata/version-1.sealed"
	h, entries := exampleFile(t)
	if *update {
		file, err := ledger.Encode(h, entries)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, file, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	found, list, err := decode(file)
	if err != nil || !reflect.DeepEqual(found, h) || len(list) != len(entries) || !bytes.Equal(list[40].Events[1:], entries[40].Events[1:]) {
		t.Errorf("%+v, %d entries, %v", found, len(list), err)
	}
}

// A flipped bit, a truncation or appended bytes are refused with the name of the file and a position. Entries decoded
// before the error are correct.
func TestDamagedFile(t *testing.T) {
	h, entries := exampleFile(t)
	file, err := ledger.Encode(h, entries)
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, at int, file []byte) {
		t.Helper()
		_, list, err := decode(file)
		if !errors.Is(err, ledger.ErrDamaged) || !strings.Contains(err.Error(), "/there/x.sealed: at byte ") {
			t.Fatalf("%s at %d: %v", what, at, err)
		}
		for i, e := range list {
			if e.Commit != entries[i].Commit || !bytes.Equal(e.Events, entries[i].Events) {
				t.Fatalf("%s at %d: expected the original entry %d", what, at, i)
			}
		}
	}
	for at := range file {
		damaged := bytes.Clone(file)
		damaged[at] ^= 1 << (at % 8)
		check("a flipped bit", at, damaged)
		check("cut", at, file[:at])
	}
	check("more", len(file), append(bytes.Clone(file), 0))
}

func FuzzDecode(f *testing.F) {
	h, entries := exampleFile(f)
	file, err := ledger.Encode(h, entries[:10])
	if err != nil {
		f.Fatal(err)
	}
	f.Add(file)
	f.Fuzz(func(t *testing.T, file []byte) {
		if _, _, err := decode(file); err != nil && !errors.Is(err, ledger.ErrDamaged) {
			t.Fatal(err)
		}
	})
}

// A missing, damaged or exchanged sealed file is an error of the read, with its name and an offset. Entries of
// earlier files are still returned.
func TestReadDamaged(t *testing.T) {
	for name, tt := range map[string]struct {
		damage func(t *testing.T, path string, file []byte)
		says   string
	}{
		"missing": {func(t *testing.T, path string, _ []byte) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}, "no such file"},
		"cut": {func(t *testing.T, path string, file []byte) { overwrite(t, path, file[:len(file)-3]) }, "at byte"},
		"a bit of a block": {func(t *testing.T, path string, file []byte) {
			file[len(file)-20] ^= 4
			overwrite(t, path, file)
		}, "checksum"},
		"empty": {func(t *testing.T, path string, _ []byte) { overwrite(t, path, nil) }, "at byte 0"},
		"whole, but another": {func(t *testing.T, path string, file []byte) {
			h, entries, err := decode(file)
			if err != nil {
				t.Fatal(err)
			}
			other, err := ledger.Encode(h, entries[1:])
			if err != nil {
				t.Fatal(err)
			}
			overwrite(t, path, other)
		}, "another one"},
	} {
		for which, index := range map[string]int{"oldest": 0, "middle": 1, "newest": 2} {
			t.Run(name+" "+which, func(t *testing.T) {
				j := newJob(t, true)
				if err := j.seal(j.sealer()); err != nil {
					t.Fatal(err)
				}
				path := filepath.Join(j.dir, "default", j.files()[index])
				file, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				tt.damage(t, path, file)
				_, _, err = j.read()
				if !errors.Is(err, ledger.ErrDamaged) || !strings.Contains(err.Error(), path+": at byte ") || !strings.Contains(err.Error(), tt.says) {
					t.Fatalf("%v", err)
				}
				overwrite(t, path, file)
			})
		}
	}
}

func overwrite(t *testing.T, path string, file []byte) {
	t.Helper()
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
}

// The reader finds the directory that the master recorded. Another directory is refused.
func TestReadFindsRecordedDirectory(t *testing.T) {
	j := newJob(t, true)
	if err := j.seal(j.sealer()); err != nil {
		t.Fatal(err)
	}
	told := j.dir
	j.dir = ""
	if found, _, err := j.read(); err != nil || len(found) != len(j.all) {
		t.Errorf("%d commits, %v", len(found), err)
	}
	j.dir = t.TempDir()
	if _, err := ledger.Open(context.Background(), j.store, "", j.dir); !errors.Is(err, ledger.ErrElsewhere) || !strings.Contains(err.Error(), "--ledger-dir") {
		t.Errorf("empty directory: %v", err)
	}
	if err := os.RemoveAll(told); err != nil {
		t.Fatal(err)
	}
	if _, err := ledger.Open(context.Background(), j.store, "", ""); !errors.Is(err, ledger.ErrElsewhere) {
		t.Errorf("missing directory: %v", err)
	}
}

func TestParseKeep(t *testing.T) {
	for text, want := range map[string]ledger.Keep{"": {}, "all": {All: true}, "64MiB": {Bytes: 64 << 20}, "10GiB": {Bytes: 10 << 30}, "1TiB": {Bytes: 1 << 40}, "2KiB": {Bytes: 2048}, "720h": {Age: 720 * 3600e9}} {
		if got, err := ledger.ParseKeep(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"0", "-1h", "5", "GiB", "-1GiB", "1.5GiB", "7d", "everything", "99999999999GiB"} {
		if got, err := ledger.ParseKeep(text); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}
