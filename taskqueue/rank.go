package taskqueue

// With Options.Ranks the dispatch is a function of what is finished and not of who
// asks first: position p of a pass is for the trainer of rank p mod Ranks, positions
// are dispatched in their order, nobody prefetches, and a task that comes back goes
// to its rank again. A trainer's rank is its place by ordinal among those that can
// be given tasks; one beyond the last rank stands by.

// trainerOf is the trainer that a position is for, nil while there is none.
func (q *Queue) trainerOf(position int) *trainer {
	rank := position % q.opt.Ranks
	for _, t := range q.sortedTrainers() {
		switch {
		case t.gone || t.plain || t.draining:
		case rank == 0:
			return t
		default:
			rank--
		}
	}
	return nil
}

// due are the positions of a set that would be dispatched now if their trainers asked:
// those that came back, and the next one of the pass.
func (q *Queue) due(s *set) (back []*entry, next int, more bool) {
	for _, e := range s.live {
		if !e.gone && e.held == 0 {
			back = append(back, e)
		}
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
	if !more || q.trainerOf(next) != t {
		return nil
	}
	s.cursor++
	e := s.add(s.pass, next)
	q.advance(s)
	return e
}

// Contributors are the trainers that a synchronous step is made of, by ordinal: those on
// whose tasks the clock runs. With Options.Ranks a step has to wait, and ok is false, while
// a trainer has not asked for a task that is due to it: else the step would depend on who is fast.
func (q *Queue) Contributors() (list []Ordinal, ok bool) {
	if q.opt.Ranks > 0 {
		for _, s := range q.sets {
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
	return q.withoutHeld(q.Runners()), true
}

// Ranks is how many trainers deterministic steps are of; 0: they are not.
func (q *Queue) Ranks() int { return q.opt.Ranks }

func (q *Queue) isRunning(position int) bool {
	t := q.trainerOf(position)
	return t != nil && t.running()
}
