package master_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/mastertest"
	"trainmaster/taskqueue"
)

// A thousand trainers report a hundred thousand files: the files are read for the first of the same reports, and a report of other paths is
// refused without a look at any file.
func TestRepeatedReportsReadNoFile(t *testing.T) {
	dir := t.TempDir()
	names := files(t, dir, 2, 2)
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{})
	for range 2 { // the second one reads them again: they may have changed
		if err := r.ReportDataset(t.Context(), names); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Remove(names[0]), os.Remove(names[1])); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := r.ReportDataset(t.Context(), names); err != nil {
			t.Errorf("a repeated report read the files: %v", err)
		}
	}
	other := append(names[:1:1], filepath.Join(dir, "part-999"))
	if err := r.ReportDataset(t.Context(), other); !errors.Is(err, taskqueue.ErrOtherDataset) || !strings.Contains(err.Error(), "part-999") || !strings.Contains(err.Error(), "part-001") {
		t.Errorf("other paths: %v, expected another dataset", err)
	}
}

// The parts of a table whose report is refused, or that is registered already, are removed from etcd.
func TestPartsOfARefusedReportAreRemoved(t *testing.T) {
	store := etcdtest.Store(t)
	r := mastertest.Start(t, store, master.Config{})
	parts := func() int {
		keys, _, err := store.Prefixed(t.Context(), "/task_queues/tasks/")
		if err != nil {
			t.Fatal(err)
		}
		return len(keys)
	}
	r.Register(5)
	before := parts()
	if err := r.Master.Register(t.Context(), mastertest.Table(t, 7), mastertest.Digest(7)); !errors.Is(err, taskqueue.ErrOtherDataset) {
		t.Errorf("another dataset: %v", err)
	}
	if err := r.Master.Register(t.Context(), mastertest.Table(t, 5), mastertest.Digest(5)); err != nil {
		t.Errorf("the same dataset: %v", err)
	}
	if after := parts(); before == 0 || after != before {
		t.Errorf("%d parts in etcd, expected %d", after, before)
	}
	r.Join("a").Take(t)
	mastertest.Verify(t, store)
}
