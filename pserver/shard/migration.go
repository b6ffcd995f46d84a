package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"trainmaster/pserver/model"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/partition"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/table"
)

// migration is the state of the shard while partitions change their shard. The leader takes four steps:
//
//	freeze at the source ──▶ take at the destination ──▶ commit ──▶ send the placement to all, destinations first
//
// From the first to the last, no push changes the partition, so both shards have the same content. The committed placement names
// the owner. Only the placement of a leader ends a freeze: the source does not know whether the placement was committed. For the same
// reason, a shard of a job with moved blocks has all its partitions frozen from its start until it receives the placement.
//
// Shard.mu guards the fields.
type migration struct {
	joins bool      // started without a partition, in a job with moved blocks; never changed
	term  uint64    // of the newest leader that called
	since time.Time // of the first freeze of the step in progress
	epoch uint32    // that the taken partitions wait for
	taken map[partition.ID]*incoming
	stops bool // the server stops and takes no more partitions
}

// The errors of a migration.
var (
	ErrOldMove    = errors.New("migration has ended")
	ErrBlocksLost = errors.New("blocks lost")
	ErrRetired    = errors.New("server is decommissioned")
	ErrSyncMove   = errors.New("a synchronous job moves blocks in a rollback only: expected Rewind")
)

// Move identifies one step of a migration.
type Move struct {
	Term  uint64
	Epoch uint32 // of the resulting placement
}

// Piece is a part of a partition in a migration. A block is one piece.
type Piece struct {
	partition.ID
	Block *Image       // nil: of a slot
	Rows  *table.Image // nil: of a block

	Last   bool
	Origin // of the last piece
}

// Origin has the trainers of the source of a partition.
type Origin struct {
	Applied []AppliedStep
	Retired Retirement
}

// AppliedStep is the last step of a trainer that a partition has.
type AppliedStep struct {
	Ordinal     uint32
	Incarnation uint64
	Step        uint64
}

// PieceBytes is about the size of a piece of a slot.
const PieceBytes = 1 << 20

// CheckRestored is called at the start. Of a job whose blocks were moved a shard has its blocks, or it must not serve.
func (s *Shard) CheckRestored(l *placement.Layout) error {
	switch {
	case l == nil:
		return nil
	case !l.Owns(s.index):
		s.migration.joins = true
		s.note(Info, "waiting for the first blocks", nil)
		return nil
	case !s.ready.Load():
		return fmt.Errorf("%w: shard %d: the placement assigns blocks, and there is no checkpoint: start a new job", ErrBlocksLost, s.index)
	}
	if h := s.view.Load(); !h.model.Sync { // a synchronous job is rolled back by its leader
		h.each((*partition.Partition).Freeze)
	}
	return nil
}

// Follows refuses a former leader.
func (s *Shard) Follows(term uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.followsLocked(term)
}

func (s *Shard) followsLocked(term uint64) error {
	if term < s.migration.term {
		return fmt.Errorf("%w: shard %d: expected term %d or later, found %d", ErrOldMove, s.index, s.migration.term, term)
	}
	return nil
}

// checkMoveLocked refuses a former leader, and a move to another epoch than the next.
func (s *Shard) checkMoveLocked(m Move) (*View, error) {
	if err := s.followsLocked(m.Term); err != nil {
		return nil, err
	}
	h := s.view.Load()
	switch {
	case h == nil || !s.ready.Load():
		return nil, fmt.Errorf("%w: shard %d has no parameters yet", ErrIncomplete, s.index)
	case h.model.Sync:
		return nil, ErrSyncMove
	case m.Epoch != h.model.Placement.Epoch+1:
		return nil, fmt.Errorf("%w: shard %d is at epoch %d: expected a move to the next epoch, found %d", ErrOldMove, s.index, h.model.Placement.Epoch, m.Epoch)
	}
	s.migration.term = m.Term
	return h, nil
}

// checkMove is checkMoveLocked with Shard.mu.
func (s *Shard) checkMove(m Move) (*View, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.checkMoveLocked(m)
}

// partition finds a partition of the shard.
func (h *View) partition(id partition.ID) (*partition.Partition, error) {
	var p *partition.Partition
	switch {
	case id.Table == 0 && h.byID[id.Number] != nil:
		p = &h.byID[id.Number].Partition
	case id.Table > 0 && int(id.Table) <= len(h.tables) && id.Number < table.Slots:
		p = h.tables[id.Table-1].Partition(uint32(id.Number))
	}
	if p == nil {
		return nil, fmt.Errorf("%w: %v is not here", ErrMismatch, id)
	}
	return p, nil
}

// each calls f with all partitions.
func (h *View) each(f func(*partition.Partition)) {
	for _, b := range h.blocks {
		f(&b.Partition)
	}
	for _, t := range h.tables {
		for _, slot := range t.Held() {
			f(t.Partition(slot))
		}
	}
}

// Freeze refuses pushes to partitions that are to leave.
func (s *Shard) Freeze(ctx context.Context, m Move, ids []partition.ID, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, err := s.checkMoveLocked(m)
	if err = cmp.Or(err, ctx.Err()); err != nil {
		return err
	}
	for _, id := range ids {
		p, err := h.partition(id)
		if err != nil {
			return err
		}
		p.Freeze()
	}
	if s.migration.since.IsZero() {
		s.migration.since = now
	}
	return nil
}

// Read gives a frozen partition to send, piece by piece.
func (s *Shard) Read(m Move, id partition.ID, send func(*Piece) error) error {
	h, err := s.checkMove(m)
	if err != nil {
		return err
	}
	p, err := h.partition(id)
	if err != nil {
		return err
	}
	next := h.reader(id)
	for until, last := p.Frozen(), false; !last; {
		piece := &Piece{ID: id}
		s.mu.Lock() // no trainer joins or ends
		isFrozen := p.WhileFrozen(until, func() {
			if next(piece); piece.Last {
				piece.Origin = s.originLocked(p)
			}
		})
		s.mu.Unlock()
		if !isFrozen {
			return fmt.Errorf("%w: %v of shard %d is not frozen", ErrOldMove, id, s.index)
		}
		if err := send(piece); err != nil {
			return err
		}
		last = piece.Last
	}
	return nil
}

// reader returns a function that fills one piece after the other. It is called with the lock of the partition held.
func (h *View) reader(id partition.ID) func(*Piece) {
	if id.Table == 0 {
		b := h.byID[id.Number]
		return func(p *Piece) {
			p.Block, p.Last = &Image{}, true
			p.Block.begin(b, &Cut{})
			p.Block.keep(b, 0, b.Len)
		}
	}
	t := h.tables[id.Table-1]
	out := t.Send(uint32(id.Number))
	return func(p *Piece) { p.Rows, p.Last = out.Next(max(1, PieceBytes/t.RowBytes())) }
}

// originLocked lists the last steps of all trainers that a partition has. The caller holds the lock of the partition too.
func (s *Shard) originLocked(p *partition.Partition) Origin {
	o := Origin{Retired: s.retired}
	for _, t := range s.rosterLocked() {
		o.Applied = append(o.Applied, AppliedStep{t.ordinal, t.Incarnation(), p.Step(t.Trainer)})
	}
	return o
}

// incoming is a partition of another shard in transfer.
type incoming struct {
	*partition.Partition
	block *Block          // nil: a slot
	rows  *table.Incoming // nil: a block
	Origin
}

// receive begins a partition.
func (h *View) receive(id partition.ID, blocks []placement.Block) (*incoming, error) {
	switch {
	case id.Table == 0 && id.Number < uint64(len(blocks)):
		b := newBlock(h.model, blocks[id.Number])
		return &incoming{Partition: &b.Partition, block: b}, nil
	case id.Table > 0 && int(id.Table) <= len(h.tables) && id.Number < table.Slots:
		rows := h.tables[id.Table-1].Receive(uint32(id.Number))
		return &incoming{Partition: rows.Partition(), rows: rows}, nil
	}
	return nil, fmt.Errorf("%w: the model has no %v", ErrMismatch, id)
}

// add adds the next piece.
func (in *incoming) add(p *Piece, rule optimizer.Rule) error {
	var err error
	switch {
	case (in.block != nil) != (p.Block != nil), (in.rows != nil) != (p.Rows != nil):
		err = errors.New("expected the content of a block or of a slot, found the other")
	case in.block != nil:
		err = in.block.restore(p.Block, rule)
	default:
		if err = in.rows.Add(p.Rows); err == nil && p.Last && in.rows.Rows() != p.Rows.LiveRows {
			err = fmt.Errorf("expected %d rows, found %d", p.Rows.LiveRows, in.rows.Rows())
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %v: %w", ErrMismatch, p.ID, err)
	}
	in.Origin = p.Origin
	return nil
}

// RefuseMoves makes Take fail from now on: the only copy of a partition must not go to a server that stops.
func (s *Shard) RefuseMoves() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.migration.stops = true
}

// HasTaken reports whether partitions of other shards wait for Settle.
func (s *Shard) HasTaken() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.migration.taken != nil
}

// Take keeps partitions of another shard until Settle. read passes their pieces to add, in the order of ids. An earlier copy of a
// partition is replaced.
func (s *Shard) Take(ctx context.Context, m Move, ids []partition.ID, read func(add func(*Piece) error) error) error {
	h, err := s.checkMove(m)
	if err != nil {
		return err
	}
	blocks, taken := h.model.Placement.Blocks(), map[partition.ID]*incoming{}
	var open *incoming
	if err := read(func(p *Piece) (err error) {
		if len(ids) == 0 || p.ID != ids[0] {
			return fmt.Errorf("%w: a piece of %v was not requested", ErrMismatch, p.ID)
		}
		if open == nil {
			if open, err = h.receive(p.ID, blocks); err != nil {
				return err
			}
		}
		if err = open.add(p, h.model.Rule); err == nil && p.Last {
			taken[p.ID] = open
			open, ids = nil, ids[1:]
		}
		return err
	}); err != nil {
		return err
	}
	if len(ids) > 0 {
		return fmt.Errorf("%w: %d partitions are missing", ErrMismatch, len(ids))
	}
	s.mu.Lock() // not during read: two shards may take partitions of each other
	defer s.mu.Unlock()
	if _, err := s.checkMoveLocked(m); cmp.Or(err, ctx.Err()) != nil {
		return cmp.Or(err, ctx.Err())
	}
	if s.migration.stops {
		return fmt.Errorf("%w: shard %d stops", ErrIncomplete, s.index)
	}
	if s.migration.epoch != m.Epoch || s.migration.taken == nil {
		s.migration.epoch, s.migration.taken = m.Epoch, map[partition.ID]*incoming{}
	}
	maps.Copy(s.migration.taken, taken)
	return nil
}

// Settle switches to the committed placement and ends a freeze. wanted reports that the call must be repeated with the model m of the
// job, when the other shards have switched: this shard has no model, or it only gives partitions away.
func (s *Shard) Settle(term uint64, l *placement.Layout, m *model.Model, now time.Time) (wanted bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.followsLocked(term); err != nil {
		return false, err
	}
	s.migration.term = term
	h := s.view.Load()
	joins := h == nil
	switch {
	case s.unrestored.Load() != nil:
		return false, fmt.Errorf("%w: shard %d waits: %s", ErrIncomplete, s.index, s.Unrestored())
	case joins && m == nil:
		return true, nil
	case joins:
		h = s.newEmptyView(m)
	case !s.ready.Load():
		return false, fmt.Errorf("%w: shard %d has no parameters yet", ErrIncomplete, s.index)
	}
	at := h.model.Placement
	switch {
	case h.model.Sync:
		return false, ErrSyncMove
	case !joins && l.Epoch < at.Epoch:
		return false, fmt.Errorf("%w: epoch %d, shard %d is at %d", ErrOldMove, l.Epoch, s.index, at.Epoch)
	case !joins && l.Epoch == at.Epoch:
		h.each((*partition.Partition).Thaw)
		s.migration.since = time.Time{}
	case !joins && m == nil && !l.Gives(at, s.index):
		return true, nil
	default:
		if err := s.switchLocked(h, l, now); err != nil {
			return false, err
		}
	}
	s.migration.taken = nil
	return false, nil
}

// switchLocked changes to the partitions that a placement gives this shard.
func (s *Shard) switchLocked(old *View, l *placement.Layout, now time.Time) error {
	m, err := old.model.WithLayout(l)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrMismatch, err)
	}
	var arrived []*incoming
	arrival := func(id partition.ID) *incoming {
		a := s.migration.taken[id]
		if a == nil || s.migration.epoch != l.Epoch {
			return nil
		}
		arrived = append(arrived, a)
		return a
	}
	h := newView(m, s.index)
	for i, b := range h.blocks {
		kept := old.byID[b.ID]
		if kept == nil {
			a := arrival(partition.Block(b.ID))
			if a == nil {
				return s.lacks(b.Name())
			}
			kept = a.block
		}
		h.blocks[i], h.byID[b.ID] = kept, kept
	}
	for k, t := range old.tables {
		placed, err := t.Placed(m.Placement.HeldSlots(k, s.index), func(slot uint32) *table.Incoming {
			if a := arrival(partition.Slot(k, slot)); a != nil {
				return a.rows
			}
			return nil
		})
		if err != nil {
			return s.lacks(err.Error())
		}
		h.tables = append(h.tables, placed)
	}
	for _, a := range arrived {
		s.arriveLocked(old, a)
	}
	s.view.Store(h)
	s.ready.Store(true)
	for _, b := range old.blocks {
		if h.byID[b.ID] == nil {
			b.Leave(func() { b.params, b.state, b.spare = nil, nil, nil })
		}
	}
	for k, t := range old.tables {
		t.Leave(h.tables[k])
	}
	h.each((*partition.Partition).Thaw)
	s.Counters.Switched.Add(1)
	fields := map[string]any{"epoch": m.Placement.Epoch, "blocks": len(h.blocks), "before": len(old.blocks)}
	if len(h.tables) > 0 {
		fields["slots"] = h.slotsHeld()
	}
	if !s.migration.since.IsZero() {
		fields["frozen"] = now.Sub(s.migration.since).Round(time.Millisecond)
		s.migration.since = time.Time{}
	}
	s.note(Info, "placement changed", fields)
	if s.index >= m.Placement.Shards {
		s.End(nil)
	}
	return nil
}

// arriveLocked gives an arrived partition the steps of its trainers, and drops the trainers that its source has dropped. old is the
// view in use.
func (s *Shard) arriveLocked(old *View, a *incoming) {
	//guard:migration-carries-retired
	if a.Retired.after(&s.retired) {
		s.retired = a.Retired
		s.dropLocked(func(t *Trainer) { fence(old, t) })
	}
	for _, by := range a.Applied {
		if t := s.knownLocked(old, by); t != nil {
			a.SetStep(t.Trainer, by.Step)
		}
	}
}

// knownLocked returns the trainer of an arrived step. If the source has a newer incarnation of a trainer, the older incarnation ends here
// too. It returns nil for an older or a retired incarnation: its steps are not needed.
func (s *Shard) knownLocked(old *View, by AppliedStep) *Trainer {
	t := s.trainers[by.Ordinal]
	switch {
	case s.retired.over(by.Incarnation), t != nil && t.Incarnation() > by.Incarnation:
		return nil
	case t != nil && t.Incarnation() == by.Incarnation:
		return t
	case t != nil:
		fence(old, t)
	}
	return s.newTrainerLocked(by.Ordinal, by.Incarnation)
}

// lacks ends a shard that was assigned a partition that it does not have.
func (s *Shard) lacks(what string) error {
	err := fmt.Errorf("%w: shard %d: the placement assigns %s, which is not here: restart the server: it loads the latest checkpoint set", ErrBlocksLost, s.index, what)
	s.End(err)
	return err
}

// End has the server end; the first reason counts.
func (s *Shard) End(err error) {
	select {
	case s.over <- err:
	default:
	}
}
