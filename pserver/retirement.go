package pserver

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/sirupsen/logrus"
)

// retirement has the incarnations that never return: those below floor, except the spared ones. A shard that has dropped the steps
// of an incarnation refuses it, since it could not distinguish a repeated push from a new one. So the floor accompanies the
// steps of trainers: in checkpoints, and with blocks that move.
type retirement struct {
	job    string // whose incarnations they are; "": none was retired
	floor  uint64
	spared map[uint64]bool // never changed
}

func (r *retirement) over(incarnation uint64) bool {
	return incarnation < r.floor && !r.spared[incarnation]
}

// after reports whether r is newer than other, of the same job.
func (r *retirement) after(other *retirement) bool {
	return r.floor > other.floor && (other.job == "" || other.job == r.job)
}

// errNotHeeded is the error of a caller that is not the leader of the shard's job.
var errNotHeeded = errors.New("not the leader of this job")

// retire drops retired trainers: the master has committed that. The call can come once, again, or late. A shard that does not
// know its job takes it from the first leader that calls; a checkpoint that names another job is of an earlier life.
func (s *shard) retire(term uint64, to retirement, version *uint64) error {
	s.moving.mu.Lock()
	defer s.moving.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.job != "" && to.job != s.job:
		return fmt.Errorf("%w: the trainers are of job %s, shard %d is of job %s: look the addresses up again", errNotHeeded, to.job, s.index, s.job)
	case term < s.moving.term:
		return fmt.Errorf("%w: of term %d, shard %d knows of term %d", errNotHeeded, term, s.index, s.moving.term)
	}
	s.job, s.moving.term, s.told = to.job, term, true
	if version != nil && (s.unnamed.job != to.job || to.floor > s.unnamed.floor) {
		s.unnamed, s.unnamedAfter = to, *version
	}
	if s.retired.job == to.job && to.floor <= s.retired.floor {
		return nil
	}
	s.retired = to
	h := s.holding.Load()
	//guard:retired-trainer-connection
	n := s.dropLocked(func(t *trainer) { fence(h, t) })
	if n > 0 {
		s.log.WithFields(logrus.Fields{"retired": n, "known": len(s.trainers)}).Info("retired trainers dropped")
	}
	return nil
}

// dropLocked drops the retired trainers, and counts them.
func (s *shard) dropLocked(fence func(*trainer)) (n int) {
	for ordinal, t := range s.trainers {
		if s.retired.over(t.incarnation) {
			fence(t)
			delete(s.trainers, ordinal)
			n++
		}
	}
	return n
}

// newRetirement returns the retirement of the incarnations of a job below floor, except the spared ones.
func newRetirement(job string, floor uint64, spared []uint64) retirement {
	r := retirement{job: job, floor: floor, spared: make(map[uint64]bool, len(spared))}
	for _, incarnation := range spared {
		r.spared[incarnation] = true
	}
	return r
}

// sparedList is the spared incarnations in order.
func (r *retirement) sparedList() []uint64 { return slices.Sorted(maps.Keys(r.spared)) }
