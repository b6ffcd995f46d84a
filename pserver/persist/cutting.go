package persist

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/model"
	"trainmaster/pserver/placement"
	core "trainmaster/pserver/shard"
	"trainmaster/pserver/table"
)

// The errors of a cut that is not open.
var (
	ErrOldCut = errors.New("cut is closed")
	ErrNoCut  = errors.New("no such cut")
)

// masterCut is a cut that a master began, for a set of all shards.
type masterCut struct {
	number, term uint64
	view         *core.View
	cut          *core.Cut
	expire       *time.Timer

	written checkpoint.Part // has a digest once the files are there
}

// openCut returns the cut that is open, if it is this one.
func (c *Checkpoints) openCut(number, term uint64) *masterCut {
	if c.open == nil || c.open.number != number || c.open.term != term {
		return nil
	}
	return c.open
}

// BeginCut fixes the moment of a checkpoint, and returns the version at it. Updates go on.
func (c *Checkpoints) BeginCut(number, term uint64, jobEpoch uint32) (version uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := c.shard.JobEpoch(); jobEpoch < at {
		return 0, fmt.Errorf("%w: job epoch %d, shard %d is at %d", ErrOldCut, jobEpoch, c.shard.Index(), at)
	}
	if open := c.openCut(number, term); open != nil {
		return open.cut.Version, nil
	}
	if number <= c.lastCut.Load() || term < c.term {
		return 0, fmt.Errorf("%w: cut %d of term %d, shard %d knows of cut %d and term %d", ErrOldCut, number, term, c.shard.Index(), c.lastCut.Load(), c.term)
	}
	c.dropLocked("another one began")
	c.lastCut.Store(number)
	c.term = term
	c.statusMu.Lock()
	c.latest = latestCut{number: number, changes: c.shard.Changes()} // before the cut: an update between the two asks for another set
	c.statusMu.Unlock()
	open := &masterCut{number: number, term: term, view: c.shard.View()}
	open.cut = c.shard.StartCut(func(h *core.View, table int, number uint64) *table.Cut { return c.history(h)[table].since(number) })
	open.expire = time.AfterFunc(c.cutLimit, func() { c.expire(open) })
	c.open = open
	return open.cut.Version, nil
}

// WriteCut writes the files of the cut, or says again which they were.
func (c *Checkpoints) WriteCut(ctx context.Context, number, term uint64) (checkpoint.Part, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	open := c.openCut(number, term)
	if open == nil {
		return checkpoint.Part{}, fmt.Errorf("%w: cut %d of term %d at shard %d", ErrNoCut, number, term, c.shard.Index())
	}
	if open.written.SHA256 != "" {
		return open.written, nil
	}
	part, err := c.save(ctx, open.view, open.cut, number)
	if err != nil {
		c.dropLocked(err.Error())
		return part, err
	}
	c.shard.EndCut(open.view)
	open.expire.Stop()
	open.written = part
	c.statusMu.Lock()
	c.latest.part = part.Generation
	c.statusMu.Unlock()
	return part, nil
}

// AbortCut drops the cut.
func (c *Checkpoints) AbortCut(number, term uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.openCut(number, term) != nil {
		c.dropLocked("its master gave it up")
	}
}

func (c *Checkpoints) expire(open *masterCut) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == open && open.written.SHA256 == "" {
		c.dropLocked("no master collected it")
	}
}

// dropLocked ends the cut that is open, if there is one. What was written stays until a newer
// set is complete: the master may have named it by now.
func (c *Checkpoints) dropLocked(reason string) {
	open := c.open
	if open == nil {
		return
	}
	c.open = nil
	open.expire.Stop()
	if open.written.SHA256 == "" {
		c.shard.EndCut(open.view)
		c.log.WithFields(logrus.Fields{"cut": open.number, "reason": reason}).Warn("cut dropped")
	}
}

// WriteSet writes the manifest of a set whose checkpoints are all in the store of this server.
func (c *Checkpoints) WriteSet(ctx context.Context, number, term uint64, text, state []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if number != c.lastCut.Load() || term != c.term {
		return fmt.Errorf("%w: set %d of term %d, shard %d knows of cut %d and term %d", ErrOldCut, number, term, c.shard.Index(), c.lastCut.Load(), c.term)
	}
	if err := c.checkOwner(ctx); err != nil {
		return err
	}
	set, err := checkpoint.ParseSet(text)
	if err == nil {
		//guard:set-in-one-directory
		err = c.store.CheckParts(ctx, set)
	}
	if err != nil {
		return err
	}
	return c.store.WriteSet(ctx, text, state)
}

// checkOwner returns [checkpoint.ErrSuperseded] if a later start owns the directory. A server that hung can have requests of before
// its successor's start.
func (c *Checkpoints) checkOwner(ctx context.Context) error {
	return c.folder.CheckOwner(ctx, c.start) //guard:replaced-server-changes-no-files
}

// checkTerm returns [ErrOldCut] for a request of an earlier term than the latest request.
func (c *Checkpoints) checkTerm(term uint64) error {
	if term < c.term {
		return fmt.Errorf("%w: term %d, shard %d knows of term %d", ErrOldCut, term, c.shard.Index(), c.term)
	}
	return nil
}

// Discard removes what was written for sets of this job that are newer than the latest one: the master of that term says that
// they were never finished, and no other one names a set any more.
func (c *Checkpoints) Discard(ctx context.Context, latest, term uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := cmp.Or(c.checkTerm(term), c.checkOwner(ctx)); err != nil {
		return err
	}
	c.term = term
	c.dropLocked("its master discards it")
	if c.job.ID == "" {
		return nil // whose the sets are is not known
	}
	if latest == 0 { // etcd names none: a server that restarts loads the same set again
		latest = c.restored //guard:loaded-set-kept
	}
	if err := c.store.Discard(ctx, c.job.ID, latest); err != nil {
		return err
	}
	removed, err := c.folder.Discard(ctx, c.job.ID, latest, c.start)
	for _, g := range removed {
		c.log.WithField("generation", g).Info("checkpoint of a set that failed removed")
	}
	if err != nil {
		return err
	}
	return c.removeSegments(ctx)
}

// PruneSets removes the files that only sets older than the newest keep sets need. Spared sets stay.
func (c *Checkpoints) PruneSets(ctx context.Context, number, term uint64, keep int, spared []uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := cmp.Or(c.checkTerm(term), c.checkOwner(ctx)); err != nil {
		return err
	}
	kept, err := c.store.PruneSets(ctx, number, max(1, keep), spared)
	if err != nil {
		return err
	}
	var generations []checkpoint.Generation
	for _, set := range kept {
		if c.shard.Index() < len(set.Shards) {
			generations = append(generations, set.Shards[c.shard.Index()].Generation)
		}
	}
	c.shard.Open() // etcd names the set: only then does a master remove older ones
	if err := c.folder.PruneTo(ctx, generations); err != nil {
		return err
	}
	return c.removeSegments(ctx)
}

// Settle is [core.Shard.Settle] for another placement. It drops the cut that is open: a cut is of one placement.
func (c *Checkpoints) Settle(term uint64, l *placement.Layout, m *model.Model, now time.Time) (wanted bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if late := c.shard.Follows(term); late != nil {
		return false, late // it ends no cut
	}
	c.dropLocked("blocks move")
	return c.shard.Settle(term, l, m, now)
}
