package pserver

import (
	"fmt"
	"math"
	"sync"

	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
	core "trainmaster/pserver/shard"
	"trainmaster/pserver/wire"
)

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
func (b *block) fill(values core.Values, rule optimizer.Rule) (isFinite bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.params == nil {
		b.params = make([]float32, b.Len)
		b.state = make([]float32, len(rule.Slots())*b.Len)
	}
	if !values.CopyTo(b.params) {
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

// Push applies the gradient in values for a step of the trainer, unless the step was applied before. It passes the parameters after
// the update to out, unless out is nil, and can overwrite values with them piece by piece. If the trainer makes values in shared
// memory non-finite during the call, the elements before them stay applied.
func (s *shard) Push(h *holding, b *block, t *trainer, u core.Update, values core.Values, out core.Sink) (result core.Result, refused *core.Refusal) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fresh, refused := b.admitLocked(t, u.Step)
	if refused != nil {
		return result, refused
	}
	var update optimizer.Step
	var kept *image
	if fresh {
		age := b.stalenessLocked(u.BasedOn)
		weight := h.model.Staleness.Weight(age)
		s.Counters.stale(age, weight)
		kept = s.preserveLocked(b)
		t.applied[b.local] = u.Step
		b.version++
		b.updates++
		update = h.model.Update(b.updates, u.Step, u.Scale*weight)
		s.Counters.Pushed.Add(1)
	} else {
		s.Counters.Duplicates.Add(1)
	}
	result = core.Result{Version: b.version, Duplicate: !fresh}
	if out != nil {
		out.Begin(result, b.Len)
	}
	for lo := 0; lo < b.Len; lo += core.PieceElements {
		hi := min(lo+core.PieceElements, b.Len)
		if fresh {
			kept.keep(b, lo, hi)
		}
		if fresh && refused == nil {
			if grad, isFinite := values.At(lo, hi); isFinite {
				h.model.Rule.Apply(b.params[lo:hi], grad, b.slots(lo, hi), update)
			} else {
				refused = changed("push", b.name())
			}
		}
		isFinite := true
		if out != nil {
			isFinite = out.Put(lo, b.params[lo:hi])
		} else if fresh {
			isFinite = wire.Finite(b.params[lo:hi])
		}
		if fresh && refused == nil {
			s.seeBlock(b, lo, hi, isFinite, h.model.Rule.Slots(), "step", u.Step)
		}
	}
	return result, refused
}

// admitLocked refuses a push of a fenced trainer, or to a block that moves, and reports whether the step is new for the block.
func (b *block) admitLocked(t *trainer, step uint64) (fresh bool, refused *core.Refusal) {
	if t.fenced.Load() {
		return false, core.Refuse(core.Fenced, "incarnation %d of trainer %d was replaced by a newer one", t.incarnation, t.ordinal)
	}
	if refused := b.movingLocked(); refused != nil {
		return false, refused
	}
	//guard:block-push-once
	fresh = step > t.applied[b.local]
	return fresh, nil
}

// stalenessLocked is the number of updates since version. It is 0 for a version that the block has not reached, since a restart
// lost that version.
func (b *block) stalenessLocked(version uint32) uint64 {
	now := clampVersion(b.version)
	return uint64(now - min(version, now))
}

// pull passes a copy of the parameters to out.
func (b *block) pull(out core.Sink) *core.Refusal {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.moved {
		return b.movingLocked()
	}
	out.Begin(core.Result{Version: b.version}, b.Len)
	for lo := 0; lo < b.Len; lo += core.PieceElements {
		out.Put(lo, b.params[lo:min(lo+core.PieceElements, b.Len)])
	}
	return nil
}

// changed is the refusal of a trainer that wrote into its slot of shared memory before the reply.
func changed(op, what string) *core.Refusal {
	return core.Refuse(core.Changed, "%s for %s: elements in shared memory are no longer finite: the trainer changed them before the reply", op, what)
}

// clampVersion limits a version to the range of the header field.
func clampVersion(v uint64) uint32 { return uint32(min(v, math.MaxUint32)) }
