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
