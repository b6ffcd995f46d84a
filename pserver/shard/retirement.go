package shard

import (
	"errors"
	"fmt"
	"slices"
)

// Retirement has the incarnations that never return: those below floor, except the spared ones. A shard that has dropped the steps
// of an incarnation refuses it, since it could not distinguish a repeated push from a new one. So the floor accompanies the
// steps of trainers: in checkpoints, and with blocks that move.
type Retirement struct {
	Job    string // whose incarnations they are; "": none was retired
	Floor  uint64
	Spared []uint64 // of these, incarnations that are not retired, ascending
}

func (r *Retirement) over(incarnation uint64) bool {
	_, spared := slices.BinarySearch(r.Spared, incarnation)
	return incarnation < r.Floor && !spared
}

// after reports whether r is newer than other, of the same job.
func (r *Retirement) after(other *Retirement) bool {
	return r.Floor > other.Floor && (other.Job == "" || other.Job == r.Job)
}

// ErrNotLeader is the error of a caller that is not the leader of the shard's job.
var ErrNotLeader = errors.New("not the leader of this job")

// Retire drops retired trainers: the master has committed that. The call can come once, again, or late. A shard that does not
// know its job takes it from the first leader that calls; a checkpoint that names another job is of an earlier start.
func (s *Shard) Retire(term uint64, to Retirement, version *uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.JobID != "" && to.Job != s.JobID:
		return fmt.Errorf("%w: the trainers are of job %s, shard %d is of job %s: look the addresses up again", ErrNotLeader, to.Job, s.index, s.JobID)
	case term < s.migration.term:
		return fmt.Errorf("%w: shard %d: expected term %d or later, found %d", ErrNotLeader, s.index, s.migration.term, term)
	}
	s.JobID, s.migration.term, s.told = to.Job, term, true
	if version != nil && (s.unnamed.Job != to.Job || to.Floor > s.unnamed.Floor) {
		s.unnamed, s.unnamedAfter = to, *version
	}
	if s.retired.Job == to.Job && to.Floor <= s.retired.Floor {
		return nil
	}
	s.retired = to
	h := s.view.Load()
	//guard:retired-trainer-connection
	n := s.dropLocked(func(t *Trainer) { fence(h, t) })
	if n > 0 {
		s.note(Info, "retired trainers dropped", map[string]any{"retired": n, "known": len(s.trainers)})
	}
	return nil
}

// dropLocked drops the retired trainers, and counts them.
func (s *Shard) dropLocked(fence func(*Trainer)) (n int) {
	for ordinal, t := range s.trainers {
		if s.retired.over(t.Incarnation()) {
			fence(t)
			delete(s.trainers, ordinal)
			n++
		}
	}
	return n
}

// NewRetirement returns the retirement of the incarnations of a job below floor, except the spared ones.
func NewRetirement(job string, floor uint64, spared []uint64) Retirement {
	return Retirement{job, floor, slices.Sorted(slices.Values(spared))}
}
