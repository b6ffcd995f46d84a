package shard

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"trainmaster/pserver/floats"
	"trainmaster/pserver/optimizer"
)

// The refusals of the control service, which maps them to codes.
var (
	ErrNotClaimed = errors.New("claim is not held")
	ErrIncomplete = errors.New("not complete")
	ErrMismatch   = errors.New("request does not fit")
)

// Contributor is a trainer whose staged sum is part of a step.
type Contributor struct {
	Ordinal     uint32
	Incarnation uint64
	Records     uint32
}

// Commit makes version from the stages that the contributors computed at
// version-1, in the order given, and returns the version reached. A shard at or
// past version does nothing. A shard without blocks and slots may miss versions:
// trainers do not wait for it.
func (s *Shard) Commit(jobEpoch uint32, version uint64, contributors []Contributor, scale float32) (reached uint64, err error) {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	h := s.view.Load()
	now := s.version.Load()
	switch at := s.jobEpoch.Load(); {
	case jobEpoch < at:
		return now, fmt.Errorf("%w: job epoch %d has ended, shard %d is at %d", ErrMismatch, jobEpoch, s.index, at)
	//guard:step-of-later-epoch
	case jobEpoch > at:
		return now, fmt.Errorf("%w: job epoch %d, shard %d is at %d: it takes steps after its rollback", ErrMismatch, jobEpoch, s.index, at)
	case version <= now:
		return now, nil
	case version > now+1 && !h.isEmpty():
		return now, fmt.Errorf("%w: shard %d is at version %d: expected a commit of version %d, found %d", ErrMismatch, s.index, now, now+1, version)
	}
	if err := s.apply(h, version, contributors, scale); err != nil {
		return now, err
	}
	keep := make(map[uint64]bool, len(contributors))
	for _, c := range contributors {
		keep[c.Incarnation] = true
	}
	s.stages.prune(version, keep) // memory of the contributors is used again
	return version, nil
}

// apply makes version, or changes nothing and returns the missing contribution as an error.
func (s *Shard) apply(h *View, version uint64, contributors []Contributor, scale float32) error {
	if !h.isEmpty() {
		sums, records, err := s.contributions(version-1, contributors, h)
		defer unlockAll(sums)
		if err != nil {
			return err
		}
		shares, err := h.shares(sums)
		if err != nil {
			return err
		}
		s.reduce(h, version, sums, records, scale)
		s.rowsMu.Lock()
		defer s.rowsMu.Unlock()
		h.reduceRows(version, shares, records, scale)
		for _, t := range h.tables {
			s.seeTable(t, "version", version)
		}
	}
	s.Counters.Committed.Add(1)
	s.advanceTo(version)
	return nil
}

// contributions finds the stages, locked, whether or not there is an error. It finds all of them before it locks the first: the lock
// of stages is taken before the lock of a stage.
func (s *Shard) contributions(version uint64, contributors []Contributor, h *View) (sums []*stage, records uint64, err error) {
	found := s.stages.findAll(contributors)
	seen := map[uint64]bool{}
	for i, c := range contributors {
		if seen[c.Incarnation] {
			return sums, 0, fmt.Errorf("%w: incarnation %d contributes twice", ErrMismatch, c.Incarnation)
		}
		seen[c.Incarnation] = true
		//guard:stages-found-before-the-first-lock
		g := found[i]
		if g == nil {
			return sums, 0, fmt.Errorf("%w: trainer %d (incarnation %d) has staged nothing at shard %d", ErrIncomplete, c.Ordinal, c.Incarnation, s.index)
		}
		g.mu.Lock()
		sums = append(sums, g)
		if blocks := len(h.blocks); g.version != version || g.present != blocks {
			return sums, 0, fmt.Errorf("%w: trainer %d (incarnation %d) has staged %d of %d blocks, at version %d: expected all, at %d",
				ErrIncomplete, c.Ordinal, c.Incarnation, g.present, blocks, g.version, version)
		}
		if what := g.missingRows(h); what != "" {
			return sums, 0, fmt.Errorf("%w: trainer %d (incarnation %d) has staged %s at version %d", ErrIncomplete, c.Ordinal, c.Incarnation, what, version)
		}
		if g.records != c.Records {
			return sums, 0, fmt.Errorf("%w: trainer %d (incarnation %d) is committed with %d records, its stage says %d",
				ErrMismatch, c.Ordinal, c.Incarnation, c.Records, g.records)
		}
		records += uint64(c.Records)
	}
	if records == 0 {
		return sums, 0, fmt.Errorf("%w: a step without records", ErrMismatch)
	}
	return sums, records, nil
}

func unlockAll(sums []*stage) {
	for _, g := range sums {
		g.mu.Unlock()
	}
}

// parallel calls work with 0 to n-1, spread over the processors.
func parallel(n int, work func(i int)) {
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), n) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				work(i)
			}
		})
	}
	workers.Wait()
}

var pieces = sync.Pool{New: func() any { return new([PieceElements]float32) }}

// reduce applies the step to every block. Within a block the order is fixed.
func (s *Shard) reduce(h *View, version uint64, sums []*stage, records uint64, scale float32) {
	share, slots := float32(1/float64(records)), h.model.Rule.Slots()
	parallel(len(h.blocks), func(i int) {
		sum := pieces.Get().(*[PieceElements]float32)
		defer pieces.Put(sum)
		b := h.blocks[i]
		b.Lock()
		defer b.Unlock()
		kept := s.preserveLocked(b)
		b.updates++
		update := h.model.Update(b.updates, version, scale)
		for lo := 0; lo < b.Len; lo += PieceElements {
			hi := min(lo+PieceElements, b.Len)
			piece := sum[:hi-lo]
			copy(piece, sums[0].parts[i].sum[lo:hi])
			for _, g := range sums[1:] {
				optimizer.Add(piece, g.parts[i].sum[lo:hi])
			}
			optimizer.Scale(piece, share)
			kept.keep(b, lo, hi)
			h.model.Rule.Apply(b.params[lo:hi], piece, b.slots(lo, hi), update)
			s.seeBlock(b, lo, hi, floats.Finite(b.params[lo:hi]), slots, "version", version)
		}
		b.version = version
	})
}
