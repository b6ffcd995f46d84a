package master

import (
	"context"
	"errors"
	"fmt"
	"time"

	"trainmaster/taskqueue"
)

// RetiringShards are parameter servers that forget trainers.
type RetiringShards interface {
	Shards
	// Retire tells all servers that are there that the incarnations of a job's trainers below floor are over, but for the
	// spared ones. To tell it late, or again, is harmless. A server that has heard a later term, or is of another job, refuses.
	// No version after the given one has gradients of a retired incarnation (nil: unknown).
	Retire(ctx context.Context, term uint64, job [16]byte, floor uint64, spared []uint64, version *uint64) error
}

const (
	retireEvery   = 5 * time.Second
	retireTimeout = 10 * time.Second
)

// retire tells the servers which sessions there are, again and again: a server that was started meanwhile knows as much as
// its checkpoint. That a session is over is committed by then, for good; so even a leader that was deposed and does not
// know it says nothing wrong, only less.
func (m *Master) retire(ctx context.Context, t *term) error {
	clock := t.committer.time
	for ctx.Err() == nil {
		bounded, cancel := clock.WithTimeout(ctx, retireTimeout)
		err := m.tellRetired(bounded, t)
		late := bounded.Err() != nil
		cancel()
		switch {
		case late, errors.Is(err, errNotTold):
			m.log.WithError(err).Debug("not all parameter servers heard which trainers are gone, telling again")
		case err != nil && ctx.Err() == nil:
			return err
		}
		clock.Sleep(ctx, retireEvery)
	}
	return context.Cause(ctx)
}

var errNotTold = errors.New("not all parameter servers were told which trainers are gone")

// tellRetired tells the servers once.
func (m *Master) tellRetired(ctx context.Context, t *term) error {
	shards, ok := m.shards.(RetiringShards)
	if !ok {
		return nil
	}
	var floor uint64
	var live []uint64
	var version *uint64
	if err := t.inspect(ctx, func(q *taskqueue.Queue) {
		floor, live = q.Sessions()
		if steps := t.committer.steps; steps != nil {
			last := steps.last.Version
			version = &last
		}
	}); err != nil {
		return err
	}
	if err := shards.Retire(ctx, uint64(t.committer.lead.Revision()), t.jobID, floor, live, version); err != nil {
		return fmt.Errorf("%w: %w", errNotTold, err)
	}
	return nil
}
