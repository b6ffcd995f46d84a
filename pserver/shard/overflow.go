package shard

import (
	"errors"
	"fmt"

	"trainmaster/pserver/floats"
	"trainmaster/pserver/table"
)

// ErrOverflow reports parameters or optimizer state that are not finite. Finite gradients can cause it: the sum of two values
// of 3e38 and their squares overflow.
var ErrOverflow = errors.New("parameters overflowed")

// overflowed notes the first value that is not finite. Describe reports it, and no checkpoint is written after it.
func (s *Shard) overflowed(what string) {
	//guard:overflow-recorded
	if s.overflow.CompareAndSwap(nil, &what) {
		s.note(Error, "parameters overflowed: checkpoints stopped", map[string]any{"value": what})
	}
}

// Overflow is the first value that is not finite, "" if there is none.
func (s *Shard) Overflow() string {
	if what := s.overflow.Load(); what != nil {
		return *what
	}
	return ""
}

// CheckOverflow is nil if all values are finite.
func (s *Shard) CheckOverflow() error {
	if h := s.view.Load(); h != nil {
		for _, t := range h.tables { // a cut can have a row whose update is not noted yet
			s.seeTable(t, "version", s.version.Load())
		}
	}
	if what := s.Overflow(); what != "" {
		return fmt.Errorf("%w at shard %d: %s: earlier checkpoints stay: lower the learning rate or clip gradients, and restart from the latest set with master --resume", ErrOverflow, s.index, what)
	}
	return nil
}

// seeBlock notes the first value of elements lo to hi of a block, or of their state, that is not finite after an update. It checks
// only the last slice of the state, which has the squares; a value that is not finite in another slice makes the parameter
// non-finite too. isFinite describes the parameters, and slots names the state. The caller holds the block's lock.
func (s *Shard) seeBlock(b *Block, lo, hi int, isFinite bool, slots []string, update string, number uint64) {
	part, values := "", b.params
	if last := len(slots) - 1; isFinite && last >= 0 {
		part, values = slots[last]+" of ", b.state[last*b.Len:]
		isFinite = floats.Finite(values[lo:hi])
	}
	if isFinite || s.overflow.Load() != nil {
		return
	}
	i := lo + floats.FirstNotFinite(values[lo:hi])
	s.overflowed(fmt.Sprintf("tensor %q: %selement %d is %v after %s %d", b.tensor, part, b.Offset+i, values[i], update, number))
}

// seeTable notes the first row of a table that is not finite after an update.
func (s *Shard) seeTable(t *table.Table, update string, number uint64) {
	if o := t.Overflow(); o != nil && s.overflow.Load() == nil {
		s.overflowed(fmt.Sprintf("table %q: %v after %s %d", t.Config().Name, o, update, number))
	}
}
