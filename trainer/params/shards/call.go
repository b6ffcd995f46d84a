package shards

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"trainmaster/pserver/wire"
	"trainmaster/trainer/params/link"
	"trainmaster/trainer/params/plan"
	"trainmaster/trainer/params/stream"
)

// request has the fields of all frames of a call.
type request struct {
	at       []*shard // nil: all
	op       wire.Op
	step     uint64
	argument uint32
	version  uint32
	behind   bool // only parts below version, which an earlier call brought
	resumed  bool // it was done in part before blocks were elsewhere
}

func (r *request) common() *request { return r }

// Call is one operation on all shards: a [TensorCall] or a [RowCall].
type Call interface {
	common() *request
	parts(s *shard) int // how many blocks or frames the call has at a shard
	part(s *shard, i int) *plan.Progress
	frames(s *shard, again bool) []stream.Frame // for the parts that are pending
	moved() error                               // prepares the repetition at other shards
}

// Do makes a call in parallel at the shards that have a part in it. An error for a moved block or slot does not stop the other shards,
// and a stale gradient does not either. After a migration Do finds the new owners and repeats the call.
func (set *Set) Do(ctx context.Context, op Call) error {
	at := op.common().at
	for {
		var moved, stale atomic.Pointer[error]
		shards := set.shards
		if at != nil {
			shards = at
		}
		group, groupCtx := errgroup.WithContext(ctx)
		for _, s := range shards {
			if op.parts(s) == 0 {
				continue
			}
			mark(op, s, false)
			group.Go(func() error {
				err := s.Do(groupCtx, func() { mark(op, s, true) }, func(again bool) []stream.Frame { return op.frames(s, again) })
				if _, late := errors.AsType[*link.StaleError](err); late {
					stale.Store(&err)
					return nil
				}
				if link.IsLayoutStale(err) {
					moved.Store(&err)
					return nil
				}
				return err
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
		cause := moved.Load()
		switch {
		case cause == nil && stale.Load() != nil:
			return *stale.Load()
		case cause == nil:
			return nil
		case at != nil:
			return *cause
		}
		if err := set.refreshLayout(ctx, *cause); err != nil {
			return err
		}
		if err := op.moved(); err != nil {
			return err
		}
	}
}

// mark selects the parts to send to a shard; restarted: a restarted server may have lost acknowledged parts.
func mark(op Call, s *shard, restarted bool) {
	r := op.common()
	for i := range op.parts(s) {
		p := op.part(s, i)
		switch {
		case restarted:
			p.Pending = p.Pending || !r.behind
		case !r.resumed:
			p.Pending = !r.behind || p.Version < r.version
		}
	}
}

// Versions returns the lowest and the highest version in the replies to a call.
func (set *Set) Versions(op Call) (low, high uint32) {
	low = math.MaxUint32
	for _, s := range set.shards {
		for i := range op.parts(s) {
			version := op.part(s, i).Version
			low, high = min(low, version), max(high, version)
		}
	}
	return low, high
}

// Fetch makes a call that waits for minVersion. In a synchronous job it makes the call until all parts have one version.
func (set *Set) Fetch(ctx context.Context, op Call, minVersion uint64) (version uint64, err error) {
	if minVersion > math.MaxUint32 {
		return 0, fmt.Errorf("version %d is beyond the %d that frames have room for", minVersion, uint32(math.MaxUint32))
	}
	r := op.common()
	r.version = uint32(minVersion)
	for {
		if err := set.Do(ctx, op); err != nil {
			return 0, err
		}
		low, high := set.Versions(op)
		if low == high || !set.cfg.Sync {
			return uint64(low), nil
		}
		// A version was committed between two parts: fetch the older parts again.
		r.version, r.behind, r.resumed = high, true, false
	}
}
