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
}

func (r *request) common() *request { return r }

// Call is one operation on all shards: a [TensorCall] or a [RowCall].
type Call interface {
	common() *request
	frames(s *shard) []stream.Frame // one for each block, or for some rows
	moved() error                   // prepares the repetition at other shards
}

// Do makes a call in parallel at the shards that have a part in it. An error for a moved block or slot does not stop the other shards,
// and a stale gradient does not either. After a migration Do finds the new owners and repeats the call.
func (set *Set) Do(ctx context.Context, call Call) error {
	r := call.common()
	for resumed := false; ; resumed = true {
		var moved, stale atomic.Pointer[error]
		shards := set.shards
		if r.at != nil {
			shards = r.at
		}
		group, groupCtx := errgroup.WithContext(ctx)
		for _, s := range shards {
			s.frames = call.frames(s)
			if len(s.frames) == 0 {
				continue
			}
			for i := range s.frames {
				if f := &s.frames[i]; !resumed { // otherwise a shard has acknowledged a part of the call
					f.Done = r.behind && f.Version >= r.version
				}
			}
			group.Go(func() error {
				err := s.Do(groupCtx, s.frames)
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
		case r.at != nil:
			return *cause
		}
		if err := set.refreshLayout(ctx, *cause); err != nil {
			return err
		}
		if err := call.moved(); err != nil {
			return err
		}
	}
}

// Versions returns the lowest and the highest version in the replies to the last call.
func (set *Set) Versions() (low, high uint32) {
	low = math.MaxUint32
	for _, s := range set.shards {
		for i := range s.frames {
			version := s.frames[i].Version
			low, high = min(low, version), max(high, version)
		}
	}
	return low, high
}

// Fetch makes a call that waits for minVersion. In a synchronous job it makes the call until all parts have one version.
func (set *Set) Fetch(ctx context.Context, call Call, minVersion uint64) (version uint64, err error) {
	if minVersion > math.MaxUint32 {
		return 0, fmt.Errorf("version %d is beyond the %d that frames have room for", minVersion, uint32(math.MaxUint32))
	}
	r := call.common()
	r.version = uint32(minVersion)
	for {
		if err := set.Do(ctx, call); err != nil {
			return 0, err
		}
		low, high := set.Versions()
		if low == high || !set.cfg.Sync {
			return uint64(low), nil
		}
		// A version was committed between two parts: fetch the older parts again.
		r.version, r.behind = high, true
	}
}
