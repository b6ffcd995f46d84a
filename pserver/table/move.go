package table

import (
	"fmt"
	"maps"
	"slices"

	"trainmaster/pserver/partition"
)

// Outgoing reads a frozen slot, a piece at a time.
type Outgoing struct {
	table *Table
	slot  *slot
	row   uint32
	ids   []int64 // of candidates, ascending, from the last piece of rows on
	rows  bool    // all of them were read
}

// Send begins to read a slot that is held.
func (t *Table) Send(number uint32) *Outgoing { return &Outgoing{table: t, slot: t.slots[number]} }

// Next returns the next piece, with at most the given number of rows and candidates, and whether it is the last piece. It has no
// steps. The caller holds the lock of the partition, which is frozen from the first piece to the last.
func (o *Outgoing) Next(most int) (m *Image, last bool) {
	s := o.slot
	m = &Image{Clock: s.clock, LiveRows: s.liveRows}
	for ; o.row < s.end && len(m.IDs) < most; o.row++ {
		if r := s.at(o.row); *r.version() != 0 {
			o.table.addRow(m, r)
		}
	}
	if o.row < s.end {
		return m, false
	}
	if !o.rows {
		o.rows, o.ids = true, slices.Sorted(maps.Keys(s.candidates))
	}
	n := min(most-len(m.IDs), len(o.ids))
	m.Candidates = s.candidatesLocked(o.ids[:n])
	o.ids = o.ids[n:]
	return m, len(o.ids) == 0
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

// Partition returns the partition of the slot.
func (in *Incoming) Partition() *partition.Partition { return &in.slot.Partition }

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

// Leave frees the slots that another shard owns after the move. Later operations on them fail with [partition.ErrMoved].
func (t *Table) Leave(after *Table) {
	for _, i := range t.held {
		s := t.slots[i]
		if after.slots[i] == s {
			continue
		}
		var chunks []chunk
		s.Leave(func() {
			chunks = s.chunks
			s.index, s.chunks, s.free, s.candidates, s.saved, s.liveRows, s.end = nil, nil, nil, nil, nil, 0, 0
		})
		t.arena.give(chunks)
	}
}
