package shard

import "fmt"

// Rate is a committed factor of the learning rate, on top of the schedule.
type Rate struct {
	Number uint64 // of the change, from 1; 0: the learning rate was not changed
	Scale  float32
}

// Rate returns the factor of asynchronous updates.
func (s *Shard) Rate() Rate { return *s.rate.Load() }

// SetRate takes the factor of asynchronous updates from the leader of a term. An earlier change does nothing. It fails with
// [ErrNotLeader] after a call of a later term. Updates that run at the same time may use the factor before.
func (s *Shard) SetRate(term uint64, to Rate) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	//guard:learning-rate-of-the-leader
	if term < s.migration.term {
		return fmt.Errorf("%w: shard %d: expected term %d or later, found %d", ErrNotLeader, s.index, s.migration.term, term)
	}
	s.migration.term = term
	//guard:earlier-learning-rate-ignored
	if to.Number > s.rate.Load().Number {
		s.rate.Store(&to)
		s.note(Info, "learning rate changed", map[string]any{"scale": to.Scale, "change": to.Number})
	}
	return nil
}
