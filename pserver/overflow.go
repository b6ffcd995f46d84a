package pserver

import (
	"errors"
	"fmt"

	"trainmaster/pserver/table"
	"trainmaster/pserver/wire"
)

// errOverflow: parameters, or the optimizer's state, are not finite. A gradient that is finite can do that: 3e38 and 3e38 are, and
// their sum and their squares are not.
var errOverflow = errors.New("parameters overflowed")

// overflowed notes the first value that is not finite. Describe says it from then on, and no checkpoint takes the place of one with
// finite values.
func (s *shard) overflowed(what string) {
	//guard:overflow-recorded
	if s.overflow.CompareAndSwap(nil, &what) {
		s.log.WithField("value", what).Error("parameters overflowed: no more checkpoints are written")
	}
}

// overflowText is the first value that is not finite, "" if there is none.
func (s *shard) overflowText() string {
	if what := s.overflow.Load(); what != nil {
		return *what
	}
	return ""
}

// checkOverflow is nil if all values are finite.
func (s *shard) checkOverflow() error {
	if h := s.holding.Load(); h != nil {
		for _, t := range h.tables { // a cut can have a row whose update is not noted yet
			s.seeTable(t, "version", s.version.Load())
		}
	}
	if what := s.overflowText(); what != "" {
		return fmt.Errorf("%w at shard %d: %s: the checkpoints before it stay; lower the learning rate or clip gradients, and begin again from the latest set with master --resume", errOverflow, s.index, what)
	}
	return nil
}

// seeBlock notes the first value of elements lo to hi of a block, or of their state, that is not finite after an update. Of the state
// it looks at the last slice, which has squares in rules with squares: what is not finite in another one makes the parameter so.
// isFinite says whether the parameters are, and slots names the state. The block's lock is held.
func (s *shard) seeBlock(b *block, lo, hi int, isFinite bool, slots []string, update string, number uint64) {
	part, values := "", b.params
	if last := len(slots) - 1; isFinite && last >= 0 {
		part, values = slots[last]+" of ", b.state[last*b.Len:]
		isFinite = wire.Finite(values[lo:hi])
	}
	if isFinite || s.overflow.Load() != nil {
		return
	}
	i := lo + wire.FirstNotFinite(values[lo:hi])
	s.overflowed(fmt.Sprintf("tensor %q: %selement %d is %v after %s %d", b.tensor, part, b.Offset+i, values[i], update, number))
}

// seeTable notes the first row of a table that is not finite after an update.
func (s *shard) seeTable(t *table.Table, update string, number uint64) {
	if o := t.Overflow(); o != nil && s.overflow.Load() == nil {
		s.overflowed(fmt.Sprintf("table %q: %v after %s %d", t.Config().Name, o, update, number))
	}
}
