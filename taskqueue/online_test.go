package taskqueue

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"

	"trainmaster/recordio"
)

// onlineJob is a job with one online dataset, its segments and a verifier of its ledger.
type onlineJob struct {
	*testing.T
	q        *Queue
	opt      Options
	table    *Table
	digest   [32]byte
	verifier *Verifier
	tracer   *Tracer
	now      Clock
}

func newOnlineJob(t *testing.T, spec SetSpec, opt Options) *onlineJob {
	j := &onlineJob{T: t, q: New("job", [16]byte{1}, 7, opt), opt: opt, table: NewTable(0), verifier: NewVerifier(), now: 1}
	j.tracer = NewTracer(0, 4, Outline{})
	spec.Online = true
	if a := j.apply(&Report{SetSpec: spec, Digest: [32]byte{9}, ReportID: "r", Table: j.table}); a.Err != nil {
		t.Fatal(a.Err)
	}
	return j
}

// segment returns the event that appends n tasks to the dataset.
func (j *onlineJob) segment(n int) *AppendSegment {
	j.Helper()
	next := j.table.Extend()
	var chunks []recordio.Index
	offset := int64(0)
	for range n {
		c := recordio.Index{Offset: offset, Size: 100, Records: 1}
		chunks, offset = append(chunks, c), c.End()
	}
	if err := next.Add(File{Path: fmt.Sprint("/data/", j.table.Tasks()), Size: offset}, chunks); err != nil {
		j.Fatal(err)
	}
	return &AppendSegment{Name: "training", After: j.digest, Parts: 1, PartsDigest: ChainDigest(j.digest, []byte{byte(n)}), Table: next}
}

func (j *onlineJob) append(n int) {
	j.Helper()
	ev := j.segment(n)
	if a := j.apply(ev); a.Err != nil {
		j.Fatal(a.Err)
	}
	j.table, j.digest = ev.Table, ev.PartsDigest
}

// apply applies an event, commits, and checks the ledger. Then it restores the queue from the stored state.
func (j *onlineJob) apply(ev Event) Answer {
	j.Helper()
	a := j.q.Apply(j.now, ev)
	if ready := j.q.Ready(); len(ready.Entries) > 0 {
		if err := errors.Join(j.verifier.Add(j.q.Commit(), ready.Entries), j.tracer.Add(j.q.Commit(), ready.Entries)); err != nil {
			j.Fatal(err)
		}
	}
	var stored bytes.Buffer
	if err := gob.NewEncoder(&stored).Encode(j.q.Snapshot(1, 2)); err != nil {
		j.Fatal(err)
	}
	var s Snapshot
	if err := gob.NewDecoder(&stored).Decode(&s); err != nil {
		j.Fatal(err)
	}
	if err := j.verifier.CrossCheck(&s); err != nil {
		j.Fatal(err)
	}
	outline := j.verifier.Outline()
	if resumed, err := ResumeVerifier(outline); err != nil || !reflect.DeepEqual(resumed.Outline(), outline) || !reflect.DeepEqual(j.q.Outline(), outline) {
		j.Fatalf("outline %+v resumed: %v; of the queue: %+v", outline, err, j.q.Outline())
	}
	q, err := Restore(&s, j.q.encodedRoster(), []*Table{j.q.Table(0)}, j.opt)
	if err != nil {
		j.Fatal(err)
	}
	q.Continue(j.q)
	j.q = q
	return a
}

// work joins a trainer that trains until it must wait or the job has ended. It returns the tasks.
func (j *onlineJob) work(id string) (tasks []int, last Answer) {
	j.Helper()
	session := j.apply(&Join{ID: id, Address: "10.0.0.1:80"})
	var results []Result
	for seq := uint64(1); ; seq++ {
		j.now += 10
		a := j.apply(&Request{Trainer: session.Ordinal, Incarnation: session.Incarnation, Seq: seq, Ack: seq, Finished: results, Want: true})
		if a.Kind != AnswerTask {
			return tasks, a
		}
		tasks, results = append(tasks, a.Index), []Result{{Token: a.Token}}
	}
}

func (j *onlineJob) closed(pass Pass) bool {
	for _, r := range j.verifier.Report() {
		if r.Pass == pass {
			return j.verifier.sets[0].find(pass) == nil && r.CountedOnce == r.Tasks && r.Tasks == j.table.Tasks() && r.Missing+r.CountedTwice == 0
		}
	}
	return false
}

// The first pass takes the tasks of each segment in order of arrival and ends with the close. The next pass is over all data, with a permutation.
func TestOnlineDatasetGrowsUntilItIsClosed(t *testing.T) {
	for _, opt := range []Options{{Passes: 2}, {Passes: 2, Rolling: true}} {
		j := newOnlineJob(t, SetSpec{Shuffle: true, Seed: 42}, opt)
		if tasks, a := j.work("a"); len(tasks) > 0 || a.Kind != AnswerWait {
			t.Fatalf("empty dataset: %v, %+v", tasks, a)
		}
		if a := j.apply(&CloseSet{"training"}); !errors.Is(a.Err, ErrEmptySet) {
			t.Fatalf("close of an empty dataset: %v", a.Err)
		}
		var all []int
		for i, n := range []int{3, 1, 70, 2} {
			j.append(n)
			if j.q.Table(0).TaskFiles(j.table.Tasks() - 1)[0].Path != j.table.Files()[i].Path {
				t.Fatal("the table does not have the segment")
			}
			tasks, a := j.work(fmt.Sprint("b", i))
			if len(tasks) != n || a.Kind != AnswerWait || j.q.Overview().Sets[0].Pass != 1 {
				t.Fatalf("segment %d: trained %v, then %+v in pass %d", i, tasks, a, j.q.Overview().Sets[0].Pass)
			}
			all = append(all, tasks...)
		}
		if !slices.IsSorted(all) || len(all) != 76 {
			t.Errorf("pass 1: expected tasks 0 to 75 in order of arrival, found %v", all)
		}
		for range 2 {
			if a := j.apply(&CloseSet{"training"}); a.Err != nil {
				t.Fatal(a.Err)
			}
		}
		if a := j.apply(j.segment(1)); !errors.Is(a.Err, ErrSetClosed) {
			t.Errorf("append after the close: %v", a.Err)
		}
		tasks, a := j.work("c")
		if !slices.Equal(tasks, Order(42, 2, 76)) || a.Kind != AnswerEnded {
			t.Errorf("pass 2: found %v, then %+v", tasks, a)
		}
		if !j.closed(1) || !j.closed(2) {
			t.Errorf("found %+v", j.verifier.Report())
		}
		if passes := j.tracer.Passes(); len(passes) != 2 || passes[0].Counted() == nil || passes[1].Counted() == nil {
			t.Errorf("task 4: found %+v", passes)
		}
	}
}

// A segment is appended once: a repeated event, and one with another table, change nothing.
func TestSegmentIsAppendedOnce(t *testing.T) {
	j := newOnlineJob(t, SetSpec{}, Options{})
	ev, other := j.segment(3), j.segment(5)
	for i, event := range []*AppendSegment{ev, ev, other} {
		if a := j.apply(event); i == 0 && a.Err != nil || i > 0 && !errors.Is(a.Err, ErrOtherSegment) {
			t.Errorf("append %d: got %v", i, a.Err)
		}
	}
	if v := j.q.Overview().Sets[0]; v.Tasks != 3 || v.Chunks != 3 || !v.Online || v.Closed || j.q.Table(0) != ev.Table {
		t.Errorf("expected 3 tasks, found %+v", v)
	}
	for want, ev := range map[error]Event{
		ErrNoSet: &AppendSegment{Name: "books", Table: NewTable(0)}, ErrOtherSegment: &AppendSegment{Name: "training", After: ev.PartsDigest, Table: ev.Table},
	} {
		if a := j.apply(ev); !errors.Is(a.Err, want) {
			t.Errorf("expected %v, got %v", want, a.Err)
		}
	}
	q := New("job", [16]byte{1}, 7, Options{})
	q.Apply(1, &Report{Digest: [32]byte{1}, ReportID: "r", Table: tableOf(t, 2)})
	for _, ev := range []Event{&AppendSegment{Name: "training", Table: tableOf(t, 4)}, &CloseSet{"training"}} {
		if a := q.Apply(1, ev); !errors.Is(a.Err, ErrNotOnline) {
			t.Errorf("dataset that is not online: got %v", a.Err)
		}
	}
	if a := q.Apply(1, &Report{SetSpec: SetSpec{Kind: Evaluation, Online: true}, Table: NewTable(0)}); !errors.Is(a.Err, ErrBadSet) {
		t.Errorf("online evaluation data: got %v", a.Err)
	}
}

// With explicit commits, a rollback returns tasks of all segments and keeps the segments. The pass ends after the commit of the last step.
func TestOnlineDatasetRollsBack(t *testing.T) {
	j := newOnlineJob(t, SetSpec{}, Options{Passes: 1, ExplicitCommit: true})
	a := j.apply(&Join{ID: "a", Address: "10.0.0.1:80"})
	epoch := j.q.Epoch()
	seq := uint64(0)
	train := func(n int, step uint64) {
		t.Helper()
		var results []Result
		for range n + 1 {
			seq++
			got := j.apply(&Request{Trainer: a.Ordinal, Incarnation: a.Incarnation, Seq: seq, Ack: seq, Finished: results, Want: len(results) < 1 || n > 0, Epoch: epoch})
			if results = nil; got.Kind == AnswerTask {
				results = []Result{{Token: got.Token, Step: step}}
			}
			n--
		}
	}
	j.append(2)
	train(2, 1)
	j.append(3)
	train(3, 1)
	if n := j.q.Steps().Uncommitted; n == 0 {
		t.Fatal("expected finished tasks that wait for a commit")
	}
	generation := j.q.Steps().Generation
	if got := j.apply(&Rollback{Trainer: 0, Step: 0, Generation: generation + 1}); got.Err != nil {
		t.Fatal(got.Err)
	}
	if v := j.q.Overview().Sets[0]; v.Tasks != 5 || v.Done != 0 || v.Uncommitted != 0 {
		t.Errorf("after the rollback: expected 5 tasks to do, found %+v", v)
	}
}

// Readers of a table are not disturbed by its continuation, and a table has the same content if its parts are read together.
func TestExtendedTable(t *testing.T) {
	whole, segments := NewTable(0), []*Table{NewTable(0)}
	var readers sync.WaitGroup
	defer readers.Wait()
	for i := range 50 {
		var chunks []recordio.Index
		offset := int64(0)
		for c := range 1 + i%7 {
			ix := recordio.Index{Offset: offset, Size: uint32(10 * i), Records: uint32(c), Layout: 1, Compression: recordio.Compression(c % 2), Checksum: uint32(i * c)}
			chunks, offset = append(chunks, ix), ix.End()
		}
		f := File{Path: fmt.Sprint("/data/", i), Size: offset}
		before := segments[len(segments)-1]
		next := before.Extend()
		if err := errors.Join(next.Add(f, chunks), whole.Add(f, chunks)); err != nil {
			t.Fatal(err)
		}
		segments = append(segments, next)
		tasks := before.Tasks()
		readers.Go(func() {
			for task := range tasks {
				before.TaskChunks(task)
			}
			if before.Tasks() != tasks {
				t.Errorf("a table of %d tasks has %d", tasks, before.Tasks())
			}
		})
		for task := range whole.Tasks() {
			if got, want := next.TaskRanges(task), whole.TaskRanges(task); !reflect.DeepEqual(got, want) || !reflect.DeepEqual(next.TaskChunks(task), whole.TaskChunks(task)) {
				t.Fatalf("segment %d, task %d: expected %+v, found %+v", i, task, want, got)
			}
		}
	}
	read := NewTable(0)
	for i, next := range segments[1:] {
		first := segments[i].Chunks()
		part := next.Part(first, next.Chunks()-first)
		read = read.Extend()
		if err := read.AddPart(&part); err != nil {
			t.Fatal(err)
		}
	}
	if !reflect.DeepEqual(read.Files(), whole.Files()) || read.Records() != whole.Records() || !reflect.DeepEqual(read.TaskChunks(90), whole.TaskChunks(90)) {
		t.Error("the parts of the segments are another table")
	}
}

// The verifier refuses a pass of an online dataset that closes before the dataset, and appends that are impossible.
func TestVerifierOfOnlineDatasets(t *testing.T) {
	online := &set{id: 0, tasks: 1, online: true, name: "a", weight: 1}
	for name, write := range map[string]func(w *ledgerWriter){
		"pass closed before its dataset": func(w *ledgerWriter) { w.passOpened(0, 1); w.passClosed(0, 1, 1, 0) },
		"append after the close":         func(w *ledgerWriter) { w.closed(0); w.appended(0, 1, 1) },
		"closed twice":                   func(w *ledgerWriter) { w.closed(0); w.closed(0) },
		"no tasks":                       func(w *ledgerWriter) { w.appended(0, 0, 0) },
		"too many tasks":                 func(w *ledgerWriter) { w.appended(0, maxTasks, 1) },
		"another dataset":                func(w *ledgerWriter) { w.appended(1, 1, 1) },
	} {
		w := &ledgerWriter{}
		w.report(online)
		write(w)
		if err := NewVerifier().Add(1, w.take()); !errors.Is(err, ErrBadLedger) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
