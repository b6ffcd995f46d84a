package restore

import (
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"trainmaster/dataset"
	"trainmaster/master"
	"trainmaster/master/snapshot"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

// A restore from a set of checkpoints rejects files whose chunks have the same index but other records. A set of an earlier
// release has no checksums.
func TestDataWithOtherChecksumsIsRefused(t *testing.T) {
	logger, _ := logtest.NewNullLogger()
	path := filepath.Join(t.TempDir(), "a.rec")
	write := func(records ...string) {
		t.Helper()
		file, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		w := recordio.NewWriter(file, recordio.WriterOptions{})
		for _, r := range records {
			err = errors.Join(err, w.Write([]byte(r)))
		}
		if err := errors.Join(err, w.Close(), file.Close()); err != nil {
			t.Fatal(err)
		}
	}
	write("one", "two")
	found, err := dataset.Source{}.List(t.Context(), []string{path})
	if err != nil {
		t.Fatal(err)
	}
	table, err := master.TableOf(t.Context(), &dataset.Indexer{}, found)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	index := table.IndexDigest(0)
	checksums, known := table.ChecksumsDigest(0)
	if !known {
		t.Fatal("no checksums")
	}
	want := snapshot.DataFile{Path: path, Size: info.Size(), Index: hex.EncodeToString(index[:]), Checksums: hex.EncodeToString(checksums[:])}
	look := func(want snapshot.DataFile) error {
		_, err := indexDataset(t.Context(), []snapshot.DataFile{want}, nil, logrus.NewEntry(logger))
		return err
	}
	if err := look(want); err != nil {
		t.Error(err)
	}
	write("two", "one")
	if err := look(want); err == nil || !strings.Contains(err.Error(), "whose checksums have the digest") {
		t.Errorf("error of other records: %v", err)
	}
	want.Checksums = ""
	if err := look(want); err != nil {
		t.Errorf("a set without checksums gave %v", err)
	}
}

// The tasks of an online dataset are in order of arrival, not sorted by path. Before the first append there is none.
func TestDatasetIsIndexedInOrderOfArrival(t *testing.T) {
	logger, _ := logtest.NewNullLogger()
	dir := t.TempDir()
	var want []snapshot.DataFile
	table := taskqueue.NewTable(0)
	for _, name := range []string{"c", "a", "b"} {
		path := filepath.Join(dir, name)
		file, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		w := recordio.NewWriter(file, recordio.WriterOptions{})
		if err := errors.Join(w.Write([]byte(name)), w.Close(), file.Close()); err != nil {
			t.Fatal(err)
		}
		found, err := dataset.Source{}.List(t.Context(), []string{path})
		if err != nil {
			t.Fatal(err)
		}
		one, err := master.TableOf(t.Context(), &dataset.Indexer{}, found)
		if err != nil {
			t.Fatal(err)
		}
		index := one.IndexDigest(0)
		want = append(want, snapshot.DataFile{Path: path, Size: found.Files[0].Size, Index: hex.EncodeToString(index[:])})
		part := one.Part(0, 1)
		part.First = table.Chunks()
		table = table.Extend()
		if err := table.AddPart(&part); err != nil {
			t.Fatal(err)
		}
	}
	for n := range len(want) + 1 {
		got, err := indexDataset(t.Context(), want[:n], nil, logrus.NewEntry(logger))
		if err != nil || len(got.table.Files()) != n {
			t.Fatalf("%d files: %v", n, err)
		}
		for i, f := range got.table.Files() {
			if f != table.Files()[i] {
				t.Errorf("file %d of %d: expected %+v, found %+v", i, n, table.Files()[i], f)
			}
		}
	}
	got, err := indexDataset(t.Context(), want, nil, logrus.NewEntry(logger))
	if err != nil {
		t.Fatal(err)
	}
	var before [32]byte
	set := taskqueue.SetSnapshot{Online: true, Digest: make([]byte, 32), ChunksPerTask: 1, Chunks: 3, Tasks: 3}
	if err := got.replace(&set); err != nil || string(set.PartsDigest) == string(before[:]) {
		t.Errorf("got %v", err)
	}
}
