package master

import (
	"context"
	"fmt"

	"trainmaster/taskqueue"
)

// The calls of explicit commits. Their answers leave after a fenced write, also when they
// change nothing.

// LastStep says which step a trainer that begins, or begins again, loads.
// It waits for a cut that is under way; done is false when that takes long: ask again.
func (m *Master) LastStep(ctx context.Context, ev *taskqueue.LastStep) (place taskqueue.StepPlace, done bool, err error) {
	return m.stepEvent(ctx, ev.Trainer, ev)
}

// CutWatch waits until a cut waits for a member. done is false if no cut did so within the long poll.
func (m *Master) CutWatch(ctx context.Context, ev *taskqueue.CutWatch) (place taskqueue.StepPlace, done bool, err error) {
	return m.stepEvent(ctx, ev.Trainer, ev)
}

// Flushed reports that a member saved its part of a step. If a cut waits for it, Flushed returns when the member may
// continue. If that takes too long, done is false and the member must report again.
func (m *Master) Flushed(ctx context.Context, ev *taskqueue.StepFlushed) (place taskqueue.StepPlace, done bool, err error) {
	if len(ev.Positions) > maxPositions {
		return place, false, invalidf("positions: expected at most %d, found %d", maxPositions, len(ev.Positions))
	}
	return m.stepEvent(ctx, ev.Trainer, ev)
}

// maxPositions is more than a trainer holds and finishes while it saves a model.
const maxPositions = 512

// CommitStep counts what is finished by a step. It waits up to ten seconds for members that
// have not flushed it; committed is false when some still have not: ask again.
func (m *Master) CommitStep(ctx context.Context, ev *taskqueue.StepCommit) (place taskqueue.StepPlace, committed bool, err error) {
	return m.stepEvent(ctx, ev.Trainer, ev)
}

// Rollback begins a generation of the ring from the last committed step.
func (m *Master) Rollback(ctx context.Context, ev *taskqueue.Rollback) (taskqueue.StepPlace, error) {
	place, _, err := m.stepEvent(ctx, ev.Trainer, ev)
	return place, err
}

// stepEvent is for trainers: the event of trainer 0 is the master's own.
func (m *Master) stepEvent(ctx context.Context, by taskqueue.Ordinal, ev taskqueue.Event) (place taskqueue.StepPlace, done bool, err error) {
	t, err := m.leading()
	if err != nil {
		return place, false, err
	}
	if by == 0 {
		return place, false, ErrRejoin
	}
	a, err := t.Wait(ctx, ev)
	if err != nil {
		return place, false, err
	}
	switch a.Kind {
	case taskqueue.AnswerRejoin:
		return place, false, ErrRejoin
	case taskqueue.AnswerEnded, taskqueue.AnswerFailed:
		_, err := t.assignment(ctx, a)
		return place, false, err
	}
	return a.Place, a.Kind == taskqueue.AnswerStep, nil
}

func rolledBack(p taskqueue.StepPlace) error {
	return fmt.Errorf("%w: generation %d of the ring began, in epoch %d: load step %d and join it", ErrRolledBack, p.Generation, p.Epoch, p.Step)
}
