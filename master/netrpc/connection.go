package netrpc

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/master"
	"trainmaster/master/netrpc/wire"
	"trainmaster/taskqueue"
)

// connection is the service RPCServer of one connection.
type connection struct {
	ctx    context.Context // ends with the connection
	server *Server
	name   string
	peer   string // its address

	plain sync.Mutex // one GetTask at a time

	mu     sync.Mutex
	own    wire.Trainer // its session without a join; zero until its first task
	joined wire.Trainer // last trainer answered on it; zero if there was none

	underWay int       // requests that are read and not answered
	since    time.Time // of the last answer, or of the handshake
}

func (c *connection) requested() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.underWay++
}

func (c *connection) answered() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.underWay--
	c.since = time.Now()
}

// idleFor reports whether the connection has had no session and no request under way for d.
func (c *connection) idleFor(d time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	//guard:idle-connection-closed
	return c.own.Ordinal == 0 && c.joined.Ordinal == 0 && c.underWay == 0 && time.Since(c.since) >= d
}

func (c *connection) isSession(t wire.Trainer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.own = t
}

func (c *connection) speaksFor(t wire.Trainer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.joined = t
}

// observe records a trainer whose request was answered. A refusal does not prove that the session exists: a forged
// request would exempt its connection from the idle limit.
func (c *connection) observe(t wire.Trainer, err error) {
	//guard:refused-trainers-not-noted
	if err == nil {
		c.speaksFor(t)
	}
}

func (c *connection) speakers() (own, joined wire.Trainer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.own, c.joined
}

// recovered makes a panic the error of the one call that it happened in. Methods defer it.
func (c *connection) recovered(method string, err *error) {
	if r := recover(); r != nil {
		c.server.Log.WithFields(logrus.Fields{"method": method, "panic": r, "stack": string(debug.Stack())}).Error("a call panicked")
		//guard:panic-fails-call
		*err = fmt.Errorf("internal error in %s: %v", method, r)
	}
}

// ReportDataset registers the files that Paths (paths and globs) stand for.
func (c *connection) ReportDataset(Paths []string, _ *int) (err error) {
	defer c.recovered("ReportDataset", &err)
	return words(c.server.Master.ReportDataset(c.ctx, Paths))
}

// GetTask says what this connection finished, and gets a task or a wait answer.
func (c *connection) GetTask(finished *taskqueue.Task, result *taskqueue.Task) (err error) {
	defer c.recovered("GetTask", &err)
	c.plain.Lock()
	defer c.plain.Unlock()
	own, _ := c.speakers()
	ask := taskqueue.PlainAsk{Connection: c.name, Want: true, Trainer: own.Ordinal, Incarnation: own.Incarnation}
	if finished != nil && finished.Index >= 0 && len(finished.Chunks) > 0 {
		ask.Finished, ask.Index, ask.Token, ask.Offsets = true, finished.Index, finished.Token, uint64(finished.Chunks[0].Index.Offset)
	}
	reply, err := c.server.Master.PlainAsk(c.ctx, &ask)
	if err != nil {
		return words(err)
	}
	if reply.Ordinal != 0 { // the session begins with the first task
		c.isSession(wire.Trainer{Ordinal: reply.Ordinal, Incarnation: reply.Incarnation})
	}
	*result = taskqueue.Task{Index: -1}
	if reply.Assignment != nil {
		*result = reply.Assignment.Task
	}
	return nil
}

// Join begins a session.
func (c *connection) Join(req wire.JoinRequest, reply *wire.JoinReply) (err error) {
	defer c.recovered("Join", &err)
	if job := c.server.Master.Job(); req.Job != "" && job != "" && req.Job != job {
		return words(fmt.Errorf("%w of job %q: this master is of job %q", master.ErrNotLeader, req.Job, job))
	}
	s, err := c.server.Master.JoinAs(c.ctx, master.Joining{ID: req.ID, Address: req.Address, Control: req.Control, Peer: c.peer, Window: req.Window})
	if err != nil {
		return words(err)
	}
	reply.Trainer = wire.Trainer{Ordinal: s.Ordinal, Incarnation: s.Incarnation}
	reply.JobID, reply.Sync, reply.Explicit, reply.TTL = s.JobID, s.Sync, s.Explicit, s.TTL
	reply.Cuts, reply.Epoch, reply.Window = s.Cuts, s.Epoch, s.Window
	c.speaksFor(reply.Trainer)
	return nil
}

// Next reports the finished tasks and requests a task.
func (c *connection) Next(req wire.NextRequest, reply *wire.NextReply) (err error) {
	defer c.recovered("Next", &err)
	if req.Seq == 0 {
		return errors.New("seq: expected request numbers from 1, found 0")
	}
	r, err := c.server.Master.Next(c.ctx, &taskqueue.Request{
		Trainer: req.Ordinal, Incarnation: req.Incarnation, Seq: req.Seq, Ack: req.Ack, Held: req.Held,
		Finished: req.Finished, Want: req.Want, Most: req.Most, Progress: req.Progress, SeenCommit: req.SeenCommit, SeenProof: req.SeenProof, JobID: req.JobID, Epoch: req.Epoch, Accepts: req.Accepts,
	})
	c.observe(req.Trainer, err)
	if err != nil {
		return words(err)
	}
	reply.Task.Index = -1
	reply.Finishes, reply.Commit, reply.CommitProof, reply.WaitFor = r.Finishes, r.Commit, r.CommitProof, r.WaitFor
	if r.Assignment != nil {
		reply.Task, reply.Stamps, reply.Base = r.Assignment.Task, r.Assignment.Stamps, r.Assignment.Base
		reply.HyperParameters, reply.From = r.Assignment.HyperParameters, r.Assignment.From
		if round := r.Assignment.Round; round != nil {
			reply.Round = *round
		}
	}
	for _, more := range r.More {
		reply.More = append(reply.More, wire.FurtherTask{Task: more.Task, Stamps: more.Stamps, Base: more.Base})
	}
	return nil
}

// TaskFailed gives a task back.
func (c *connection) TaskFailed(req wire.TaskFailedRequest, _ *int) (err error) {
	defer c.recovered("TaskFailed", &err)
	text := req.Error
	if text == "" {
		text = "the trainer gave no reason"
	}
	if req.Ordinal == 0 {
		c.plain.Lock()
		defer c.plain.Unlock()
		own, _ := c.speakers()
		_, err := c.server.Master.PlainAsk(c.ctx, &taskqueue.PlainAsk{
			Connection: c.name, Trainer: own.Ordinal, Incarnation: own.Incarnation, Finished: true, Index: req.Index, Result: taskqueue.Result{Token: req.Token, Error: text},
		})
		return words(err)
	}
	return words(c.server.Master.Fail(c.ctx, req.Ordinal, req.Incarnation, req.Token, text))
}

// Heartbeat keeps a session alive.
func (c *connection) Heartbeat(req wire.HeartbeatRequest, reply *int) (err error) {
	defer c.recovered("Heartbeat", &err)
	orders, err := c.server.Master.Heartbeat(c.ctx, &taskqueue.Heartbeat{
		Trainer: req.Ordinal, Incarnation: req.Incarnation, Moving: req.Moving, Held: req.Held, Progress: req.Progress,
	})
	c.observe(req.Trainer, err)
	if *reply = wire.HeartbeatGoOn; orders.Draining {
		*reply = wire.HeartbeatDraining
	}
	for _, stop := range orders.Stops {
		//guard:netrpc-stop-names-its-task
		*reply |= wire.HeartbeatStop(slices.Index(req.Held, stop))
	}
	return words(err)
}

// Leave ends a session in order.
func (c *connection) Leave(req wire.LeaveRequest, _ *int) (err error) {
	defer c.recovered("Leave", &err)
	leave := c.server.Master.Leave
	if req.Lost {
		leave = c.server.Master.Lost
	}
	err = leave(c.ctx, req.Ordinal, req.Incarnation)
	c.speaksFor(wire.Trainer{})
	return words(err)
}

// RequestSaveModel elects one trainer to save the model.
func (c *connection) RequestSaveModel(req wire.SaveModelRequest, reply *wire.SaveModelReply) (err error) {
	defer c.recovered("RequestSaveModel", &err)
	reply.Elected, err = c.server.Master.SaveModel(c.ctx, req.Ordinal, req.Incarnation)
	return words(err)
}

// Staged reports a staged gradient and waits for its step.
func (c *connection) Staged(req wire.StagedRequest, reply *wire.StagedReply) (err error) {
	defer c.recovered("Staged", &err)
	reply.Committed, reply.Included, err = c.server.Master.Staged(c.ctx, req.Ordinal, req.Incarnation, req.Version, req.Records, req.Epoch)
	return words(err)
}

// words maps errors of the master to the errors of package wire, which clients know.
func words(err error) error {
	if err == nil {
		return nil
	}
	for _, row := range []struct{ is, say error }{
		{master.ErrNotLeader, wire.ErrNotLeader},
		{master.ErrNotStored, wire.ErrNotStored},
		{taskqueue.ErrTooManySessions, wire.ErrNotStored}, // clients repeat the request
		{taskqueue.ErrFenced, wire.ErrNotLeader},
		{taskqueue.ErrUnknownOutcome, wire.ErrNotLeader},
		{master.ErrJobFinished, wire.ErrJobFinished},
		{master.ErrJobFailed, wire.ErrJobFailed},
		{master.ErrRejoin, wire.ErrRejoin},
		{master.ErrDrained, wire.ErrDrained},
		{taskqueue.ErrOtherDataset, wire.ErrOtherDataset},
		{master.ErrRolledBack, wire.ErrRolledBack},
		{taskqueue.ErrOtherGeneration, wire.ErrOtherGeneration},
		{taskqueue.ErrOtherStep, wire.ErrOtherStep},
		{taskqueue.ErrMemberLost, wire.ErrMemberLost},
		{taskqueue.ErrNotExplicit, wire.ErrNotExplicit},
	} {
		switch {
		case !errors.Is(err, row.is):
		case strings.HasPrefix(err.Error(), row.say.Error()):
			return err
		default:
			return fmt.Errorf("%w: %w", row.say, err)
		}
	}
	return err
}
