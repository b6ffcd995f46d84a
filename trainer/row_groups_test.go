package trainer_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	library "github.com/parquet-go/parquet-go"

	"trainmaster/dataset/parquet"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/mastertest"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
	"trainmaster/trainer"
)

type parquetRow struct {
	Name string `parquet:"name"`
}

// parquetFile writes a Parquet file with row groups of the given sizes and returns its path. Row 7 has the name prefix-007.
func parquetFile(t *testing.T, path, prefix string, groups ...int) string {
	t.Helper()
	var out bytes.Buffer
	w := library.NewGenericWriter[parquetRow](&out)
	n := 0
	for _, rows := range groups {
		for range rows {
			if _, err := w.Write([]parquetRow{{fmt.Sprintf("%s-%03d", prefix, n)}}); err != nil {
				t.Fatal(err)
			}
			n++
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), os.WriteFile(path, out.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	return path
}

// namesOf reads the rows of the row groups of a task from Skip on.
func namesOf(t *testing.T, c *trainer.Client, task *taskqueue.Task) (names []string, err error) {
	t.Helper()
	for group, err := range c.RowGroups(task) {
		if err != nil {
			return names, err
		}
		file, err := library.OpenFile(group, group.Size(), library.SkipPageIndex(true), library.SkipBloomFilters(true))
		if err != nil {
			t.Fatal(err)
		}
		rows := library.NewGenericRowGroupReader[parquetRow](file.RowGroups()[group.Number])
		if err := rows.SeekToRow(group.Skip); err != nil {
			t.Fatal(err)
		}
		list := make([]parquetRow, group.Rows-group.Skip)
		if n, err := rows.Read(list); n != len(list) || err != nil && !errors.Is(err, io.EOF) {
			t.Fatalf("read %d rows, %v, expected %d", n, err, len(list))
		}
		for _, row := range list {
			names = append(names, row.Name)
		}
	}
	return names, nil
}

// Each row of a dataset of Parquet files is in one task. A task can have row groups of several files.
func TestTasksOfParquetFiles(t *testing.T) { overBoth(t, testTasksOfParquetFiles) }

func testTasksOfParquetFiles(t *testing.T) {
	dir := t.TempDir()
	names := []string{parquetFile(t, filepath.Join(dir, "a"), "a", 5, 1), parquetFile(t, filepath.Join(dir, "b"), "b", 30, 4, 4)}
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{ChunksPerTask: 3, Queue: taskqueue.Options{Passes: 1}})
	c := join(t, "a", trainer.At(r.Addr))
	if err := c.ReportDataset(within(t), names); err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	task := next(t, c, nil)
	for tasks := 1; ; tasks++ {
		found, err := namesOf(t, c, task)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range found {
			seen[name]++
		}
		if tasks == 2 {
			break
		}
		task = next(t, c, task)
	}
	if len(seen) != 44 {
		t.Errorf("found %d rows, expected 44", len(seen))
	}
	for name, n := range seen {
		if n != 1 {
			t.Errorf("row %s: read %d times, expected once", name, n)
		}
	}
}

// F236: a Parquet file that was replaced by another of the same size and time is an error that names the file.
func TestReplacedParquetFile(t *testing.T) {
	path := parquetFile(t, filepath.Join(t.TempDir(), "a"), "a", 5, 6)
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{ChunksPerTask: 1})
	c := join(t, "a", trainer.At(r.Addr))
	if err := c.ReportDataset(within(t), []string{path}); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 { // files of other rows can have another size
		parquetFile(t, path, string(rune('b'+i%24)), 5, 6)
		if info, err := os.Stat(path); err == nil && info.Size() == before.Size() {
			break
		}
	}
	if err := os.Chtimes(path, before.ModTime(), before.ModTime()); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(path); err != nil || after.Size() != before.Size() {
		t.Fatalf("replacement: expected the same size, found %v, %v", after, err)
	}
	_, err = namesOf(t, c, next(t, c, nil))
	if !errors.Is(err, recordio.ErrChanged) || !strings.Contains(err.Error(), path) {
		t.Errorf("found %v, expected %v of %s", err, recordio.ErrChanged, path)
	}
}

// F237: a task of a Parquet file has no records, and a task of RecordIO files has no row groups.
func TestRecordsOfAParquetFileAreRefused(t *testing.T) {
	path := parquetFile(t, filepath.Join(t.TempDir(), "a"), "a", 5)
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{})
	c := join(t, "a", trainer.At(r.Addr))
	if err := c.ReportDataset(within(t), []string{path}); err != nil {
		t.Fatal(err)
	}
	task := next(t, c, nil)
	n := 0
	for _, err := range c.Records(task) {
		n++
		if !errors.Is(err, parquet.ErrRows) || !strings.Contains(err.Error(), path) {
			t.Errorf("found %v, expected %v of %s", err, parquet.ErrRows, path)
		}
	}
	if n != 1 {
		t.Errorf("found %d errors, expected 1", n)
	}
	task.Chunks[0].Index.Layout = recordio.First
	if _, err := namesOf(t, c, task); err == nil || !strings.Contains(err.Error(), "expected a Parquet file, found the first layout") {
		t.Errorf("a RecordIO file: found %v", err)
	}
}

// With explicit commits, the rows begin after the rows of committed steps, also in a later row group of the task.
func TestRowGroupsBeginAtBase(t *testing.T) { overBoth(t, testRowGroupsBeginAtBase) }

func testRowGroupsBeginAtBase(t *testing.T) {
	path := parquetFile(t, filepath.Join(t.TempDir(), "a"), "a", 5, 6)
	config := master.Config{ChunksPerTask: 2, Queue: taskqueue.Options{Passes: 1, ExplicitCommit: true}}
	r := mastertest.Start(t, etcdtest.Store(t), config)
	c := join(t, "a", trainer.At(r.Addr))
	if err := c.ReportDataset(within(t), []string{path}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Next(within(t), nil); !errors.Is(err, trainer.ErrRolledBack) {
		t.Fatalf("before the step to load is known: got error %v", err)
	}
	m := &model{seen: map[string]int{}, saved: map[uint64]map[string]int{0: {}}}
	m.load(t, c)
	task := next(t, c, nil)
	c.Applied(task, 1, 7)
	names, err := namesOf(t, c, task)
	if err != nil || strings.Join(names, " ") != "a-007 a-008 a-009 a-010" {
		t.Errorf("found %v, %v, expected the rows from 7 on", names, err)
	}
}
