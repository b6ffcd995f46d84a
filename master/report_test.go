package master_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/mastertest"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

// files writes RecordIO files of so many chunks each, ten records a chunk, and returns their
// names.
func files(t *testing.T, dir string, chunks ...int) (names []string) {
	t.Helper()
	for i, n := range chunks {
		name := filepath.Join(dir, fmt.Sprintf("part-%03d", i))
		file, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		w := recordio.NewWriter(file, recordio.WriterOptions{RecordsPerChunk: 10})
		for r := range n * 10 {
			if err := w.Write(fmt.Appendf(nil, "file %d, record %d", i, r)); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(w.Close(), file.Close()); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	return names
}

func count(lines []string, line string) (n int) {
	for _, l := range lines {
		if l == line {
			n++
		}
	}
	return n
}

// Twenty trainers report at once, by name and by glob, in any order: the files are scanned
// once, all succeed; and later, also to the next master, without a scan.
func TestReportsShareOneScan(t *testing.T) {
	dir := t.TempDir()
	names := files(t, dir, 30, 30, 30)
	store := etcdtest.Store(t)
	r := mastertest.Start(t, store, master.Config{Trainers: 2})
	lists := [][]string{names, {names[2], names[0], names[1]}, {filepath.Join(dir, "part-*")}, {names[1], filepath.Join(dir, "part-00[02]")}}
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if err := r.ReportDataset(t.Context(), lists[i%len(lists)]); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := count(r.Logged(), "indexing the dataset"); n != 1 {
		t.Errorf("the dataset was scanned %d times", n)
	}
	if count(r.Logged(), "fewer than 4 tasks for each trainer: some will idle at the end of a pass; write smaller chunks, with --records-per-chunk of recordio convert") != 0 {
		t.Error("a warning about few tasks, of which there are many")
	}
	if err := r.ReportDataset(t.Context(), []string{filepath.Join(dir, "nothing-*")}); err == nil || !strings.Contains(err.Error(), "on the master's machine: ") || !strings.Contains(err.Error(), "the glob matches no file") {
		t.Errorf("a glob without files gave %v", err)
	}
	v, err := r.Overview(t.Context())
	if err != nil || v.Sets[0].Chunks != 90 || v.Sets[0].ChunksPerTask != 5 || v.Sets[0].Tasks != 18 || v.Sets[0].Records != 900 {
		t.Errorf("got %+v, %v; want 90 chunks in 18 tasks, 900 records", v.Sets, err)
	}
	reply, err := r.Join("a").Next(t.Context())
	if err != nil || len(reply.Assignment.Task.Chunks) != 5 || reply.Assignment.Task.Chunks[0].Path != names[0] || len(reply.Assignment.Stamps) != 1 {
		t.Errorf("the first task is %+v, %v", reply.Assignment, err)
	}
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	r = mastertest.Start(t, store, master.Config{Trainers: 2})
	if err := r.ReportDataset(t.Context(), lists[1]); err != nil || count(r.Logged(), "indexing the dataset") != 0 {
		t.Errorf("the same dataset, to the next master: %v; %q", err, r.Logged())
	}
}

// F31: the first dataset is honoured; another one is an error that says what differs.
func TestOtherDataset(t *testing.T) {
	dir := t.TempDir()
	names := files(t, dir, 2, 2)
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{})
	if err := r.ReportDataset(t.Context(), names); err != nil {
		t.Fatal(err)
	}
	if count(r.Logged(), "fewer than 4 tasks for each trainer: some will idle at the end of a pass; write smaller chunks, with --records-per-chunk of recordio convert") != 1 {
		t.Errorf("no warning about four tasks for eight trainers: %q", r.Logged())
	}
	before, _, _ := mastertest.State(t, r.Store)
	more := append(slices.Clone(names), files(t, t.TempDir(), 1)...)
	changed := files(t, dir, 2, 3) // the second one is longer now
	for name, tt := range map[string]struct {
		names []string
		words string
	}{
		"fewer":   {names[:1], "part-001"},
		"more":    {more, filepath.Base(more[2])},
		"changed": {changed, "part-001"},
	} {
		if err := r.ReportDataset(t.Context(), tt.names); !errors.Is(err, taskqueue.ErrOtherDataset) || !strings.Contains(err.Error(), tt.words) {
			t.Errorf("%s: expected another dataset, with %q, got %v", name, tt.words, err)
		}
	}
	if after, _, _ := mastertest.State(t, r.Store); after.Commit != before.Commit {
		t.Error("a refused report was committed")
	}
}

// F40, F42, F62: what cannot be read, or may not be, is an error with the file; nothing is
// registered, and a right report that comes after it is taken.
func TestReportThatIsRefused(t *testing.T) {
	dir := t.TempDir()
	names := files(t, dir, 3, 3)
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{Roots: []string{dir}})
	truncated := filepath.Join(dir, "truncated")
	whole, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(truncated, whole[:len(whole)-5], 0o600); err != nil {
		t.Fatal(err)
	}
	outside := files(t, t.TempDir(), 1)[0]
	link := filepath.Join(dir, "link")
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		names []string
		words []string
	}{
		"truncated":       {[]string{names[1], truncated}, []string{truncated, "byte 450"}},
		"missing":         {[]string{names[0], filepath.Join(dir, "nothing")}, []string{"nothing"}},
		"none":            {nil, nil},
		"outside":         {[]string{outside}, []string{outside, "allowed"}},
		"a link outside":  {[]string{link}, []string{link}},
		"a way outside":   {[]string{filepath.Join(dir, "..", filepath.Base(filepath.Dir(outside)), "part-000")}, nil},
		"a folder":        {[]string{dir}, nil},
		"too many dots":   {[]string{dir + "/../../../../../../etc/passwd"}, nil},
		"a relative name": {[]string{"part-000"}, nil},
	} {
		err := r.ReportDataset(t.Context(), tt.names)
		if err == nil {
			t.Errorf("%s: was taken", name)
			continue
		}
		for _, word := range tt.words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: expected %q in: %v", name, word, err)
			}
		}
	}
	if v, err := r.Overview(t.Context()); err != nil || len(v.Sets) != 0 {
		t.Fatalf("registered: %+v, %v", v.Sets, err)
	}
	if err := r.ReportDataset(t.Context(), names); err != nil {
		t.Error(err)
	}
}

// A report whose caller goes away is given up; the next one that waits scans anew.
func TestReportOfOneWhoLeaves(t *testing.T) {
	names := files(t, t.TempDir(), 3)
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.ReportDataset(gone, names); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := r.ReportDataset(t.Context(), names); err != nil {
		t.Error(err)
	}
}

// Parts that a dead report left, between its parts and its commit, never mix with those of
// the report that counts.
func TestDeadReportNeverMixes(t *testing.T) {
	r, proxy, direct := behind(t, master.Config{})
	proxy.HoldReplies(true)
	reported := make(chan error, 1)
	go func() { reported <- r.Master.Register(t.Context(), mastertest.Table(t, 40), mastertest.Digest(40)) }()
	parts := func() map[string][]byte {
		values, _, err := direct.Prefixed(t.Context(), "/task_queues/tasks/")
		if err != nil {
			t.Fatal(err)
		}
		return values
	}
	mastertest.Eventually(t, "the first part lands", func() bool { return len(parts()) == 1 })
	depose(t, direct) // between the parts and the commit
	proxy.Cut()
	proxy.HoldReplies(false)
	if err := <-reported; !errors.Is(err, master.ErrNotLeader) {
		t.Errorf("the report of a deposed master: %v", err)
	}
	r.AwaitLeading()
	if v, err := r.Overview(t.Context()); err != nil || len(v.Sets) != 0 {
		t.Fatalf("the dead report counts: %+v, %v", v.Sets, err)
	}
	r.Register(30)
	if n := len(parts()); n != 2 {
		t.Errorf("%d parts, want the dead one and the right one", n)
	}
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	next := mastertest.Start(t, direct, master.Config{})
	queues, err := next.TaskQueues(t.Context(), 0)
	if err != nil || len(queues.Todo) != 30 {
		t.Errorf("%d tasks to do after recovery, want 30; %v", len(queues.Todo), err)
	}
}
