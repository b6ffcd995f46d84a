package table

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"trainmaster/pserver/wire"
)

// Errors of a slot during a migration.
var (
	ErrFrozen = errors.New("slot is frozen for a migration")
	ErrMoved  = errors.New("slot is on another shard now")
)

// Freeze keeps updates away from a slot, until Thaw or Leave. Freezing it again changes nothing.
// Of the three only one is called at a time.
func (t *Table) Freeze(number uint32) error {
	s, err := t.slot(number)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen == nil {
		s.frozen = make(chan struct{})
	}
	return nil
}

// Thaw permits updates of all slots again.
func (t *Table) Thaw() {
	for _, i := range t.held {
		s := t.slots[i]
		s.mu.Lock()
		s.thawLocked()
		s.mu.Unlock()
	}
}

func (s *slot) thawLocked() {
	if s.frozen != nil {
		close(s.frozen)
		s.frozen = nil
	}
}

// Frozen closes when the first frozen slot of a checked batch is not frozen any more; nil if none is.
func (t *Table) Frozen(rows *wire.Rows) (until <-chan struct{}) {
	for _, span := range rows.Spans {
		s := t.slots[span.Slot]
		s.mu.Lock()
		frozen := s.frozen
		s.mu.Unlock()
		if frozen != nil {
			return frozen
		}
	}
	return nil
}

// movingLocked returns an error if the slot is frozen or moved.
func (t *Table) movingLocked(number uint32) error {
	switch s := t.slots[number]; {
	case s.moved:
		return fmt.Errorf("table %q, slot %d: %w", t.cfg.Name, number, ErrMoved)
	case s.frozen != nil:
		return fmt.Errorf("table %q, slot %d: %w", t.cfg.Name, number, ErrFrozen)
	}
	return nil
}

func (t *Table) slot(number uint32) (*slot, error) {
	if number >= Slots || t.slots[number] == nil {
		return nil, fmt.Errorf("table %q, slot %d: %w", t.cfg.Name, number, ErrNotHeld)
	}
	return t.slots[number], nil
}

// Outgoing reads a frozen slot, a piece at a time.
type Outgoing struct {
	table  *Table
	number uint32
	frozen chan struct{} // as it was at the first piece: another one is another move
	row    uint32
	ids    []int64 // that wait for a row, ascending, from the last piece of rows on
	rows   bool    // all of them were read
}

// Send begins to read a frozen slot.
func (t *Table) Send(number uint32) (*Outgoing, error) {
	s, err := t.slot(number)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen == nil {
		return nil, fmt.Errorf("table %q, slot %d is not frozen: %w", t.cfg.Name, number, ErrMoved)
	}
	return &Outgoing{table: t, number: number, frozen: s.frozen}, nil
}

// Next returns the next piece, with at most the given number of rows and candidates, and whether it is the last piece. It has no steps.
// It fails if the slot is not frozen any more.
func (o *Outgoing) Next(most int) (m *Image, last bool, err error) {
	t := o.table
	s := t.slots[o.number]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen != o.frozen {
		return nil, false, fmt.Errorf("table %q, slot %d is not frozen any more: %w", t.cfg.Name, o.number, ErrMoved)
	}
	m = &Image{Clock: s.clock, LiveRows: s.liveRows}
	for ; o.row < s.end && len(m.IDs) < most; o.row++ {
		if r := s.at(o.row); *r.version() != 0 {
			t.addRow(m, r)
		}
	}
	if o.row < s.end {
		return m, false, nil
	}
	if !o.rows {
		o.rows, o.ids = true, slices.Sorted(maps.Keys(s.candidates))
	}
	n := min(most-len(m.IDs), len(o.ids))
	m.Candidates = s.candidatesLocked(o.ids[:n])
	o.ids = o.ids[n:]
	return m, len(o.ids) == 0, nil
}

// Step is the step of a column that was last applied in the slot.
func (o *Outgoing) Step(c *Column) uint64 {
	s := o.table.slots[o.number]
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.steps[o.number]
}

// Incoming is a slot of another shard in transfer. It is filled separately from the held slots, see Placed.
type Incoming struct {
	table  *Table
	number uint32
	slot   *slot
}

// Receive begins a slot.
func (t *Table) Receive(number uint32) *Incoming {
	return &Incoming{table: t, number: number, slot: &slot{key: t.cfg.Key}}
}

// Add adds the next piece. After an error the slot is unusable.
func (in *Incoming) Add(m *Image) error {
	t := in.table
	if err := t.checkImage(in.number, m, 0); err != nil {
		return err
	}
	for _, id := range m.IDs {
		if in.slot.find(t.cfg.Key.hash(id), id) != noRow {
			return fmt.Errorf("table %q, slot %d: duplicate id %d", t.cfg.Name, in.number, id)
		}
	}
	if err := t.addRows(in.slot, in.number, m); err != nil {
		return err
	}
	in.slot.clock = m.Clock
	return t.addCandidates(in.slot, in.number, m.Candidates)
}

// Rows returns the current number of rows.
func (in *Incoming) Rows() int { return in.slot.liveRows }

// Placed returns the share of the table after a move. Slots that are held before and after the move are the same in both; the
// other slots come from arrived. The error names a slot in neither.
func (t *Table) Placed(held []uint32, arrived func(number uint32) *Incoming) (*Table, error) {
	placed := &Table{cfg: t.cfg, rule: t.rule, counted: t.counted, state: t.state, init: t.init, arena: t.arena, held: held, current: t.current}
	placed.overflow.Store(t.overflow.Load())
	for _, i := range held {
		placed.slots[i] = t.slots[i]
		if placed.slots[i] != nil {
			continue
		}
		in := arrived(i)
		if in == nil {
			return nil, fmt.Errorf("slot %d of table %q", i, t.cfg.Name)
		}
		placed.slots[i] = in.slot
	}
	return placed, nil
}

// Leave frees the slots that another shard owns after the move. Later operations on them fail with ErrMoved.
func (t *Table) Leave(after *Table) {
	for _, i := range t.held {
		if after.slots[i] == t.slots[i] {
			continue
		}
		s := t.slots[i]
		s.mu.Lock()
		chunks := s.chunks
		s.thawLocked()
		s.moved = true
		s.index, s.chunks, s.free, s.candidates, s.saved, s.liveRows, s.end = nil, nil, nil, nil, nil, 0, 0
		s.mu.Unlock()
		t.arena.give(chunks)
	}
}

// Mark says that a slot has a step of the column's trainer, and none after it.
func (t *Table) Mark(number uint32, c *Column, step uint64) {
	s := t.slots[number]
	s.mu.Lock()
	defer s.mu.Unlock()
	c.steps[number] = step
}
