package taskqueue

// With Options.Ranks the dispatch depends on the finished tasks and not on the order of requests. Position p of a pass is for
// the trainer of rank p mod Ranks. Positions are dispatched in order, trainers do not prefetch, and a returned task goes to its
// rank again. A trainer's rank is its place by ordinal among the trainers that can get tasks. A trainer beyond the last
// rank waits as a spare.
//
// With Options.Cuts too, the steps after a rollback are the same as without it. Tasks are dispatched only while all ranks have
// a member. The job rolls back if a trainer holds a task of another rank, since the steps would then depend on which trainer
// was lost.

// trainerOf returns the trainer of a position, or nil.
func (q *Queue) trainerOf(position int) *trainer {
	rank := position % q.opt.Ranks
	for _, t := range q.sortedTrainers() {
		switch {
		case !q.isRanked(t):
		case rank == 0:
			return t
		default:
			rank--
		}
	}
	return nil
}

// isRanked reports whether a trainer counts for the ranks: with cuts, a member of this epoch.
func (q *Queue) isRanked(t *trainer) bool {
	return !t.gone && !t.plain && !t.draining && (!q.opt.Cuts || q.explicit.members[t.ordinal])
}

// ranksAbsent reports whether a rank has no trainer in a job with cuts.
func (q *Queue) ranksAbsent() bool {
	if q.opt.Ranks == 0 || !q.opt.Cuts {
		return false
	}
	present := 0
	for _, t := range q.trainers {
		if q.isRanked(t) {
			present++
		}
	}
	return present < q.opt.Ranks
}

// misplaced reports whether a trainer holds a task of another rank in a job with cuts.
func (q *Queue) misplaced() bool {
	if q.opt.Ranks == 0 || !q.opt.Cuts {
		return false
	}
	for _, s := range q.sets {
		for _, e := range s.live {
			//guard:task-of-another-rank
			if s.kind == Training && !e.gone && e.holderCount > 0 && e.holders[0].trainer != q.trainerOf(e.position) {
				return true
			}
		}
	}
	return false
}

// due returns the positions of a set that would be dispatched now if their trainers asked: the returned positions, and the
// next position of the pass.
func (q *Queue) due(s *set) (back []*entry, next int, more bool) {
	for _, e := range s.live {
		if !e.gone && e.holderCount == 0 && (q.explicit == nil || !q.exhausted(e)) { // else the next tick sets it aside
			back = append(back, e)
		}
	}
	//guard:returned-positions-in-order
	if q.opt.Cuts && len(back) > 0 { // a rollback returns positions that were not dispatched at the cut: each waits for those before it
		return back[:1], s.cursor, false
	}
	s.skipAside()
	return back, s.cursor, len(s.open) > 0 && s.cursor < s.tasks
}

// pickRanked is pick with Options.Ranks.
func (q *Queue) pickRanked(s *set, t *trainer) *entry {
	back, next, more := q.due(s)
	for _, e := range back {
		if q.trainerOf(e.position) == t {
			return e
		}
	}
	if !more || q.trainerOf(next) != t || !q.roomToDispatch(s) {
		return nil
	}
	s.cursor++
	e := s.add(s.pass, next)
	q.advance(s)
	return e
}

// Contributors returns the trainers that a synchronous step is made of, by ordinal: the trainers with a task whose clock runs.
// ok is false while no step may be made: during a cut, which is at the last committed version. With Options.Ranks, it is also false
// while a trainer has not requested its due task.
func (q *Queue) Contributors() (list []Ordinal, ok bool) {
	//guard:no-step-in-a-cut
	if q.holdsMembers() {
		return q.Runners(), false
	}
	if q.opt.Ranks > 0 {
		for _, s := range q.sets {
			if s.kind != Training {
				continue
			}
			back, next, more := q.due(s)
			for _, e := range back {
				if !q.isRunning(e.position) {
					return q.Runners(), false
				}
			}
			if more && !q.isRunning(next) {
				return q.Runners(), false
			}
		}
	}
	return q.Runners(), true
}

// Ranks is how many trainers deterministic steps are of; 0: they are not.
func (q *Queue) Ranks() int { return q.opt.Ranks }

func (q *Queue) isRunning(position int) bool {
	t := q.trainerOf(position)
	return t != nil && t.trains()
}
