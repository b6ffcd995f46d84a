package shard

import (
	"fmt"

	"trainmaster/pserver/table"
)

// A slot of a table of embeddings moves as a block does, by the same steps at the same time. It may be much larger,
// and so it goes in pieces; its part in the steps of trainers is the columns' entry for it.

// SlotID names a slot of all tables.
type SlotID struct{ Table, Slot uint32 }

// SlotPiece is a part of a slot in a migration.
type SlotPiece struct {
	SlotID
	Image *table.Image
	Last  bool // and then what follows is there too
	origin
}

// origin is what a slot says of where it comes from.
type origin struct {
	Applied []AppliedStep
	Retired Retirement // of the source
}

// MovedSlot is a slot that another shard gave.
type MovedSlot struct {
	SlotID
	*table.Incoming
	origin
}

// pieceBytes is about what a piece has.
const PieceBytes = 1 << 20

// slotsHeld counts the slots of all tables.
func (h *View) slotsHeld() (n int) {
	for _, t := range h.tables {
		n += len(t.Held())
	}
	return n
}

// isEmpty says that nothing of the model is here.
func (h *View) isEmpty() bool { return len(h.blocks)+h.slotsHeld() == 0 }

// tableOf is the table of a slot.
func (h *View) tableOf(id SlotID) (*table.Table, error) {
	if int(id.Table) >= len(h.tables) || id.Slot >= table.Slots {
		return nil, fmt.Errorf("%w: slot %d of table %d: there are %d tables of %d slots", ErrMismatch, id.Slot, id.Table, len(h.tables), table.Slots)
	}
	return h.tables[id.Table], nil
}

// freezeSlot keeps pushes away from a slot that is to leave.
func (h *View) freezeSlot(id SlotID) error {
	t, err := h.tableOf(id)
	if err != nil {
		return err
	}
	if err := t.Freeze(id.Slot); err != nil {
		return fmt.Errorf("%w: %w", ErrMismatch, err)
	}
	return nil
}

// freezeTables keeps pushes away from all slots.
func (h *View) freezeTables() error {
	for k, t := range h.tables {
		for _, slot := range t.Held() {
			if err := h.freezeSlot(SlotID{uint32(k), slot}); err != nil {
				return err
			}
		}
	}
	return nil
}

// ReadSlot gives a frozen slot to send, piece by piece.
func (s *Shard) ReadSlot(term uint64, epoch uint32, id SlotID, send func(SlotPiece) error) error {
	out, err := s.beginSlot(term, epoch, id)
	if err != nil {
		return err
	}
	for last := false; !last; {
		piece := SlotPiece{SlotID: id}
		if piece.Image, last, err = out.Next(max(1, PieceBytes/out.table.RowBytes())); err != nil {
			return fmt.Errorf("%w: %w", ErrOldMove, err)
		}
		if piece.Last = last; last {
			piece.origin = s.originOf(out)
		}
		if err := send(piece); err != nil {
			return err
		}
	}
	return nil
}

// slotOut is a frozen slot that is read.
type slotOut struct {
	SlotID
	*table.Outgoing
	table *table.Table
}

// beginSlot finds a frozen slot.
func (s *Shard) beginSlot(term uint64, epoch uint32, id SlotID) (*slotOut, error) {
	s.commitMu.Lock() // no placement changes
	defer s.commitMu.Unlock()
	h, err := s.checkMove(term, epoch)
	if err != nil {
		return nil, err
	}
	out := &slotOut{SlotID: id}
	if out.table, err = h.tableOf(id); err != nil {
		return nil, err
	}
	if out.Outgoing, err = out.table.Send(id.Slot); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOldMove, err)
	}
	return out, nil
}

// originOf lists the steps of all trainers that a slot has, and says whose are forgotten.
func (s *Shard) originOf(out *slotOut) origin {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := origin{Retired: s.retired}
	for _, t := range s.rosterLocked() {
		o.Applied = append(o.Applied, AppliedStep{t.ordinal, t.incarnation, out.Step(t.columns[out.SlotID.Table])})
	}
	return o
}

// slotTaker puts slots together that arrive in pieces.
type slotTaker struct {
	holding *View
	want    []SlotID // still to come, in their order
	open    *MovedSlot
	taken   map[SlotID]*MovedSlot
}

// run takes all that it wants.
func (k *slotTaker) run(from source) error {
	if len(k.want) == 0 {
		return nil
	}
	if err := from.Slots(k.want, k.add); err != nil {
		return err
	}
	if len(k.want) > 0 {
		return fmt.Errorf("%w: %d slots did not come", ErrMismatch, len(k.want))
	}
	return nil
}

// add takes the next piece.
func (k *slotTaker) add(p SlotPiece) error {
	if len(k.want) == 0 || p.SlotID != k.want[0] {
		return fmt.Errorf("%w: a piece of slot %d of table %d was not asked for", ErrMismatch, p.Slot, p.Table)
	}
	t, err := k.holding.tableOf(p.SlotID)
	if err != nil {
		return err
	}
	if k.open == nil {
		k.open = &MovedSlot{SlotID: p.SlotID, Incoming: t.Receive(p.Slot)}
	}
	if err := k.open.Add(p.Image); err != nil {
		return fmt.Errorf("%w: %w", ErrMismatch, err)
	}
	if !p.Last {
		return nil
	}
	if got := k.open.Rows(); got != p.Image.LiveRows {
		return fmt.Errorf("%w: slot %d of table %d came with %d rows: expected %d", ErrMismatch, p.Slot, p.Table, got, p.Image.LiveRows)
	}
	k.open.origin = p.origin
	k.taken[p.SlotID] = k.open
	k.open, k.want = nil, k.want[1:]
	return nil
}

// placeTables makes the tables of h, after a move: slots that stay are those of old, the others have arrived.
func (s *Shard) placeTables(old, h *View) (arrived []*MovedSlot, err error) {
	if old.model == h.model { // it joins
		for k := range h.model.Placement.Sparse {
			old.tables = append(old.tables, s.newTable(h.model, k, nil))
		}
	}
	for k, t := range old.tables {
		placed, err := t.Placed(h.model.Placement.HeldSlots(k, s.index), func(slot uint32) *table.Incoming {
			a := s.moving.slots[SlotID{uint32(k), slot}]
			if a == nil || s.moving.epoch != h.model.Placement.Epoch {
				return nil
			}
			arrived = append(arrived, a)
			return a.Incoming
		})
		if err != nil {
			return nil, s.lacks(err.Error())
		}
		h.tables = append(h.tables, placed)
	}
	return arrived, nil
}

// arriveSlotsLocked gives trainers the steps of the arrived slots, and drops the steps of slots that another shard owns.
func (s *Shard) arriveSlotsLocked(old, h *View, arrived []*MovedSlot) {
	for _, a := range arrived {
		s.heedRetiredLocked(h, a.Retired)
		table := h.tables[a.Table]
		for _, t := range s.trainers {
			table.Mark(a.Slot, t.columns[a.Table], 0)
		}
		for _, by := range a.Applied {
			if t := s.knownLocked(h, by); t != nil {
				table.Mark(a.Slot, t.columns[a.Table], by.Step)
			}
		}
	}
	for k, t := range old.tables {
		t.Leave(h.tables[k])
		h.tables[k].Thaw()
	}
}
