package sim

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"trainmaster/master/committer"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

// Histories of an online dataset. Its files appear one after another. The leader appends each of them as a segment, with its part in the
// modelled etcd, and closes the dataset after the last file. The next leader continues.

const onlineReport = "online"

// online selects an online dataset.
func (p *plan) online(rng *rand.Rand) {
	for tasks := 0; tasks < p.tasks; {
		tasks = min(p.tasks, tasks+1+rng.IntN(1+p.tasks/3))
		p.segments = append(p.segments, segment{tasks: tasks, appears: time.Duration(rng.Int64N(int64(p.quiet)))})
	}
	slices.SortFunc(p.segments, func(a, b segment) int { return a.tasks - b.tasks })
	if rng.IntN(2) == 0 {
		p.faults.between = 0.1 * rng.Float64()
	}
}

// segment is a file of an online dataset.
type segment struct {
	tasks   int           // of the dataset with the segment
	appears time.Duration // a file before it may appear later
}

func segmentPath(i int) string { return fmt.Sprintf("/data/part-%05d", i) }

// chunksOf returns n chunks of 100 bytes.
func chunksOf(n int) (chunks []recordio.Index, size int64) {
	chunks = make([]recordio.Index, n)
	for i := range chunks {
		chunks[i] = recordio.Index{Offset: size, Size: 100, Records: 10, Layout: recordio.First}
		size = chunks[i].End()
	}
	return chunks, size
}

// makeOnline makes the tables of the dataset as it grows.
func (w *world) makeOnline() error {
	w.table = taskqueue.NewTable(0)
	w.report = &taskqueue.Report{
		Digest: sha256.Sum256([]byte("digest")), ReportID: onlineReport, Table: w.table,
		SetSpec: taskqueue.SetSpec{Online: true, Shuffle: w.plan.shuffle, Seed: w.config.Seed},
	}
	w.table.Group(1)
	for i, s := range w.plan.segments {
		w.table = w.table.Extend()
		chunks, size := chunksOf(s.tasks - w.table.Tasks())
		if err := w.table.Add(taskqueue.File{Path: segmentPath(i), Size: size}, chunks); err != nil {
			return err
		}
		w.tables = append(w.tables, w.table)
	}
	return nil
}

// grow appends the files that have appeared, and closes the dataset after the last file, until the term ends.
func (n *node) grow(d *committer.Committer) {
	ctx, cancel := context.WithCancelCause(context.Background())
	others := n.endControl
	n.endControl = func(cause error) { others(cause); cancel(cause) }
	d.Await(n.awaitAnswer)
	n.beside(func(p *process) {
		n.components = append(n.components, p)
		ctx := context.WithValue(ctx, sleeper{}, p)
		for n.driven == d {
			if err := n.appendNext(ctx, d); err != nil {
				n.note("%s: nothing appended: %v", n.name, err)
			}
			p.sleep(n.between(50*time.Millisecond, time.Second))
		}
		n.components = slices.DeleteFunc(n.components, func(other *process) bool { return other == p })
	})
}

// appendNext appends the next file, or closes the dataset. It does the same as AppendDataset and CloseDataset of package master.
func (n *node) appendNext(ctx context.Context, d *committer.Committer) error {
	w := n.world
	name := w.report.WithDefaults().Name
	var have *taskqueue.Table
	var report string
	var parts int
	var digest [32]byte
	var growing error
	if err := d.Read(ctx, func(q *taskqueue.Queue) {
		var set int
		if set, growing = q.Growing(name); growing == nil {
			have = q.Table(set)
			parts, report, digest = q.Parts(set)
		}
	}); err != nil || growing != nil {
		return err
	}
	w.check.hasSegments(n, have)
	next := len(have.Files())
	if next == len(w.plan.segments) {
		_, err := d.Submit(ctx, &taskqueue.CloseSet{Name: name})
		return err
	}
	if n.now < w.plan.segments[next].appears {
		return nil
	}
	table := have.Extend()
	chunks, size := chunksOf(w.plan.segments[next].tasks - have.Tasks())
	if err := table.Add(taskqueue.File{Path: segmentPath(next), Size: size}, chunks); err != nil {
		return err
	}
	encoded, err := committer.TableParts(w.codec.encode, table, have.Chunks())
	if err != nil {
		return err
	}
	var writes []taskqueue.Write
	for i, part := range encoded {
		writes = append(writes, taskqueue.Write{Key: partKey(report, parts+i), Value: part})
	}
	_, err = d.Do(ctx, committer.Request{
		Parts: &committer.Parts{Writes: writes},
		Event: &taskqueue.AppendSegment{Name: name, After: digest, Parts: len(encoded), PartsDigest: committer.PartsDigest(true, digest, encoded), Table: table},
	})
	return err
}

func partKey(report string, i int) string {
	return fmt.Sprintf("/task_queues/tasks/%s/%04d", report, i)
}

// segmentBook has the segments as the ledger shows them.
type segmentBook struct {
	appended  int
	closed    bool
	term      int64 // of the last append
	continued int   // appends in a later term than the append before
}

// hasSegments checks that the table of a leader has the segments in the order of their files. A leader that has lost the lock without
// noticing it may lack the last ones.
func (c *check) hasSegments(n *node, t *taskqueue.Table) {
	files := len(t.Files())
	leads := n.lock != nil && c.world.etcd.first(lockPrefix).GetCreateRevision() == n.lock.term.Revision
	if leads && files != c.segments.appended || files > c.segments.appended {
		c.breaks("a segment is appended once", "%d files, %d segments in the ledger", files, c.segments.appended)
		return
	}
	if files == 0 {
		return
	}
	want := c.world.tables[files-1]
	if t.Tasks() != want.Tasks() {
		c.breaks("a table has the segments", "%d tasks of %d files, expected %d", t.Tasks(), files, want.Tasks())
		return
	}
	for i := range want.Tasks() {
		if got, want := t.TaskChunks(i)[0], want.TaskChunks(i)[0]; got.Path != want.Path || got.Index != want.Index {
			c.breaks("a table has the segments", "task %d: %+v, expected %+v", i, got, want)
		}
	}
}

// segment checks an append or a close.
func (b *segmentBook) segment(w *world, next *stored, ev *taskqueue.LedgerEvent) {
	if ev.Kind == taskqueue.EventClosed {
		if b.closed || b.appended != len(w.plan.segments) {
			w.breaks("a dataset is closed after its last file", "%d of %d segments, closed before: %v", b.appended, len(w.plan.segments), b.closed)
		}
		b.closed = true
		return
	}
	before := 0
	if b.appended > 0 {
		before = w.plan.segments[b.appended-1].tasks
	}
	if b.closed || b.appended == len(w.plan.segments) || ev.Tasks != w.plan.segments[b.appended].tasks-before {
		w.breaks("a segment is appended once", "%d tasks after %d segments with %d tasks, closed: %v", ev.Tasks, b.appended, before, b.closed)
		return
	}
	if b.term != 0 && b.term != next.LockRevision {
		b.continued++
	}
	b.appended, b.term = b.appended+1, next.LockRevision
}

// putParts notes the time that a leader has written parts.
func (c *check) putParts(k *lock, took time.Duration, err error) {
	t := c.heard[k.term.Revision]
	if err != nil {
		t.refused += took
		return
	}
	t.parts += took
}

// parts returns parts of the online dataset from the modelled etcd.
func (s *store) parts(report string, first, n int) (parts [][]byte, err error) {
	_, err = s.link.read(func() answer {
		parts = nil
		for i := range n {
			parts = append(parts, s.link.etcd.keys[partKey(report, first+i)].GetValue())
		}
		return answer{}
	})
	return parts, err
}

// putPart writes a part until it is stored, or the time to live of the lease has passed.
func (k *lock) putPart(ctx context.Context, expectMod int64, part taskqueue.Write) error {
	for began := k.link.now; ; k.link.sleep(50 * time.Millisecond) {
		a, err := k.link.txn(&pb.TxnRequest{Compare: k.term.Compares(expectMod), Success: []*pb.RequestOp{k.term.Op(&part)}})
		switch {
		case err == nil && a.ok:
			return nil
		case err == nil, errors.Is(err, errLeaseGone):
			return taskqueue.ErrFenced
		case errors.Is(err, errNoSpace):
			return taskqueue.ErrStoreFull
		case ctx.Err() != nil || k.link.now-began > leaseTTL:
			return taskqueue.ErrUnknownOutcome
		}
	}
}
