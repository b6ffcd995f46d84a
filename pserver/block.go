package pserver

import (
	"fmt"
	"math"
	"sync"

	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/wire"
)

// pieceElements is the number of elements of a block in one step of the work: 16 KiB, so that update, copy and sum of a piece
// happen in the fastest cache.
const pieceElements = 4096

// block is one slice of a tensor with its optimizer state, counters and applied steps.
type block struct {
	placement.Block
	local  int // its index among the blocks of the shard
	tensor string

	mu      sync.Mutex
	params  []float32 // nil until the first put.
	state   []float32 // State of the optimizer: slot after slot, each as long as params.
	updates uint64    // Updates applied to the parameters.
	version uint64    // Synchronous: version of the commit. Asynchronous: number of applied pushes.
	cut     uint64    // Number of the last cut with this block.
	image   *image    // Content at that cut, if an update came before the checkpoint writer. Otherwise nil.

	frozen chan struct{} // Closed when the migration that froze the block ends; nil if the block is not frozen.
	moved  bool          // Whether another shard owns the block.
}

func (b *block) name() string {
	return fmt.Sprintf("block %d (tensor %q, elements %d to %d)", b.ID, b.tensor, b.Offset, b.Offset+b.Len)
}

// fill sets the first parameters. If they are not finite, the block has none.
func (b *block) fill(values elements, rule optimizer.Rule) (isFinite bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.params == nil {
		b.params = make([]float32, b.Len)
		b.state = make([]float32, len(rule.Slots())*b.Len)
	}
	if !values.copyTo(b.params) {
		b.params, b.state = nil, nil
		return false
	}
	rule.Start(b.params, b.slots(0, b.Len))
	return true
}

// slots is the state of elements lo to hi.
func (b *block) slots(lo, hi int) (s optimizer.State) {
	for i := range len(b.state) / b.Len {
		s[i] = b.state[i*b.Len+lo : i*b.Len+hi]
	}
	return s
}

func (b *block) filled() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.params != nil
}

// stepLocked updates elements lo to hi by grad, and overwrites grad. The caller checks the result for values that are not finite,
// see seeBlock.
func (b *block) stepLocked(rule optimizer.Rule, lo, hi int, grad []float32, step optimizer.Step) {
	rule.Apply(b.params[lo:hi], grad, b.slots(lo, hi), step)
}

// push applies the gradient in values for the trainer's step in head, unless the step was applied before, and completes r. It
// overwrites values: if r.buf is set, with the parameters after the update as the body of r, whose dtype is set. If the trainer
// makes values in shared memory non-finite during the call, the elements before them stay applied.
func (b *block) push(s *shard, h *holding, t *trainer, head *wire.Header, scale float32, values elements, r *reply) (fault *wire.Fault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t.fenced.Load() {
		return wire.Faultf(wire.Fenced, "incarnation %d of trainer %d was replaced by a newer one", t.incarnation, t.ordinal)
	}
	if fault := b.movingLocked(); fault != nil {
		return fault
	}
	//guard:block-push-once
	fresh := head.Step > t.applied[b.local]
	var update optimizer.Step
	var kept *image
	if fresh {
		age := b.stalenessLocked(head.Version)
		weight := h.model.Staleness.Weight(age)
		s.counters.stale(age, weight)
		kept = s.preserveLocked(b)
		t.applied[b.local] = head.Step
		b.version++
		b.updates++
		update = h.model.Update(b.updates, head.Step, scale*weight)
		s.counters.pushed.Add(1)
	} else {
		r.head.Flags |= wire.Duplicate
		s.counters.duplicates.Add(1)
	}
	r.head.Version = clampVersion(b.version)
	withBody := r.buf != nil
	if withBody {
		r.begin(b.Len)
	}
	for lo := 0; lo < b.Len; lo += pieceElements {
		hi := min(lo+pieceElements, b.Len)
		if fresh {
			kept.keep(b, lo, hi)
		}
		if fresh && fault == nil {
			if grad, isFinite := values.at(lo, hi); isFinite {
				b.stepLocked(h.model.Rule, lo, hi, grad, update)
			} else {
				fault = changed(head.Op, b.name())
			}
		}
		isFinite := true
		if withBody {
			isFinite = r.add(lo, b.params[lo:hi])
		} else if fresh {
			isFinite = wire.Finite(b.params[lo:hi])
		}
		if fresh && fault == nil {
			s.seeBlock(b, lo, hi, isFinite, h.model.Rule.Slots(), "step", head.Step)
		}
	}
	r.end()
	return fault
}

// stalenessLocked is the number of updates since version. It is 0 for a version that the block has not reached, since a restart
// lost that version.
func (b *block) stalenessLocked(version uint32) uint64 {
	now := clampVersion(b.version)
	return uint64(now - min(version, now))
}

// pull completes r, whose dtype is set, with a copy of the parameters.
func (b *block) pull(r *reply) *wire.Fault {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.moved {
		return b.movingLocked()
	}
	r.head.Version = clampVersion(b.version)
	r.begin(b.Len)
	for lo := 0; lo < b.Len; lo += pieceElements {
		r.add(lo, b.params[lo:min(lo+pieceElements, b.Len)])
	}
	r.end()
	return nil
}

// clampVersion limits a version to the range of the header field.
func clampVersion(v uint64) uint32 { return uint32(min(v, math.MaxUint32)) }
