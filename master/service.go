package master

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"trainmaster/dataset"
	"trainmaster/master/committer"
	"trainmaster/master/trainercontrol"
	"trainmaster/taskqueue"
)

// Assignment is a dispatched task with what its trainer needs to read it.
type Assignment struct {
	table  *taskqueue.Table
	Task   taskqueue.Task
	Stamps []dataset.Stamp  // of the files of Task.Chunks, in the order of their first chunk
	Base   int64            // the record of the task to begin with
	Round  *taskqueue.Round // of an evaluation task, without its metrics
	// HyperParameters are of a training task; nil: the job has none. They must not be changed.
	HyperParameters map[string]float64
	// From has the model that the trainer begins a training task with; zero: its own.
	From taskqueue.ModelSource
}

// Ranges returns the records of the task, by file.
func (a *Assignment) Ranges() []taskqueue.RecordRange { return a.table.TaskRanges(a.Task.Index) }

// Reply is the answer to a request for a task: a task, or none yet (ask again). The end of the job is the
// error ErrJobFinished or ErrJobFailed.
type Reply struct {
	Assignment  *Assignment       // nil: none yet, or none wanted
	More        []*Assignment     // further tasks of a request that wants several
	WaitFor     taskqueue.WaitFor // why there is none yet
	Finishes    []taskqueue.FinishStatus
	Ordinal     taskqueue.Ordinal // of a connection that did not join
	Incarnation uint64
	Commit      uint64 // number of the last commit
	CommitProof []byte // to be echoed with it; nil: there is none yet
}

// Session is what a trainer gets that joins.
type Session struct {
	Ordinal     taskqueue.Ordinal
	Incarnation uint64
	JobID       [16]byte
	Sync        bool
	Explicit    bool          // commits: see taskqueue.StepCommit
	Cuts        bool          // see taskqueue.CutBegin
	Epoch       uint32        // of the job
	Window      int           // tasks that the trainer may hold
	TTL         time.Duration // how long a silent session lasts; 0: the default
}

// Joining describes a trainer that joins.
type Joining struct {
	ID      string
	Address string // for operators; "": Peer
	Control string // of its service TrainerControl, ":port" or "ip:port"; "": it has none
	Peer    string // address of its connection, "ip:port"
	Window  int    // tasks that it wants to hold; 0: the default
}

// ErrNoTasks is returned for requests of trainers and for datasets if the job has no tasks.
var ErrNoTasks = errors.New("the job has no tasks")

// dispatching returns the term of a leader that dispatches tasks.
func (m *Master) dispatching() (*term, error) {
	//guard:job-without-tasks-refuses-trainers
	if m.config.NoTasks {
		return nil, fmt.Errorf("%w: its master has no task manager (--need-task-manager=false)", ErrNoTasks)
	}
	return m.leading()
}

// Join begins a session of a trainer without an address for commands.
func (m *Master) Join(ctx context.Context, id, address string) (Session, error) {
	return m.JoinAs(ctx, Joining{ID: id, Address: address})
}

// JoinAs begins a session.
func (m *Master) JoinAs(ctx context.Context, who Joining) (Session, error) {
	t, err := m.dispatching()
	if err != nil {
		return Session{}, err
	}
	if err := validateID(who.ID); err != nil {
		return Session{}, err
	}
	join := &taskqueue.Join{ID: who.ID, Address: cmp.Or(who.Address, who.Peer), Window: who.Window}
	if n := len(join.Address); n > maxID {
		return Session{}, invalidf("trainer address: expected at most %d characters, found %d", maxID, n)
	}
	if who.Control != "" {
		if n := len(who.Control); n > maxID {
			return Session{}, invalidf("trainer control address: expected at most %d characters, found %d", maxID, n)
		}
		at, err := trainercontrol.Address(who.Control, who.Peer, m.config.ControlHosts)
		if err != nil {
			return Session{}, invalidf("%v", err)
		}
		join.Control = at.String()
	}
	a, err := t.Submit(ctx, join)
	if err != nil {
		return Session{}, err
	}
	return Session{Ordinal: a.Ordinal, Incarnation: a.Incarnation, JobID: t.JobID(), Sync: m.config.Sync, Explicit: m.config.Queue.ExplicitCommit, Cuts: m.config.Queue.Cuts, Epoch: a.Epoch, Window: a.Window, TTL: m.config.Queue.SessionTTL}, nil
}

const maxID = 200

// ErrInvalid is wrapped by the error of a request with an invalid value.
var ErrInvalid = errors.New("invalid request")

type invalidError struct{ text string }

func invalidf(format string, args ...any) error { return &invalidError{fmt.Sprintf(format, args...)} }

func (e *invalidError) Error() string        { return e.text }
func (e *invalidError) Is(target error) bool { return target == ErrInvalid }

// validateID accepts what can be a part of a key and of a line in a log.
func validateID(id string) error {
	if id == "" || len(id) > maxID {
		return invalidf("trainer id: expected 1 to %d characters, found %d", maxID, len(id))
	}
	for _, r := range id {
		if r <= ' ' || r == 0x7f || r == '/' || r == '\uFFFD' {
			return invalidf("trainer id %q: expected no spaces, slashes or control characters", id)
		}
	}
	return nil
}

// Next accepts the finished tasks of a joined trainer and assigns a task if requested. A trainer that holds no task
// waits up to 10 s for a task; a prefetch is answered immediately.
func (m *Master) Next(ctx context.Context, r *taskqueue.Request) (Reply, error) {
	t, err := m.leading()
	if err != nil {
		return Reply{}, err
	}
	//guard:request-finishes-limit
	if n := len(r.Finished); n > MaxFinished {
		return Reply{}, invalidf("finished: expected at most %d tasks, found %d", MaxFinished, n)
	}
	//guard:request-held-limit
	if n := len(r.Held); n > MaxHeld {
		return Reply{}, invalidf("held: expected at most %d tasks, found %d", MaxHeld, n)
	}
	a, err := t.Do(ctx, committer.Request{Event: r, Waits: len(r.Held) == 0})
	if err != nil {
		return Reply{}, err
	}
	return t.assignment(ctx, a)
}

// Bounds of the lists of a request or a heartbeat of a joined trainer.
const (
	MaxHeld     = taskqueue.MaxWindow // tasks that are held, or continued
	MaxFinished = 16                  // it bounds the writes of a request: see batchSlack
)

// RefuseMetric notes a metric that is not finite: its result was refused.
func (m *Master) RefuseMetric(ctx context.Context, ev *taskqueue.RefuseMetric) error {
	return m.send(ctx, ev)
}

// Fail takes back a task that a joined trainer could not train.
func (m *Master) Fail(ctx context.Context, o taskqueue.Ordinal, incarnation uint64, token taskqueue.Token, text string) error {
	return m.send(ctx, &taskqueue.Request{Trainer: o, Incarnation: incarnation, Finished: []taskqueue.Result{{Token: token, Error: text}}})
}

// PlainAsk does the same as Next for a connection that did not join.
func (m *Master) PlainAsk(ctx context.Context, r *taskqueue.PlainAsk) (Reply, error) {
	t, err := m.dispatching()
	if err != nil {
		return Reply{}, err
	}
	a, err := t.Do(ctx, committer.Request{Event: r, Waits: true})
	if err != nil {
		return Reply{}, err
	}
	return t.assignment(ctx, a)
}

// assignment makes the reply to an ask of its answer.
func (t *term) assignment(ctx context.Context, a taskqueue.Answer) (Reply, error) {
	last, proof := t.Proven()
	r := Reply{Finishes: a.Finishes, Ordinal: a.Ordinal, Incarnation: a.Incarnation, Commit: last, CommitProof: proof, WaitFor: a.WaitFor}
	switch a.Kind {
	case taskqueue.AnswerTask:
		r.Assignment = t.assigned(a)
		for _, more := range a.More {
			r.More = append(r.More, t.assigned(more))
		}
	case taskqueue.AnswerEnded:
		reason := cmp.Or(a.Reason, PassesDone)
		if a.SetAside > 0 {
			reason += fmt.Sprintf("; tasks set aside, whose records were not trained: %d", a.SetAside)
		}
		return r, fmt.Errorf("%w: %s", ErrJobFinished, reason)
	case taskqueue.AnswerFailed:
		return r, t.failure(ctx)
	case taskqueue.AnswerRejoin:
		return r, ErrRejoin
	case taskqueue.AnswerDrained:
		return r, ErrDrained
	case taskqueue.AnswerRolledBack:
		return r, rolledBack(a.Place)
	}
	return r, nil
}

// assigned returns the task of an answer.
func (t *term) assigned(a taskqueue.Answer) *Assignment {
	table := t.Table(a.Set)
	files := table.TaskFiles(a.Index)
	out := &Assignment{
		table:  table,
		Task:   taskqueue.Task{Index: a.Index, Chunks: table.TaskChunks(a.Index), Token: a.Token},
		Stamps: make([]dataset.Stamp, len(files)),
		Base:   a.Base,
		Round:  a.Round,

		HyperParameters: a.HyperParameters,
		From:            a.From,
	}
	for i, f := range files {
		if dataset.IsRange(f.Path) {
			continue // no file to compare
		}
		out.Stamps[i] = dataset.Stamp{Size: f.Size, ModTime: f.ModTime, ETag: f.ETag}
	}
	return out
}

// failure returns ErrJobFailed with the reason.
func (t *term) failure(ctx context.Context) error {
	reason := ""
	if err := t.Read(ctx, func(q *taskqueue.Queue) { _, reason = q.Status() }); err != nil {
		return err
	}
	return fmt.Errorf("%w: %s", ErrJobFailed, reason)
}

// Orders are the requests of the master to a trainer, in the answer to a heartbeat.
type Orders struct {
	Draining bool              // the trainer gets no more tasks, and is to leave
	Stops    []taskqueue.Token // dispatches to give up
	Late     []taskqueue.Token // more than half of their time has passed
	Evaluate *Assignment       // task of a round of the trainer; nil: none
}

// OpenStream adds a stream for commands to a trainer, see [trainercontrol.Streams.Open].
func (m *Master) OpenStream(trainer taskqueue.Ordinal, incarnation uint64, send func([]trainercontrol.Command), ended func()) (release func()) {
	return m.config.Streams.Open(trainer, incarnation, send, ended)
}

// Heartbeat keeps a session alive. If the job has failed, it returns ErrJobFailed.
func (m *Master) Heartbeat(ctx context.Context, h *taskqueue.Heartbeat) (Orders, error) {
	t, err := m.leading()
	if err != nil {
		return Orders{}, err
	}
	for field, tokens := range map[string][]taskqueue.Token{"moving": h.Moving, "held": h.Held} {
		if n := len(tokens); n > MaxHeld {
			return Orders{}, invalidf("%s: expected at most %d tasks, found %d", field, MaxHeld, n)
		}
	}
	a, err := t.Submit(ctx, h)
	if err == nil && a.Kind == taskqueue.AnswerFailed {
		err = t.failure(ctx)
	}
	orders := Orders{Draining: a.Draining, Stops: a.Stops, Late: a.Late}
	if err == nil && a.Kind == taskqueue.AnswerTask {
		reply, err := t.assignment(ctx, a)
		orders.Evaluate = reply.Assignment
		return orders, err
	}
	return orders, err
}

// Leave ends a session in order.
func (m *Master) Leave(ctx context.Context, o taskqueue.Ordinal, incarnation uint64) error {
	return m.send(ctx, &taskqueue.Leave{Trainer: o, Incarnation: incarnation})
}

// Lost ends the session of a trainer whose process has died.
func (m *Master) Lost(ctx context.Context, o taskqueue.Ordinal, incarnation uint64) error {
	return m.send(ctx, &taskqueue.Died{Trainer: o, Incarnation: incarnation})
}

// Disconnected says that the connections of trainers are gone. It returns when all of it is committed, or the term has ended: nothing else
// ends a session without heartbeats.
func (m *Master) Disconnected(gone ...taskqueue.Disconnected) {
	if len(gone) == 0 {
		return
	}
	over := m.TermDone()
	t, err := m.leading()
	if err != nil {
		return
	}
	var committed sync.WaitGroup
	for _, ev := range gone { // in few batches
		committed.Go(func() {
			for {
				_, err := t.Submit(context.Background(), &ev)
				switch {
				case err == nil, errors.Is(err, ErrNotLeader), errors.Is(err, ErrRejoin):
					return
				//guard:end-of-connection-repeated
				case !errors.Is(err, committer.ErrNotStored):
					m.config.Log.WithError(err).Warn("end of a connection not committed: its tasks wait for their timeout")
					return
				}
				t.Clock().Wait(context.Background(), over, disconnectedPause)
			}
		})
	}
	committed.Wait()
}

// disconnectedPause is the pause before the end of a connection is committed again.
const disconnectedPause = time.Second

// Undelivered says that the answer with a task could not be written.
func (m *Master) Undelivered(ctx context.Context, o taskqueue.Ordinal, incarnation uint64, token taskqueue.Token) error {
	return m.send(ctx, &taskqueue.Undelivered{Trainer: o, Incarnation: incarnation, Token: token})
}

// SaveModel elects the caller to save the model, unless another one was.
func (m *Master) SaveModel(ctx context.Context, o taskqueue.Ordinal, incarnation uint64) (elected bool, err error) {
	t, err := m.leading()
	if err != nil {
		return false, err
	}
	a, err := t.Submit(ctx, &taskqueue.SaveModel{Trainer: o, Incarnation: incarnation, Lease: taskqueue.Clock(saveLease / time.Millisecond)})
	return a.Granted, err
}

// Staged reports that all shards hold the caller's gradients, computed at version from the given number of records. 0
// records means that a shard refused the gradients because that version is past. Staged waits until the step is
// committed and returns the last committed version; if this is still version, the caller must ask again. included
// reports whether the gradients are in version+1; otherwise they came too late. A nonzero epoch is the epoch of the
// caller: ErrRolledBack if the job is at another epoch.
func (m *Master) Staged(ctx context.Context, o taskqueue.Ordinal, incarnation, version uint64, records int, epoch uint32) (committed uint64, included bool, err error) {
	t, err := m.leading()
	if err != nil {
		return 0, false, err
	}
	ev := &taskqueue.StageGradients{By: taskqueue.Contributor{Ordinal: o, Incarnation: incarnation, Records: records}, Version: version, Epoch: epoch}
	a, err := t.Wait(ctx, ev)
	switch {
	case err != nil:
		return 0, false, err
	case a.Kind == taskqueue.AnswerRejoin:
		return 0, false, ErrRejoin
	}
	return a.Version, a.Included, nil
}

// Overview summarizes the committed state.
func (m *Master) Overview(ctx context.Context) (taskqueue.Overview, error) {
	var v taskqueue.Overview
	if err := m.inspect(ctx, func(q *taskqueue.Queue) { v = q.Overview() }); err != nil {
		return taskqueue.Overview{}, err
	}
	return v, nil
}

// PendingTasks lists the dispatched tasks and those to be dispatched again.
func (m *Master) PendingTasks(ctx context.Context) ([]taskqueue.PendingTask, error) {
	var list []taskqueue.PendingTask
	if err := m.inspect(ctx, func(q *taskqueue.Queue) { list = q.PendingTasks() }); err != nil {
		return nil, err
	}
	return list, nil
}

func (m *Master) inspect(ctx context.Context, look func(*taskqueue.Queue)) error {
	t, err := m.leading()
	if err != nil {
		return err
	}
	return t.Read(ctx, look)
}

func (m *Master) send(ctx context.Context, ev taskqueue.Event) error {
	t, err := m.leading()
	if err != nil {
		return err
	}
	_, err = t.Submit(ctx, ev)
	return err
}
