package shard

import (
	"fmt"
	"math"
	"sync"

	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/wire"
)

// Block is one slice of a tensor with its optimizer state, counters and applied steps.
type Block struct {
	placement.Block
	Local  int // its index among the blocks of the shard
	tensor string

	mu      sync.Mutex
	params  []float32 // nil until the first put.
	state   []float32 // State of the optimizer: slot after slot, each as long as params.
	updates uint64    // Updates applied to the parameters.
	version uint64    // Synchronous: version of the commit. Asynchronous: number of applied pushes.
	cut     uint64    // Number of the last cut with this block.
	image   *Image    // Content at that cut, if an update came before the checkpoint writer. Otherwise nil.

	frozen chan struct{} // Closed when the migration that froze the block ends; nil if the block is not frozen.
	moved  bool          // Whether another shard owns the block.
}

// Name identifies the block in messages.
func (b *Block) Name() string {
	return fmt.Sprintf("block %d (tensor %q, elements %d to %d)", b.ID, b.tensor, b.Offset, b.Offset+b.Len)
}

// fill sets the first parameters. If they are not finite, the block has none.
func (b *Block) fill(values Values, rule optimizer.Rule) (isFinite bool) {
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
func (b *Block) slots(lo, hi int) (s optimizer.State) {
	for i := range len(b.state) / b.Len {
		s[i] = b.state[i*b.Len+lo : i*b.Len+hi]
	}
	return s
}

func (b *Block) filled() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.params != nil
}

// Push applies the gradient in values for a step of the trainer, unless the step was applied before. It passes the parameters after
// the update to out, unless out is nil, and can overwrite values with them piece by piece. If the trainer makes values in shared
// memory non-finite during the call, the elements before them stay applied.
func (s *Shard) Push(h *View, b *Block, t *Trainer, u Update, values Values, out Sink) (result Result, refused *Refusal) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fresh, refused := b.admitLocked(t, u.Step)
	if refused != nil {
		return result, refused
	}
	var update optimizer.Step
	var kept *Image
	if fresh {
		age := b.stalenessLocked(u.BasedOn)
		weight := h.model.Staleness.Weight(age)
		s.Counters.stale(age, weight)
		kept = s.preserveLocked(b)
		t.applied[b.Local] = u.Step
		b.version++
		b.updates++
		update = h.model.Update(b.updates, u.Step, u.Scale*weight)
		s.Counters.Pushed.Add(1)
	} else {
		s.Counters.Duplicates.Add(1)
	}
	result = Result{Version: b.version, Duplicate: !fresh}
	if out != nil {
		out.Begin(result, b.Len)
	}
	for lo := 0; lo < b.Len; lo += PieceElements {
		hi := min(lo+PieceElements, b.Len)
		if fresh {
			kept.keep(b, lo, hi)
		}
		if fresh && refused == nil {
			if grad, isFinite := values.At(lo, hi); isFinite {
				h.model.Rule.Apply(b.params[lo:hi], grad, b.slots(lo, hi), update)
			} else {
				refused = RefuseChanged("push", b.Name())
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
func (b *Block) admitLocked(t *Trainer, step uint64) (fresh bool, refused *Refusal) {
	if t.fenced.Load() {
		return false, Refuse(Fenced, "incarnation %d of trainer %d was replaced by a newer one", t.incarnation, t.ordinal)
	}
	if refused := b.movingLocked(); refused != nil {
		return false, refused
	}
	//guard:block-push-once
	fresh = step > t.applied[b.Local]
	return fresh, nil
}

// stalenessLocked is the number of updates since version. It is 0 for a version that the block has not reached, since a restart
// lost that version.
func (b *Block) stalenessLocked(version uint32) uint64 {
	now := ClampVersion(b.version)
	return uint64(now - min(version, now))
}

// Pull passes a copy of the parameters to out.
func (b *Block) Pull(out Sink) *Refusal {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.moved {
		return b.movingLocked()
	}
	out.Begin(Result{Version: b.version}, b.Len)
	for lo := 0; lo < b.Len; lo += PieceElements {
		out.Put(lo, b.params[lo:min(lo+PieceElements, b.Len)])
	}
	return nil
}

// RefuseChanged is the refusal of a trainer that wrote into its slot of shared memory before the reply.
func RefuseChanged(op, what string) *Refusal {
	return Refuse(Changed, "%s for %s: elements in shared memory are no longer finite: the trainer changed them before the reply", op, what)
}

// ClampVersion limits a version to the range of the header field.
func ClampVersion(v uint64) uint32 { return uint32(min(v, math.MaxUint32)) }
