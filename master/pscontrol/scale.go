package pscontrol

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/master/component"
	"trainmaster/taskqueue"
)

// PlacementKey holds the placement of the blocks after the first migration, and the target number of parameter servers.
// desiredKey holds the number of servers that may register.
const (
	PlacementKey = "/ps_blocks"
	desiredKey   = "/ps_desired"
)

// ErrCannotScale is the answer of a job whose blocks cannot be moved.
var ErrCannotScale = errors.New("the number of parameter servers cannot be changed while the job runs")

// ErrNoServers is the answer of a job that has no parameters to move.
var ErrNoServers = errors.New("this job has no parameter servers: its master was started without --ps")

// Extent is the number of servers that a model is placed on.
type Extent struct {
	Servers, Goal int
	Epoch         uint32
}

// Left counts the blocks and slots that are not yet in their place, and the totals. The zero value means unknown.
type Left struct {
	Blocks, Slots       int
	AllBlocks, AllSlots int
}

// Scaling is how far a change of the number of servers is.
type Scaling struct {
	Extent
	Left    Left   // by this term's last step, 0 before
	Moves   int    // steps of this term
	Waiting string // why the migration waits; "": it does not
	Done    bool
}

// scaler moves blocks until the placement reaches the stored target, during a term.
//
//	goal ──▶ checkpoint set ──▶ [ prepare ──▶ commit ──▶ broadcast ]... ──▶ checkpoint set
//
// A server that is lost during a migration is restored from the last set, whatever the placement was then. A job with
// rollback moves nothing: see reload.
type scaler struct {
	term *term

	unmoved int // servers while stored is nil

	box     *component.Mailbox
	changes component.Semaphore // held while stored is changed

	mu     sync.Mutex
	stored []byte // as committed, nil: blocks never moved
	state  Scaling
	began  bool // used by run only: the set before the first migration is complete
	moved  bool // something since then
}

const (
	scaleRetry   = 200 * time.Millisecond
	moveTimeout  = 30 * time.Second
	scaleTimeout = 5 * time.Second
)

// Scale sets the target number of parameter servers, unless servers is 0, and returns the progress. The master must lead.
func (c *Control) Scale(ctx context.Context, servers int) (Scaling, error) {
	t := c.current.Load()
	if t == nil {
		if servers > 0 {
			return Scaling{}, ErrNoServers
		}
		return Scaling{}, nil
	}
	if servers > 0 {
		var states []ServerState
		var err error
		if t.config.Sync {
			states, err = t.config.Servers.States(ctx)
		}
		if err = cmp.Or(err, t.checkStageRoom(ctx, states, servers)); err != nil {
			return Scaling{}, fmt.Errorf("%w: %w", ErrCannotScale, err)
		}
		if err := t.scaler.resize(ctx, servers); err != nil {
			return Scaling{}, err
		}
	}
	return t.scaler.status(), nil
}

func (s *scaler) committed() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stored
}

func (s *scaler) status() Scaling {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

func (s *scaler) resize(ctx context.Context, servers int) error {
	if err := s.changes.Acquire(ctx); err != nil {
		return err
	}
	defer s.changes.Release()
	bounded, cancel := context.WithTimeout(ctx, scaleTimeout)
	defer cancel()
	if err := s.checkKept(bounded); err != nil {
		return err
	}
	next, err := s.term.config.Servers.Resize(bounded, s.committed(), servers)
	switch {
	case errors.Is(err, ErrNoServers), errors.Is(err, ErrServerMissing), errors.Is(err, ErrServerNotReady):
		return err // the request can be repeated, except without servers
	case err != nil:
		return fmt.Errorf("%w: %w", ErrCannotScale, err)
	}
	if err := s.commit(ctx, next, Left{}); err != nil {
		return err
	}
	s.box.Post(component.ServersChanged{})
	return nil
}

// checkKept refuses a job with rollback whose servers keep no checkpoints: there is no set to load on other servers. It also refuses such a
// job in its last epoch.
func (s *scaler) checkKept(ctx context.Context) error {
	if !s.term.config.Cuts {
		return nil
	}
	if err := s.term.checkLastEpoch(ctx); err != nil {
		return fmt.Errorf("%w: %w", ErrCannotScale, err)
	}
	states, err := s.term.config.Servers.States(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCannotScale, err)
	}
	if len(states) > 0 && keepNone(states) {
		return fmt.Errorf("%w: a synchronous job loads a checkpoint set on the new servers: start the parameter servers of a new job with --checkpoint-dir", ErrCannotScale)
	}
	return nil
}

// complete notes that the goal of a placement is reached. It returns false if another goal has been stored.
func (s *scaler) complete(stored []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !bytes.Equal(stored, s.stored) {
		return false
	}
	if !s.state.Done {
		s.term.config.Log.WithFields(logrus.Fields{"servers": s.state.Servers, "placement": s.state.Epoch}).Info("block migration complete")
	}
	s.state.Done, s.state.Waiting, s.began, s.moved = true, "", false, false
	return true
}

// commit stores the placement, and lets as many servers register as it needs. left counts the remaining moves.
func (s *scaler) commit(ctx context.Context, next []byte, left Left) error {
	extent, err := s.term.config.Servers.Extent(next)
	if err != nil {
		return err
	}
	if err := s.term.publish(ctx, s.keys(next, extent)...); err != nil {
		return err
	}
	s.use(next, extent, left)
	return nil
}

// keys are what a placement writes.
func (s *scaler) keys(next []byte, extent Extent) []taskqueue.Write {
	desired := strconv.Itoa(max(extent.Servers, extent.Goal))
	return []taskqueue.Write{{Key: PlacementKey, Value: next}, {Key: desiredKey, Value: []byte(desired)}}
}

// use notes a committed placement.
func (s *scaler) use(next []byte, extent Extent, left Left) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stored = next
	s.state.Extent, s.state.Left, s.state.Done, s.state.Waiting = extent, left, false, ""
}

// run migrates blocks until the goal is reached, and sends the placement when a server registers and after resendEvery, until ctx ends.
func (s *scaler) run(ctx context.Context) error {
	for rest := time.Duration(0); ; {
		s.term.Clock().Wait(ctx, s.box.Changed(), rest)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		s.box.Take()
		rest = resendEvery
		for more := true; more && ctx.Err() == nil; {
			var err error
			if more, err = s.round(ctx); errors.Is(err, errNotCommitted) {
				return err // perhaps it is: the next term reads what counts
			} else if err != nil && ctx.Err() == nil {
				s.wait(err)
				rest = scaleRetry
			}
		}
	}
}

var errNotCommitted = errors.New("placement not committed")

// wait logs why the migration waits, once.
func (s *scaler) wait(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.Waiting != err.Error() {
		s.term.config.Log.WithError(err).Info("block migration waits")
	}
	s.state.Waiting = err.Error()
}

// round sends the committed placement to all servers. It takes one step if the target is not reached.
func (s *scaler) round(ctx context.Context) (more bool, err error) {
	stored := s.committed()
	if stored == nil {
		return false, nil
	}
	if s.term.config.Cuts {
		return false, s.reload(ctx, stored)
	}
	if err := s.broadcast(ctx); err != nil {
		return false, err
	}
	if s.status().Done {
		s.complete(stored)
		return false, nil
	}
	if !s.began {
		if err := s.checkpoint(ctx); err != nil {
			return false, err
		}
		s.began = true
	}
	if more, err = s.step(ctx); more || err != nil {
		return more, err
	}
	if s.moved {
		if err := s.checkpoint(ctx); err != nil {
			return false, err
		}
	}
	return !s.complete(stored), nil
}

// checkpoint takes a set if the servers save checkpoints.
func (s *scaler) checkpoint(ctx context.Context) error {
	if err := s.term.checkpoints.take(ctx); err != nil && !errors.Is(err, ErrNothingToCut) {
		return fmt.Errorf("a checkpoint before blocks move, or after: %w", err)
	}
	return nil
}

// reload changes the number of servers of a job with rollback: it takes a cut and rolls the job back to the set of that cut, in the
// new placement. One transaction stores the placement and the rollback. Any later leader completes the rollback.
func (s *scaler) reload(ctx context.Context, stored []byte) error {
	servers := s.term.config.Servers
	bounded, cancel := context.WithTimeout(ctx, moveTimeout)
	defer cancel()
	next, err := servers.Plan(bounded, stored)
	if err != nil {
		return err
	}
	if next == nil {
		return s.reloaded(bounded, stored)
	}
	if err := s.term.checkLastEpoch(ctx); err != nil {
		return err
	}
	if err := s.term.checkpoints.take(ctx); err != nil {
		return fmt.Errorf("checkpoint set to load on another number of parameter servers: %w", err)
	}
	if err := s.term.checkpoints.busy.Acquire(ctx); err != nil {
		return err
	}
	defer s.term.checkpoints.busy.Release()
	if err := s.changes.Acquire(ctx); err != nil {
		return err
	}
	defer s.changes.Release()
	if !bytes.Equal(stored, s.committed()) {
		s.box.Post(component.ServersChanged{})
		return nil // another target was stored
	}
	extent, err := servers.Extent(next)
	if err != nil {
		return err
	}
	s.box.Post(component.ServersChanged{}) // look again when this is done
	return s.term.checkpoints.rollbacks.rollBackTo(ctx, "the number of parameter servers changed", s.keys(next, extent), func() { s.use(next, extent, Left{}) })
}

// reloaded ends the servers that the placement does not need.
func (s *scaler) reloaded(ctx context.Context, stored []byte) error {
	epoch, err := read(ctx, s.term, (*taskqueue.Queue).Epoch)
	if err != nil {
		return err
	}
	if err := s.term.config.Servers.Dismiss(ctx, uint64(s.term.Number()), epoch, stored); err != nil {
		return err
	}
	s.complete(stored)
	return nil
}

func (s *scaler) broadcast(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, scaleTimeout)
	defer cancel()
	return s.term.config.Servers.SendPlacement(ctx, uint64(s.term.Number()), s.committed())
}

// step moves some blocks. No cut happens during it. more is false if no block is left to move.
func (s *scaler) step(ctx context.Context) (more bool, err error) {
	if err := s.term.checkpoints.busy.Acquire(ctx); err != nil {
		return false, err
	}
	defer s.term.checkpoints.busy.Release()
	if err := s.changes.Acquire(ctx); err != nil {
		return false, err
	}
	defer s.changes.Release()
	bounded, cancel := context.WithTimeout(ctx, moveTimeout)
	defer cancel()
	next, left, err := s.term.config.Servers.Move(bounded, uint64(s.term.Number()), s.committed())
	if err != nil {
		return false, errors.Join(err, s.broadcast(ctx)) // ends the migration
	}
	if next == nil {
		return false, nil
	}
	if err := s.commit(ctx, next, left); err != nil {
		return false, fmt.Errorf("%w: %w", errNotCommitted, err)
	}
	s.moved = true
	s.mu.Lock()
	s.state.Moves++
	s.mu.Unlock()
	return true, s.broadcast(ctx)
}

// Scaling returns the component that migrates blocks until the placement reaches the stored target. It must be prepared after the
// number of servers is stored.
func (c *Control) Scaling() component.Component {
	return &part{Control: c, name: "scaling", on: []taskqueue.EffectKind{component.OnServersChanged},
		recover: func(ctx context.Context, t *term, box *component.Mailbox) error { return t.scaler.recover(ctx, box) },
		run:     func(ctx context.Context, t *term, _ *component.Mailbox) error { return t.scaler.run(ctx) }}
}

// recover reads what is committed.
func (s *scaler) recover(ctx context.Context, box *component.Mailbox) (err error) {
	s.box = box
	config := s.term.config
	if s.stored, _, err = config.Store.Value(ctx, PlacementKey); err != nil {
		return fmt.Errorf("read %s: %w", PlacementKey, err)
	}
	if s.stored != nil {
		if s.state.Extent, err = config.Servers.Extent(s.stored); err != nil {
			return fmt.Errorf("%s: %w", PlacementKey, err)
		}
	}
	desired, _, err := config.Store.Value(ctx, desiredKey)
	if err != nil {
		return fmt.Errorf("read %s: %w", desiredKey, err)
	}
	if desired != nil {
		if s.unmoved, err = strconv.Atoi(string(desired)); err != nil || s.unmoved < 0 {
			return fmt.Errorf("%s: expected a decimal count, found %.40q", desiredKey, desired)
		}
	}
	return nil
}
