package trainer_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"trainmaster/dataset/tfrecord"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/mastertest"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
	"trainmaster/trainer"
)

// tfRecords writes a TFRecord file of 100 records of 30,000 bytes and returns its name.
func tfRecords(t *testing.T, dir string, c tfrecord.Compression, first string) string {
	t.Helper()
	var content bytes.Buffer
	w := tfrecord.NewWriter(&content, c)
	for i := range 100 {
		if err := w.Write(bytes.Repeat(fmt.Appendf(nil, "%s%05d", first, i), 5000)); err != nil {
			t.Fatal(err)
		}
	}
	name := filepath.Join(dir, "z-"+c.String())
	if err := errors.Join(w.Close(), os.WriteFile(name, content.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	return name
}

// Tasks of TFRecord files have their records as tasks of RecordIO files. A dataset may have both formats, also in one task.
func TestTasksOfTFRecordFiles(t *testing.T) {
	dir := t.TempDir()
	names := append(files(t, 1), tfRecords(t, dir, tfrecord.None, "a"), tfRecords(t, dir, tfrecord.Gzip, "b"), tfRecords(t, dir, tfrecord.Zlib, "c"))
	slices.Sort(names)
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{ChunksPerTask: 4})
	c := join(t, "a", trainer.At(r.Addr))
	if err := c.ReportDataset(within(t), names); err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	task := next(t, c, nil)
	for tasks := 1; ; tasks++ {
		for record, err := range c.Records(task) {
			if err != nil {
				t.Fatal(err)
			}
			seen[string(record[:min(len(record), 6)])]++
		}
		if tasks == 4 { // ten chunks of RecordIO, three plain and two compressed ones
			break
		}
		task = next(t, c, task)
	}
	if len(seen) != 400 {
		t.Errorf("found %d records, expected 400", len(seen))
	}
	for record, n := range seen {
		if n != 1 {
			t.Errorf("record %q: read %d times, expected once", record, n)
		}
	}
}

// F41: a TFRecord file that was replaced by another of the same size and time is an error that names the file and the chunk.
func TestReplacedTFRecordFile(t *testing.T) {
	dir := t.TempDir()
	name := tfRecords(t, dir, tfrecord.None, "a")
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{ChunksPerTask: 1})
	c := join(t, "a", trainer.At(r.Addr))
	if err := c.ReportDataset(within(t), []string{name}); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	tfRecords(t, dir, tfrecord.None, "b")
	if err := os.Chtimes(name, before.ModTime(), before.ModTime()); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(name); err != nil || after.Size() != before.Size() {
		t.Fatalf("replacement: expected the same size, found %v, %v", after, err)
	}
	task := next(t, c, nil)
	var failed error
	for _, err := range c.Records(task) {
		failed = err
	}
	if want := fmt.Sprintf("%s: byte %d: ", name, task.Chunks[0].Index.Offset); !errors.Is(failed, recordio.ErrChanged) || !strings.Contains(failed.Error(), want) {
		t.Errorf("found %v, expected %q", failed, want)
	}
}

// A task of a TFRecord file begins at its first record that is not trained, also in the middle of a chunk.
func TestTFRecordTaskBeginsAtItsBase(t *testing.T) { overBoth(t, testTFRecordTaskBeginsAtItsBase) }

func testTFRecordTaskBeginsAtItsBase(t *testing.T) {
	for _, compression := range []tfrecord.Compression{tfrecord.None, tfrecord.Gzip} {
		config := master.Config{ChunksPerTask: 4, Queue: taskqueue.Options{Passes: 1, ExplicitCommit: true}}
		r := mastertest.Start(t, etcdtest.Store(t), config)
		c := join(t, "a", trainer.At(r.Addr))
		if err := c.ReportDataset(within(t), []string{tfRecords(t, t.TempDir(), compression, "a")}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Next(within(t), nil); !errors.Is(err, trainer.ErrRolledBack) {
			t.Fatalf("before the step to load is known: got error %v", err)
		}
		m := &model{seen: map[string]int{}, saved: map[uint64]map[string]int{0: {}}}
		m.load(t, c)
		task := next(t, c, nil)
		steps := 1
		for ; !m.apply(t, c, task, 40); steps++ {
		}
		if steps != 3 || len(m.seen) != 100 {
			t.Errorf("%s: %d steps trained %d records, expected 3 steps and 100 records", compression, steps, len(m.seen))
		}
		for record, n := range m.seen {
			if n != 1 {
				t.Errorf("%s: record %.6s: trained %d times, expected once", compression, record, n)
			}
		}
	}
}
