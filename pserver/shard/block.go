package shard

import (
	"fmt"
	"math"

	"trainmaster/pserver/floats"
	"trainmaster/pserver/model"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/partition"
	"trainmaster/pserver/placement"
)

// Block is one slice of a tensor with its optimizer state, counters and applied steps.
type Block struct {
	placement.Block
	Local  int // its index among the blocks of a synchronous shard, which moves none
	tensor string

	partition.Partition
	params  []float32 // nil until the first put.
	state   []float32 // State of the optimizer: slot after slot, each as long as params.
	updates uint64    // Updates applied to the parameters.
	version uint64    // Synchronous: version of the commit. Asynchronous: number of applied pushes.
	cut     uint64    // Number of the last cut with this block.
	image   *Image    // Content at that cut, if an update came before the checkpoint writer. Otherwise nil.
	spare   *Image    // Memory for an image, nil if it is in use or not reserved.
}

// newBlock returns a block of a model, without parameters.
func newBlock(m *model.Model, b placement.Block) *Block {
	return &Block{Block: b, tensor: m.Placement.Tensors[b.Tensor].Name}
}

// Name identifies the block in messages.
func (b *Block) Name() string {
	return fmt.Sprintf("block %d (tensor %q, elements %d to %d)", b.ID, b.tensor, b.Offset, b.Offset+b.Len)
}

// fill sets the first parameters. If they are not finite, the block has none.
func (b *Block) fill(values Values, rule optimizer.Rule) (isFinite bool) {
	b.Lock()
	defer b.Unlock()
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

// restore takes the content of an image, which is not used afterwards.
func (b *Block) restore(i *Image, rule optimizer.Rule) error {
	if len(i.Params) != b.Len || len(i.State) != len(rule.Slots())*b.Len {
		return fmt.Errorf("expected %d parameters with %d slices of state, found %d with %d elements of state", b.Len, len(rule.Slots()), len(i.Params), len(i.State))
	}
	b.params, b.state, b.updates, b.version = i.Params, i.State, i.Updates, i.Version
	return nil
}

func (b *Block) filled() bool {
	b.Lock()
	defer b.Unlock()
	return b.params != nil
}

// Push applies the gradient in values for a step of the trainer, unless the step was applied before. It passes the parameters after
// the update to out, unless out is nil, and can overwrite values with them piece by piece. If the trainer makes values in shared
// memory non-finite during the call, the elements before them stay applied.
func (s *Shard) Push(h *View, b *Block, t *Trainer, u Update, values Values, out Sink) (result Result, refused *Refusal) {
	if refused := s.opened(); refused != nil {
		return result, refused
	}
	b.Lock()
	defer b.Unlock()
	fresh, err := b.Admit(t.Trainer, u.Step)
	if err != nil {
		return result, refusalOf(fmt.Errorf("%s: %w", b.Name(), err), t)
	}
	var update optimizer.Step
	var kept *Image
	if fresh {
		age := b.stalenessLocked(u.BasedOn)
		weight := h.model.Staleness.Weight(age)
		s.Counters.stale(age, weight)
		kept = s.preserveLocked(b)
		b.SetStep(t.Trainer, u.Step)
		b.version++
		b.updates++
		update = h.model.Update(b.updates, u.Step, u.Scale*weight*s.rate.Load().Scale) //guard:push-uses-the-learning-rate
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
			isFinite = floats.Finite(b.params[lo:hi])
		}
		if fresh && refused == nil {
			s.seeBlock(b, lo, hi, isFinite, h.model.Rule.Slots(), "step", u.Step)
		}
	}
	return result, refused
}

// stalenessLocked is the number of updates since version. It is 0 for a version that the block has not reached, since a restart
// lost that version.
func (b *Block) stalenessLocked(version uint32) uint64 {
	now := ClampVersion(b.version)
	return uint64(now - min(version, now))
}

// Pull passes a copy of the parameters to out.
func (b *Block) Pull(out Sink) *Refusal {
	b.Lock()
	defer b.Unlock()
	if b.Moved() {
		return Refuse(Moved, "%s: %v", b.Name(), partition.ErrMoved)
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
