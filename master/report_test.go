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
	"trainmaster/master/committer"
	"trainmaster/master/mastertest"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

// files writes RecordIO files with the given numbers of chunks and ten records per chunk. It returns their names.
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

// Twenty trainers report concurrently, by names and by globs, in any order. The files are scanned once, and all
// reports succeed. A later report, also to the next master, causes no scan.
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
		t.Errorf("expected one scan of the dataset, found %d", n)
	}
	if count(r.Logged(), "fewer than 4 tasks for each trainer: some will idle at the end of a pass; write smaller chunks, with --records-per-chunk of recordio convert") != 0 {
		t.Error("expected no warning about few tasks")
	}
	if err := r.ReportDataset(t.Context(), []string{filepath.Join(dir, "nothing-*")}); err == nil || !strings.Contains(err.Error(), "on the master's machine: ") || !strings.Contains(err.Error(), "the glob matches no file") {
		t.Errorf("glob without files: got %v", err)
	}
	v, err := r.Overview(t.Context())
	if err != nil || v.Sets[0].Chunks != 90 || v.Sets[0].ChunksPerTask != 5 || v.Sets[0].Tasks != 18 || v.Sets[0].Records != 900 {
		t.Errorf("got %+v, %v; want 90 chunks in 18 tasks, 900 records", v.Sets, err)
	}
	reply, err := r.Join("a").Next(t.Context())
	if err != nil || len(reply.Assignment.Task.Chunks) != 5 || reply.Assignment.Task.Chunks[0].Path != names[0] || len(reply.Assignment.Stamps) != 1 {
		t.Errorf("first task: got %+v, %v", reply.Assignment, err)
	}
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	r = mastertest.Start(t, store, master.Config{Trainers: 2})
	if err := r.ReportDataset(t.Context(), lists[1]); err != nil || count(r.Logged(), "indexing the dataset") != 0 {
		t.Errorf("same dataset to the next master: got %v; log %q", err, r.Logged())
	}
}

// F31: the first dataset remains. A report of another dataset is an error with the differences.
func TestOtherDataset(t *testing.T) {
	dir := t.TempDir()
	names := files(t, dir, 2, 2)
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{})
	if err := r.ReportDataset(t.Context(), names); err != nil {
		t.Fatal(err)
	}
	if count(r.Logged(), "fewer than 4 tasks for each trainer: some will idle at the end of a pass; write smaller chunks, with --records-per-chunk of recordio convert") != 1 {
		t.Errorf("expected a warning about four tasks for eight trainers, found %q", r.Logged())
	}
	before, _, _ := mastertest.State(t, r.Store)
	more := append(slices.Clone(names), files(t, t.TempDir(), 1)...)
	changed := files(t, dir, 2, 3) // the second file is longer now
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
		t.Error("refused report: expected no commit")
	}
}

// F40, F42, F62: a file that cannot or must not be read is an error with its name. Nothing is registered, and a later
// valid report is accepted.
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
		"outside":         {[]string{outside}, []string{outside, "outside of --data-roots"}},
		"a link outside":  {[]string{link}, []string{link}},
		"a path outside":  {[]string{filepath.Join(dir, "..", filepath.Base(filepath.Dir(outside)), "part-000")}, nil},
		"a directory":     {[]string{dir}, nil},
		"too many dots":   {[]string{dir + "/../../../../../../etc/passwd"}, nil},
		"a relative name": {[]string{"part-000"}, nil},
	} {
		err := r.ReportDataset(t.Context(), tt.names)
		if err == nil {
			t.Errorf("%s: expected an error", name)
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

// A report of a canceled caller is abandoned. The next waiting report scans again.
func TestReportOfCanceledCallerIsAbandoned(t *testing.T) {
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

// Parts of an abandoned report, left between the writes of parts and the commit, never mix with the parts of the
// registered report.
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
	mastertest.Eventually(t, "the first part", func() bool { return len(parts()) == 1 })
	revokeLock(t, direct) // between the parts and the commit
	proxy.Cut()
	proxy.HoldReplies(false)
	// A part that the cut connection did not send is not stored. A part that it sent finds another leader.
	if err := <-reported; !errors.Is(err, master.ErrNotLeader) && !errors.Is(err, committer.ErrNotStored) {
		t.Errorf("report to a former leader: got %v", err)
	}
	r.AwaitLeading()
	if v, err := r.Overview(t.Context()); err != nil || len(v.Sets) != 0 {
		t.Fatalf("abandoned report: expected no dataset, found %+v, %v", v.Sets, err)
	}
	r.Register(30)
	if n := len(parts()); n != 2 {
		t.Errorf("expected the parts of both reports, found %d", n)
	}
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	next := mastertest.Start(t, direct, master.Config{})
	queues, err := next.TaskQueues(t.Context(), 0)
	if err != nil || len(queues.Todo) != 30 {
		t.Errorf("todo tasks after recovery: found %d, expected 30; %v", len(queues.Todo), err)
	}
}

// A job has several datasets, each with its own files. A later master has the tables of all of them.
func TestReportOfSeveralDatasets(t *testing.T) {
	store := etcdtest.Store(t)
	r := mastertest.Start(t, store, master.Config{Queue: taskqueue.Options{Sets: []string{"training", "held-out"}}})
	heldOut := taskqueue.SetSpec{Name: "held-out", Kind: taskqueue.Evaluation}
	training, other := files(t, t.TempDir(), 2, 2), files(t, t.TempDir(), 3)
	report := func(spec taskqueue.SetSpec, names []string, want error) {
		t.Helper()
		if err := r.ReportSet(t.Context(), spec, names); !errors.Is(err, want) {
			t.Fatalf("report of %q: %v, expected %v", spec.Name, err, want)
		}
	}
	if err := r.ReportDataset(t.Context(), training); err != nil {
		t.Fatal(err)
	}
	report(heldOut, other, nil)
	report(heldOut, other, nil)
	report(heldOut, training, taskqueue.ErrOtherDataset)
	report(taskqueue.SetSpec{}, other, taskqueue.ErrOtherDataset)
	report(taskqueue.SetSpec{Name: "no name"}, other, taskqueue.ErrBadSet)
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	r = mastertest.Start(t, store, master.Config{})
	report(heldOut, other, nil)
	report(heldOut, training, taskqueue.ErrOtherDataset)
	sets, err := r.Overview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if list := sets.Sets; len(list) != 2 || list[0].Name != "training" || list[0].Records != 40 || list[1].Name != "held-out" || list[1].Kind != taskqueue.Evaluation || list[1].Records != 30 {
		t.Errorf("datasets %+v", list)
	}
}
