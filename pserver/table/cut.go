package table

import (
	"fmt"
	"sync"

	"trainmaster/pserver/partition"
)

// Cut is a consistent state of a table: of every slot, it has the updates before the cut and none after it.
// The owner of a cut collects every slot of a table, one after the other, and ends with EndCut.
type Cut struct {
	Number   uint64               // from 1, growing
	Since    *Cut                 // the full cut: this cut has the rows that changed since; nil: all rows. See MaxDistance
	Trainers []*partition.Trainer // whose steps it has; a later trainer has none

	rows, words []uint32 // copies of the last Collect: row numbers, and the rows in sequence
	unchanged   []uint32 // row numbers of the last Collect

	mu     sync.Mutex
	memory []chunk // of rows that updates were about to change
	keeps  uint32  // rows in it

	used [Slots][]uint64 // of a full cut: a bit for each row number that was in use, by slot; only if the table has an expiry
}

// MaxDistance is the greatest difference of Number and Since. Rows have one byte for the number of the cut before their last update.
const MaxDistance = 256

// Image is the content of a slot at a cut.
type Image struct {
	Clock    uint32 // the greatest step applied
	LiveRows int    // rows in use, in IDs or not
	IDs      []int64
	Versions []uint32  // the slot's clock at the last update, by row
	Updates  []uint32  // by row; nil when the rule does not count
	Values   []float32 // [rows, 1 + slices of state, dim]

	Unchanged  []byte      // a bit for each row of the image of the full cut: it is unchanged and in use. Only if the table has an expiry
	Candidates []Candidate // ids without a row, ascending, all of them
	Steps      []uint64    // last applied, by trainer of the cut
}

// Candidate is an id that needs more updates to have a row.
type Candidate struct {
	ID      int64
	Updates uint32
	Version uint32
}

// preserveLocked is called before any change of a slot, with its lock held. From then to its collection the slot keeps what the
// current cut has of it, see saved.
func (t *Table) preserveLocked(number uint32) {
	if c := t.current(); c != nil && t.slots[number].cut != c.Number {
		t.saveLocked(number, c)
	}
}

// addRow copies a row into an image.
func (t *Table) addRow(m *Image, r record) {
	m.IDs = append(m.IDs, r.id())
	m.Versions = append(m.Versions, *r.version())
	if t.counted {
		m.Updates = append(m.Updates, *r.updates())
	}
	m.Values = append(m.Values, t.arena.floats(r)...)
}

// candidatesLocked copies what is known of ids without a row.
func (s *slot) candidatesLocked(ids []int64) (list []Candidate) {
	for _, id := range ids {
		w := s.candidates[id]
		list = append(list, Candidate{id, w.updates, w.version})
	}
	return list
}

// Sizes of an image, before it is collected. Unchanged is a number of bytes.
type Sizes struct{ Rows, Unchanged, Candidates int }

// Sizes returns the sizes of the result of Collect for a slot.
func (t *Table) Sizes(number uint32, c *Cut) Sizes {
	s := t.slots[number]
	s.Lock()
	defer s.Unlock()
	p := s.saved
	if s.cut != c.Number {
		p = t.saveLocked(number, c)
	}
	z := Sizes{Rows: s.countLocked(p), Candidates: p.waited}
	if p.listed {
		z.Unchanged = (onesCount(c.Since.used[number]) + 7) / 8
	}
	return z
}

// EndCut frees preserved rows that were not collected and ends the current cut.
func (t *Table) EndCut() {
	for _, i := range t.held {
		t.slots[i].Lock()
		t.slots[i].saved = nil
		t.slots[i].Unlock()
	}
	if c := t.cut.Swap(nil); c != nil {
		t.arena.give(c.memory)
		c.memory, c.keeps, c.rows, c.words, c.unchanged, c.Trainers = nil, 0, nil, nil, nil, nil // a full cut may stay, for Since
	}
}

// Restore puts an image of a full cut into an unused slot, optionally followed by an image of the changes since that cut.
// trainers are the trainers of the cut. After an error the slot is unusable.
func (t *Table) Restore(number uint32, m *Image, trainers []*partition.Trainer) error {
	s := t.slots[number]
	if err := t.checkImage(number, m, len(trainers)); err != nil {
		return err
	}
	if len(m.Unchanged) != 0 {
		if err := s.retain(m); err != nil {
			return t.slotError(number, err)
		}
	}
	s.clock = m.Clock
	if err := t.addRows(s, number, m); err != nil {
		return err
	}
	if s.liveRows != m.LiveRows {
		return fmt.Errorf("table %q, slot %d: expected %d rows, found %d", t.cfg.Name, number, m.LiveRows, s.liveRows)
	}
	s.candidates = nil
	if err := t.addCandidates(s, number, m.Candidates); err != nil {
		return err
	}
	for i, by := range trainers {
		s.SetStep(by, m.Steps[i])
	}
	return nil
}

// checkImage reports whether the parts of an image fit each other.
func (t *Table) checkImage(number uint32, m *Image, steps int) error {
	n := len(m.IDs)
	if len(m.Versions) != n || len(m.Values) != n*t.arena.values || t.counted && len(m.Updates) != n || len(m.Steps) != steps {
		return fmt.Errorf("table %q, slot %d: an image of %d rows with %d versions, %d values, %d numbers of updates and %d steps: expected %d values and %d steps",
			t.cfg.Name, number, n, len(m.Versions), len(m.Values), len(m.Updates), len(m.Steps), n*t.arena.values, steps)
	}
	return nil
}

// addRows puts the rows of an image into an unused slot and replaces rows of the same ids.
func (t *Table) addRows(s *slot, number uint32, m *Image) error {
	n := len(m.IDs)
	if err := s.checkRoom(n); err != nil {
		return fmt.Errorf("table %q: %w", t.cfg.Name, err)
	}
	seen := make(map[int64]bool, n)
	for k, id := range m.IDs {
		h := t.cfg.Key.hash(id)
		switch {
		case slotOf(h) != number:
			return fmt.Errorf("table %q, slot %d: id %d: %w: expected slot %d", t.cfg.Name, number, id, ErrWrongSlot, slotOf(h))
		case seen[id]:
			return fmt.Errorf("table %q, slot %d: duplicate id %d", t.cfg.Name, number, id)
		case m.Versions[k] == 0 || m.Versions[k] > maxClock:
			return fmt.Errorf("table %q, slot %d: id %d has version %d", t.cfg.Name, number, id, m.Versions[k])
		}
		seen[id] = true
		row := s.find(h, id)
		if row == noRow {
			row = s.insert(h, id, t.arena)
		}
		r := s.at(row)
		*r.version() = m.Versions[k]
		if t.counted {
			*r.updates() = m.Updates[k]
		}
		copy(t.arena.floats(r), m.Values[k*t.arena.values:])
	}
	return nil
}

// addCandidates adds ids without a row.
func (t *Table) addCandidates(s *slot, number uint32, list []Candidate) error {
	for _, w := range list {
		if t.cfg.SlotOf(w.ID) != number {
			return fmt.Errorf("table %q, slot %d: candidate %d: %w: expected slot %d", t.cfg.Name, number, w.ID, ErrWrongSlot, t.cfg.SlotOf(w.ID))
		}
		if s.candidates == nil {
			s.candidates = make(map[int64]candidate, len(list))
		}
		s.candidates[w.ID] = candidate{w.Updates, w.Version}
	}
	return nil
}

// retain drops the rows that changed or were dropped after the full cut. Row numbers are the positions in the image of the full cut.
func (s *slot) retain(m *Image) error {
	if len(m.Unchanged) != int(s.end+7)/8 {
		return fmt.Errorf("expected %d bits for unchanged rows, found %d bytes", s.end, len(m.Unchanged))
	}
	for row := range s.end {
		if m.Unchanged[row/8]>>(row%8)&1 == 0 {
			*s.at(row).version() = 0
			s.free = append(s.free, row)
			s.liveRows--
		}
	}
	s.reindex(len(s.index))
	return nil
}
