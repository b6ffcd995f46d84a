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

// A thousand trainers report a hundred thousand files. The master reads the files for the first of equal reports. A
// report of other paths is refused without a read of any file.
func TestRepeatedReportsReadNoFile(t *testing.T) {
	dir := t.TempDir()
	names := files(t, dir, 2, 2)
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{})
	for range 2 { // the second master reads the files again, because they may have changed
		if err := r.ReportDataset(t.Context(), names); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Remove(names[0]), os.Remove(names[1])); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := r.ReportDataset(t.Context(), names); err != nil {
			t.Errorf("repeated report: expected no read of files, got %v", err)
		}
	}
	other := append(names[:1:1], filepath.Join(dir, "part-999"))
	if err := r.ReportDataset(t.Context(), other); !errors.Is(err, taskqueue.ErrOtherDataset) || !strings.Contains(err.Error(), "part-999") || !strings.Contains(err.Error(), "part-001") {
		t.Errorf("other paths: expected the error of another dataset, got %v", err)
	}
}

// The parts of a table are removed from etcd if its report is refused, or if the table is already registered.
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
		t.Errorf("other dataset: got %v", err)
	}
	if err := r.Master.Register(t.Context(), mastertest.Table(t, 5), mastertest.Digest(5)); err != nil {
		t.Errorf("same dataset: got %v", err)
	}
	if after := parts(); before == 0 || after != before {
		t.Errorf("%d parts in etcd, expected %d", after, before)
	}
	r.Join("a").Take(t)
	mastertest.Verify(t, store)
}
