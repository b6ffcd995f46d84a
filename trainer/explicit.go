package trainer

import (
	"context"
	"errors"
	"fmt"
	"io"

	"trainmaster/master/netrpc/wire"
	"trainmaster/taskqueue"
)

// Errors of Next in a job of explicit commits. Each names the call that must come first.
var (
	// ErrCommitFirst is returned if all other tasks wait for a commit.
	ErrCommitFirst = errors.New("no further task before a commit: call Checkpoint")

	// ErrRollbackFirst is returned after a loss until a member of the new ring has called Rollback.
	ErrRollbackFirst = errors.New("a member of the ring was lost with a task: form a new ring and call Rollback")

	// ErrRolledBack is returned to a trainer of an earlier epoch.
	ErrRolledBack = errors.New("the ring was rolled back: drop all tasks, load LastStep and continue from it")

	// ErrNotExplicit is returned by the calls of explicit commits in another job.
	ErrNotExplicit = errors.New("this job has no explicit commits: start its master with --explicit-commit")
)

// Explicit reports whether the job has explicit commits.
func (c *Client) Explicit() bool { return c.explicit != nil }

// Base returns the number of records of a task that are in the loaded step or in a later step. Records begins after them.
func (c *Client) Base(task *taskqueue.Task) int64 {
	return c.explicit.Used(task.Token)
}

// Applied reports that step applied further records of a task, in the order of Records. A
// program may shuffle records only within a task, and always in the same way. Steps count from
// 1 and decrease only by a rollback. The last reported step is the step of the finish.
func (c *Client) Applied(task *taskqueue.Task, step uint64, records int) {
	c.explicit.Apply(task.Token, step, records)
}

// mustDo returns the error for the action that the last reply demands before the next task.
func (c *Client) mustDo() error {
	switch {
	case c.ready != nil:
	case c.wait == taskqueue.WaitCommit:
		return ErrCommitFirst
	case c.wait == taskqueue.WaitRollback:
		return ErrRollbackFirst
	}
	return nil
}

// LastStep returns the step to load, or 0 for a new model, and drops tasks of an older epoch.
// A trainer must call LastStep before its first Next.
func (c *Client) LastStep(ctx context.Context) (taskqueue.StepPlace, error) {
	if err := c.awaitRequest(ctx); err != nil {
		return taskqueue.StepPlace{}, err
	}
	reply, err := call[wire.StepReply](ctx, c.link, "LastStep", wire.LastStepRequest{Trainer: c.who})
	return c.applyStepReply(reply, err, "ask which step to load")
}

// Rollback begins a generation of the ring at step, which must be the last committed step. One member calls it. A repeated call has
// no effect.
func (c *Client) Rollback(ctx context.Context, step, generation uint64) (taskqueue.StepPlace, error) {
	if err := c.awaitRequest(ctx); err != nil {
		return taskqueue.StepPlace{}, err
	}
	reply, err := call[wire.StepReply](ctx, c.link, "Rollback", wire.StepRequest{Trainer: c.who, Generation: generation, Step: step})
	return c.applyStepReply(reply, err, fmt.Sprintf("roll back to step %d", step))
}

// awaitRequest waits for the request in progress, whose answer may be of an earlier epoch.
func (c *Client) awaitRequest(ctx context.Context) error {
	if c.explicit == nil {
		return ErrNotExplicit
	}
	if err := c.collect(ctx); err != nil && !errors.Is(err, ErrRolledBack) {
		return err
	}
	return nil
}

// applyStepReply applies an answer of the master.
func (c *Client) applyStepReply(reply *wire.StepReply, err error, what string) (taskqueue.StepPlace, error) {
	if err != nil {
		return taskqueue.StepPlace{}, c.stepRefused(err, what)
	}
	p := reply.Place
	if c.session.Adopt(p.Epoch) {
		c.ready = nil
		c.explicit.Drop()
		clear(c.stamps)
		c.run()
	}
	c.explicit.Generation = p.Generation
	return p, nil
}

func (c *Client) stepRefused(err error, what string) error {
	switch {
	case errors.Is(err, wire.ErrRejoin):
		return ErrSessionLost
	case errors.Is(err, wire.ErrOtherGeneration):
		return fmt.Errorf("%s: %w: %w", what, ErrRolledBack, err)
	case errors.Is(err, wire.ErrMemberLost):
		return fmt.Errorf("%s: %w: %w", what, ErrRollbackFirst, err)
	case errors.Is(err, wire.ErrJobFinished), errors.Is(err, io.EOF):
		c.ended = true
		return io.EOF
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Checkpoint has the functions that save a step of the model.
type Checkpoint struct {
	Step    uint64
	Save    func(context.Context) error // stores this member's part of the model durably
	Publish func(context.Context) error // names the step as the latest; nil where another member does
}

// Checkpoint saves a step: it calls Save, reports to the master, waits for the parts of all
// members and the commit of the step, and calls Publish. Every member of the ring must call it
// for the same step. After a crash between two of these actions, LastStep returns the previous
// step, or this step with all its parts saved.
func (c *Client) Checkpoint(ctx context.Context, p Checkpoint) error {
	if err := p.Save(ctx); err != nil {
		return fmt.Errorf("save step %d: %w", p.Step, err)
	}
	if err := c.Flushed(ctx, p.Step); err != nil {
		return err
	}
	if err := c.Commit(ctx, p.Step); err != nil {
		return err
	}
	if p.Publish == nil {
		return nil
	}
	if err := p.Publish(ctx); err != nil {
		return fmt.Errorf("publish step %d: %w", p.Step, err)
	}
	return nil
}

// Flushed reports finished tasks, then that this member saved its part of a step.
func (c *Client) Flushed(ctx context.Context, step uint64) error {
	if c.explicit == nil {
		return ErrNotExplicit
	}
	if err := c.sayAll(ctx); err != nil {
		return err
	}
	_, err := call[wire.StepReply](ctx, c.link, "Flushed", wire.FlushedRequest{Trainer: c.who, Generation: c.explicit.Generation, Step: step, Positions: c.explicit.Positions(step)})
	if err != nil {
		return c.stepRefused(err, fmt.Sprintf("flush step %d", step))
	}
	return nil
}

// Commit waits until every member has flushed a step, and it is committed.
func (c *Client) Commit(ctx context.Context, step uint64) error {
	if c.explicit == nil {
		return ErrNotExplicit
	}
	for {
		reply, err := call[wire.StepReply](ctx, c.link, "Commit", wire.StepRequest{Trainer: c.who, Generation: c.explicit.Generation, Step: step})
		if err != nil {
			return c.stepRefused(err, fmt.Sprintf("commit step %d", step))
		}
		if reply.Done {
			c.explicit.Committed(step)
			return nil
		}
	}
}
