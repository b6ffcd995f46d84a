package load

import (
	"context"
	"errors"

	"trainmaster/master"
	"trainmaster/master/netrpc/wire"
	"trainmaster/taskqueue"
)

// inProcess calls a master in the same process.
type inProcess struct {
	master  *master.Master
	id      string
	request taskqueue.Request
	held    [1]taskqueue.Result
	holds   bool
}

// InProcess returns a trainer that calls m directly.
func InProcess(m *master.Master, id string) Trainer { return &inProcess{master: m, id: id} }

func (t *inProcess) Join(ctx context.Context) error {
	s, err := t.master.Join(ctx, t.id, "")
	t.request = taskqueue.Request{Trainer: s.Ordinal, Incarnation: s.Incarnation, JobID: s.JobID, Want: true}
	return err
}

func (t *inProcess) Op(ctx context.Context) (bool, error) {
	r := &t.request
	r.Seq++
	r.Ack = r.Seq
	r.Finished = nil
	if t.holds {
		r.Finished = t.held[:]
	}
	reply, err := t.master.Next(ctx, r)
	if err != nil {
		return false, err
	}
	r.SeenCommit, r.SeenProof = reply.Commit, reply.CommitProof
	if t.holds = reply.Assignment != nil; t.holds {
		t.held[0] = taskqueue.Result{Token: reply.Assignment.Task.Token}
	}
	return counted(reply.Finishes), nil
}

func counted(finishes []taskqueue.FinishStatus) bool {
	return len(finishes) == 1 && finishes[0] == taskqueue.Counted
}

func (t *inProcess) Leave(ctx context.Context) error {
	return t.master.Leave(ctx, t.request.Trainer, t.request.Incarnation)
}

// joined is a trainer with a session, over a net/rpc connection of its own.
type joined struct {
	connection
	id      string
	request wire.NextRequest
	held    [1]taskqueue.Result
	holds   bool
}

// Joined returns a trainer that dials addr and sends the messages of package trainer.
func Joined(addr, id string) Trainer { return &joined{connection: connection{addr: addr}, id: id} }

func (t *joined) Join(ctx context.Context) error {
	if err := t.dial(ctx); err != nil {
		return err
	}
	var s wire.JoinReply
	if err := t.call("Join", wire.JoinRequest{ID: t.id}, &s); err != nil {
		return err
	}
	t.request = wire.NextRequest{Trainer: s.Trainer, JobID: s.JobID, Want: true}
	return nil
}

func (t *joined) Op(context.Context) (bool, error) {
	r := &t.request
	r.Seq++
	r.Ack = r.Seq
	r.Finished = nil
	if t.holds {
		r.Finished = t.held[:]
	}
	var reply wire.NextReply
	if err := t.call("Next", r, &reply); err != nil {
		return false, err
	}
	r.SeenCommit, r.SeenProof = reply.Commit, reply.CommitProof
	if t.holds = reply.Task.Index >= 0; t.holds {
		t.held[0] = taskqueue.Result{Token: reply.Task.Token}
	}
	return counted(reply.Finishes), nil
}

func (t *joined) Leave(context.Context) error {
	err := t.call("Leave", wire.LeaveRequest{Trainer: t.request.Trainer}, new(int))
	return errors.Join(err, t.close())
}

// plain is a client that knows GetTask and nothing else.
type plain struct {
	connection
	finished taskqueue.Task
}

// Plain returns a trainer that dials addr and calls GetTask.
func Plain(addr string) Trainer { return &plain{connection: connection{addr: addr}} }

func (t *plain) Join(ctx context.Context) error { return t.dial(ctx) }

// Op counts a finish if GetTask returned no error: no other trainer holds the task.
func (t *plain) Op(context.Context) (bool, error) {
	var task taskqueue.Task
	if err := t.call("GetTask", &t.finished, &task); err != nil {
		return false, err
	}
	counted := len(t.finished.Chunks) > 0
	t.finished = task
	return counted, nil
}

func (t *plain) Leave(context.Context) error { return t.close() }
