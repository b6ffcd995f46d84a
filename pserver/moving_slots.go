package pserver

import (
	"fmt"

	"trainmaster/pserver/table"
)

// A slot of a table of embeddings moves as a block does, by the same steps at the same time. It may be much larger,
// and so it goes in pieces; its part in the steps of trainers is the columns' entry for it.

// slotID names a slot of all tables.
type slotID struct{ table, slot uint32 }

// slotPiece is a part of a slot in a migration.
type slotPiece struct {
	slotID
	image *table.Image
	last  bool // and then what follows is there too
	origin
}

// origin is what a slot says of where it comes from.
type origin struct {
	applied []appliedStep
	retired retirement // of the source
}

// slotArrival is a slot that another shard gave.
type slotArrival struct {
	slotID
	*table.Incoming
	origin
}

// pieceBytes is about what a piece has.
const pieceBytes = 1 << 20

// slotsHeld counts the slots of all tables.
func (h *holding) slotsHeld() (n int) {
	for _, t := range h.tables {
		n += len(t.Held())
	}
	return n
}

// isEmpty says that nothing of the model is here.
func (h *holding) isEmpty() bool { return len(h.blocks)+h.slotsHeld() == 0 }

// tableOf is the table of a slot.
func (h *holding) tableOf(id slotID) (*table.Table, error) {
	if int(id.table) >= len(h.tables) || id.slot >= table.Slots {
		return nil, fmt.Errorf("%w: slot %d of table %d: there are %d tables of %d slots", errMismatch, id.slot, id.table, len(h.tables), table.Slots)
	}
	return h.tables[id.table], nil
}

// freezeSlot keeps pushes away from a slot that is to leave.
func (h *holding) freezeSlot(id slotID) error {
	t, err := h.tableOf(id)
	if err != nil {
		return err
	}
	if err := t.Freeze(id.slot); err != nil {
		return fmt.Errorf("%w: %w", errMismatch, err)
	}
	return nil
}

// freezeTables keeps pushes away from all slots.
func (h *holding) freezeTables() error {
	for k, t := range h.tables {
		for _, slot := range t.Held() {
			if err := h.freezeSlot(slotID{uint32(k), slot}); err != nil {
				return err
			}
		}
	}
	return nil
}

// readSlot gives a frozen slot to send, piece by piece.
func (s *shard) readSlot(term uint64, epoch uint32, id slotID, send func(slotPiece) error) error {
	out, err := s.beginSlot(term, epoch, id)
	if err != nil {
		return err
	}
	for last := false; !last; {
		piece := slotPiece{slotID: id}
		if piece.image, last, err = out.Next(max(1, pieceBytes/out.table.RowBytes())); err != nil {
			return fmt.Errorf("%w: %w", errOldMove, err)
		}
		if piece.last = last; last {
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
	slotID
	*table.Outgoing
	table *table.Table
}

// beginSlot finds a frozen slot.
func (s *shard) beginSlot(term uint64, epoch uint32, id slotID) (*slotOut, error) {
	s.commitMu.Lock() // no placement changes
	defer s.commitMu.Unlock()
	h, err := s.heed(term, epoch)
	if err != nil {
		return nil, err
	}
	out := &slotOut{slotID: id}
	if out.table, err = h.tableOf(id); err != nil {
		return nil, err
	}
	if out.Outgoing, err = out.table.Send(id.slot); err != nil {
		return nil, fmt.Errorf("%w: %w", errOldMove, err)
	}
	return out, nil
}

// originOf lists the steps of all trainers that a slot has, and says whose are forgotten.
func (s *shard) originOf(out *slotOut) origin {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := origin{retired: s.retired}
	for _, t := range s.rosterLocked() {
		o.applied = append(o.applied, appliedStep{t.ordinal, t.incarnation, out.Step(t.columns[out.slotID.table])})
	}
	return o
}

// slotTaker puts slots together that arrive in pieces.
type slotTaker struct {
	holding *holding
	want    []slotID // still to come, in their order
	open    *slotArrival
	taken   map[slotID]*slotArrival
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
		return fmt.Errorf("%w: %d slots did not come", errMismatch, len(k.want))
	}
	return nil
}

// add takes the next piece.
func (k *slotTaker) add(p slotPiece) error {
	if len(k.want) == 0 || p.slotID != k.want[0] {
		return fmt.Errorf("%w: a piece of slot %d of table %d was not asked for", errMismatch, p.slot, p.table)
	}
	t, err := k.holding.tableOf(p.slotID)
	if err != nil {
		return err
	}
	if k.open == nil {
		k.open = &slotArrival{slotID: p.slotID, Incoming: t.Receive(p.slot)}
	}
	if err := k.open.Add(p.image); err != nil {
		return fmt.Errorf("%w: %w", errMismatch, err)
	}
	if !p.last {
		return nil
	}
	if got := k.open.Rows(); got != p.image.LiveRows {
		return fmt.Errorf("%w: slot %d of table %d came with %d rows: expected %d", errMismatch, p.slot, p.table, got, p.image.LiveRows)
	}
	k.open.origin = p.origin
	k.taken[p.slotID] = k.open
	k.open, k.want = nil, k.want[1:]
	return nil
}

// placeTables makes the tables of h, after a move: slots that stay are those of old, the others have arrived.
func (s *shard) placeTables(old, h *holding) (arrived []*slotArrival, err error) {
	if old.model == h.model { // it joins
		for k := range h.model.Placement.Sparse {
			old.tables = append(old.tables, s.newTable(h.model, k, nil))
		}
	}
	for k, t := range old.tables {
		placed, err := t.Placed(h.model.Placement.HeldSlots(k, s.index), func(slot uint32) *table.Incoming {
			a := s.moving.slots[slotID{uint32(k), slot}]
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
func (s *shard) arriveSlotsLocked(old, h *holding, arrived []*slotArrival) {
	for _, a := range arrived {
		s.heedRetiredLocked(h, a.retired)
		table := h.tables[a.table]
		for _, t := range s.trainers {
			table.Mark(a.slot, t.columns[a.table], 0)
		}
		for _, by := range a.applied {
			if t := s.knownLocked(h, by); t != nil {
				table.Mark(a.slot, t.columns[a.table], by.step)
			}
		}
	}
	for k, t := range old.tables {
		t.Leave(h.tables[k])
		h.tables[k].Thaw()
	}
}
