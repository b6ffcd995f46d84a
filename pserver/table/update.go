package table

import (
	"trainmaster/pserver/floats"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/partition"
)

// Step identifies an update.
type Step struct {
	Number uint64  // of the trainer's push, or the version of a commit; moves the clocks of the slots on
	Scale  float32 // factor of the learning rate
}

// missed is how many of the updates of a slot came after the trainer looked rows of it up, or updated it. A trainer of which nothing is
// known, as after a restart, missed none.
func (s *slot) missed(by *partition.Trainer) uint64 {
	if seen, known := s.Seen(by); known {
		return uint64(s.pushed - min(seen, s.pushed))
	}
	return 0
}

// Update applies the gradients of a checked batch for a trainer's step, slot by slot, and overwrites the gradients. It skips slots
// that have the step; applied is the number of the others. After [partition.ErrFrozen], [partition.ErrMoved] or ErrNotFinite some
// slots may have the step. weight is another factor for the learning rate, by the number of updates of a slot by others since the
// trainer looked up rows of it, see Lookup; nil: 1.
func (t *Table) Update(rows *Batch, by *partition.Trainer, step Step, weight func(staleness uint64) float32) (applied int, err error) {
	sc := scratches.Get().(*scratch)
	defer scratches.Put(sc)
	k := 0
	for _, span := range rows.Spans {
		n := int(span.Rows)
		grads := rows.Values[k*t.cfg.Dim : (k+n)*t.cfg.Dim]
		//guard:shared-rows-copied
		if rows.Shared {
			sc.sums = grown(sc.sums, len(grads))
			if !floats.CopyFinite(sc.sums, grads) {
				return applied, t.slotError(span.Slot, ErrNotFinite)
			}
			grads = sc.sums
		}
		fresh, err := t.push(span.Slot, rows.IDs[k:k+n], grads, by, step, weight, sc)
		if err != nil {
			return applied, err
		}
		if fresh {
			applied++
		}
		k += n
	}
	return applied, nil
}

func (t *Table) push(number uint32, ids []int64, grads []float32, by *partition.Trainer, step Step, weight func(uint64) float32, sc *scratch) (fresh bool, err error) {
	s := t.slots[number]
	s.Lock()
	defer s.Unlock()
	if fresh, err = s.Admit(by, step.Number); err == nil && fresh {
		err = s.checkRoom(len(ids))
	}
	if err != nil {
		return false, t.slotError(number, err)
	}
	if !fresh {
		return false, nil
	}
	//guard:cut-copies-before-update
	t.preserveLocked(number)
	s.SetStep(by, step.Number)
	if weight != nil {
		//guard:row-staleness
		step.Scale *= weight(s.missed(by))
	}
	s.pushed++
	s.See(by, s.pushed)
	t.updateLocked(s, ids, grads, 1, step, sc)
	return true, nil
}

// CheckRoom reports whether a slot has room for as many more rows.
func (t *Table) CheckRoom(number uint32, more int) error {
	s := t.slots[number]
	s.Lock()
	defer s.Unlock()
	if err := s.checkRoom(more); err != nil {
		return t.slotError(number, err)
	}
	return nil
}

// Share is a part of the gradient of one slot.
type Share struct {
	IDs   []int64
	Grads []float32 // [ids, dim]
}

// Commit applies the sum of shares, in their order, times factor to a slot. The shares do not change. Without shares only the
// clock of the slot advances. The slot must have room, see CheckRoom.
func (t *Table) Commit(number uint32, shares []Share, factor float32, step Step) {
	sc := scratches.Get().(*scratch)
	defer scratches.Put(sc)
	ids, sums := sc.ids[:0], sc.sums[:0]
	for _, p := range shares {
		ids, sums = append(ids, p.IDs...), append(sums, p.Grads...)
	}
	sc.ids, sc.sums = ids, sums
	s := t.slots[number]
	s.Lock()
	defer s.Unlock()
	t.preserveLocked(number)
	t.updateLocked(s, ids, sums, factor, step, sc)
}

// updateLocked sums the gradients of equal ids, multiplies by factor and applies the rule.
func (t *Table) updateLocked(s *slot, ids []int64, grads []float32, factor float32, step Step, sc *scratch) {
	s.expire(t.cfg.Expiry, step.Number)
	//guard:row-age-by-server-clock
	version := max(1, s.clock) // not the step, which a slow trainer may have far behind
	dim := t.cfg.Dim
	sc.rows, sc.newCandidates = grown(sc.rows, len(ids)), sc.newCandidates[:0]
	s.findAll(ids, sc.rows, sc)
	made := false // then an id that repeats may have a row now
	for k, id := range ids {
		row := sc.rows[k]
		sc.rows[k] = noRow
		if row == noRow {
			h := s.key.hash(id)
			if made {
				row = s.find(h, id)
			}
			if row == noRow {
				if !s.admit(id, k, t.cfg.Admission, sc) {
					continue
				}
				row, made = t.makeLocked(s, h, id), true
			}
		}
		v := s.at(row).version()
		if *v&marked != 0 {
			first := int(*v &^ marked)
			optimizer.Add(grads[first*dim:(first+1)*dim], grads[k*dim:(k+1)*dim])
			continue
		}
		//guard:row-copied-before-update
		s.preserve(row)
		*v = marked | uint32(k)
		sc.rows[k] = row
	}
	if factor != 1 {
		optimizer.Scale(grads, factor)
	}
	for k, row := range sc.rows {
		if row == noRow {
			continue
		}
		r := s.at(row)
		*r.version() = version
		s.stamp(row)
		update := optimizer.Step{Scale: step.Scale}
		if t.counted {
			*r.updates()++
			update.Count = uint64(*r.updates())
		}
		values := t.arena.floats(r)
		params, state := t.split(values)
		t.rule.Apply(params, grads[k*dim:(k+1)*dim], state, update)
		t.see(r.id(), values)
	}
	for _, k := range sc.newCandidates {
		w := s.candidates[ids[k]]
		w.version = version
		s.candidates[ids[k]] = w
	}
}

// admit counts an update of an id without a row, once per batch, and reports whether
// the id gets a row.
func (s *slot) admit(id int64, k int, admission uint32, sc *scratch) bool {
	if admission <= 1 {
		return true
	}
	w := s.candidates[id]
	if w.version&marked != 0 {
		return false
	}
	s.preserveCandidate(id)
	w.updates++
	if w.updates >= admission {
		delete(s.candidates, id)
		return true
	}
	w.version = marked
	if s.candidates == nil {
		s.candidates = map[int64]candidate{}
	}
	s.candidates[id] = w
	sc.newCandidates = append(sc.newCandidates, k)
	return false
}

// makeLocked makes the row of an id with its first values.
func (t *Table) makeLocked(s *slot, h uint64, id int64) uint32 {
	row := s.insert(h, id, t.arena)
	r := s.at(row)
	values := t.arena.floats(r)
	clear(values)
	if t.counted {
		*r.updates() = 0
	}
	params, state := t.split(values)
	t.init.fill(params, id)
	t.rule.Start(params, state)
	return row
}

// split is the parameters of a row, and the optimizer's state.
func (t *Table) split(values []float32) (params []float32, state optimizer.State) {
	dim := t.cfg.Dim
	for i := range t.state {
		state[i] = values[(1+i)*dim : (2+i)*dim]
	}
	return values[:dim:dim], state
}
