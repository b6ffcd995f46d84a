package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/pserver/model"
	"trainmaster/pserver/placement"
)

// A block changes its shard in four steps, which the leader takes:
//
//	freeze at the source ──▶ take at the destination ──▶ commit ──▶ tell all, destinations first
//
// From the first to the last, no push changes the block, so that both shards have the same
// values. The committed placement names the owner. Only the placement that a leader sends ends
// a freeze: the source cannot know more. A shard that starts in a job whose blocks were moved
// has all its blocks frozen until it receives the placement, for the same reason.
type moving struct {
	mu    sync.Mutex // taken before Shard.mu, after Shard.commitMu
	joins bool       // started without a block, in a job whose blocks are moved
	term  uint64     // of the newest leader that called
	since time.Time  // of the first freeze of the step under way
	epoch uint32     // that the taken blocks wait for
	taken map[uint64]*MovedBlock
	slots map[SlotID]*MovedSlot // taken, of tables
}

// MovedBlock is a block that another shard gave.
type MovedBlock struct {
	Image
	Applied []AppliedStep
	Retired Retirement // of the source
}

// AppliedStep is the last step of a trainer that a block has.
type AppliedStep struct {
	Ordinal     uint32
	Incarnation uint64
	Step        uint64
}

// The errors of a migration.
var (
	ErrOldMove    = errors.New("migration has ended")
	ErrBlocksLost = errors.New("blocks lost")
	ErrRetired    = errors.New("not of the job any more")
	ErrSyncMove   = errors.New("a synchronous job moves blocks in a rollback only: see Rewind")
)

// CheckRestored is called at the start. Of a job whose blocks were moved a shard has its blocks, or it must not serve.
func (s *Shard) CheckRestored(l *placement.Layout) error {
	switch {
	case l == nil:
		return nil
	case !l.Owns(s.index):
		s.moving.joins = true
		s.Log.Info("no block of the job is here yet: the leader moves some here")
		return nil
	case !s.ready.Load():
		return fmt.Errorf("%w: shard %d has no checkpoint, and its blocks were moved here: start the job over", ErrBlocksLost, s.index)
	}
	h := s.view.Load()
	if h.model.Sync {
		return nil // the leader rolls it back
	}
	for _, b := range h.blocks {
		b.freeze()
	}
	return h.freezeTables()
}

func (b *Block) freeze() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.frozen == nil {
		b.frozen = make(chan struct{})
	}
}

// thawLocked lets those go on that wait.
func (b *Block) thawLocked() {
	if b.frozen != nil {
		close(b.frozen)
		b.frozen = nil
	}
}

// movingLocked refuses a push to a block that moves; nil if the block stays.
func (b *Block) movingLocked() *Refusal {
	switch {
	case b.moved:
		return Refuse(Moved, "%s is on another shard now", b.Name())
	case b.frozen != nil:
		return Refuse(Frozen, "%s is about to move", b.Name()).Until(b.frozen)
	}
	return nil
}

// followsLocked refuses a leader that was followed by another one.
func (m *moving) followsLocked(s *Shard, term uint64) error {
	if term < m.term {
		return fmt.Errorf("%w: of term %d, shard %d knows of term %d", ErrOldMove, term, s.index, m.term)
	}
	return nil
}

// Follows refuses a leader that was followed by another one.
func (s *Shard) Follows(term uint64) error {
	s.moving.mu.Lock()
	defer s.moving.mu.Unlock()
	return s.moving.followsLocked(s, term)
}

// checkMoveLocked refuses a leader that was followed by another one, and a move to another
// epoch than the next.
func (m *moving) checkMoveLocked(s *Shard, term uint64, epoch uint32) (*View, error) {
	if err := m.followsLocked(s, term); err != nil {
		return nil, err
	}
	h := s.view.Load()
	switch {
	case h == nil || !s.ready.Load():
		return nil, fmt.Errorf("%w: shard %d has no parameters yet", ErrIncomplete, s.index)
	case h.model.Sync:
		return nil, ErrSyncMove
	case epoch != h.model.Placement.Epoch+1:
		return nil, fmt.Errorf("%w: it leads to epoch %d, shard %d is at %d", ErrOldMove, epoch, s.index, h.model.Placement.Epoch)
	}
	m.term = term
	return h, nil
}

func (h *View) find(id uint64) (*Block, error) {
	if b := h.byID[id]; b != nil {
		return b, nil
	}
	return nil, fmt.Errorf("%w: block %d is not here", ErrMismatch, id)
}

// FreezeBlocks keeps pushes away from blocks, and slots of tables, that are to leave.
func (s *Shard) FreezeBlocks(ctx context.Context, term uint64, epoch uint32, ids []uint64, slots []SlotID) error {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	s.moving.mu.Lock()
	defer s.moving.mu.Unlock()
	h, err := s.moving.checkMoveLocked(s, term, epoch)
	if err = cmp.Or(err, ctx.Err()); err != nil {
		return err
	}
	for _, id := range ids {
		b, err := h.find(id)
		if err != nil {
			return err
		}
		b.freeze()
	}
	for _, id := range slots {
		if err := h.freezeSlot(id); err != nil {
			return err
		}
	}
	if s.moving.since.IsZero() {
		s.moving.since = time.Now()
	}
	return nil
}

// checkMove is checkMoveLocked for callers that change nothing.
func (s *Shard) checkMove(term uint64, epoch uint32) (*View, error) {
	s.moving.mu.Lock()
	defer s.moving.mu.Unlock()
	return s.moving.checkMoveLocked(s, term, epoch)
}

// ReadBlock copies a frozen block.
func (s *Shard) ReadBlock(term uint64, epoch uint32, id uint64) (*MovedBlock, error) {
	s.commitMu.Lock() // no placement changes
	defer s.commitMu.Unlock()
	h, err := s.checkMove(term, epoch)
	if err != nil {
		return nil, err
	}
	b, err := h.find(id)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.frozen == nil {
		return nil, fmt.Errorf("%w: %s is not frozen", ErrOldMove, b.Name())
	}
	a := &MovedBlock{Retired: s.retired}
	a.take(b, &Cut{})
	for _, t := range s.rosterLocked() {
		a.Applied = append(a.Applied, AppliedStep{t.ordinal, t.incarnation, t.applied[b.Local]})
	}
	return a, nil
}

// source is another shard that gives blocks, and slots of tables.
type source interface {
	Block(id uint64) (*MovedBlock, error)
	// Slots gives them in their order.
	Slots(ids []SlotID, add func(SlotPiece) error) error
}

// TakeBlocks keeps what another shard gives, until the placement of epoch is committed or not.
// Whatever was taken of them before is replaced.
func (s *Shard) TakeBlocks(ctx context.Context, term uint64, epoch uint32, ids []uint64, slots []SlotID, from source) error {
	h, err := s.checkMove(term, epoch)
	if err != nil {
		return err
	}
	all := h.model.Placement.Blocks()
	arrivals := map[uint64]*MovedBlock{}
	for _, id := range ids {
		a, err := from.Block(id)
		if err != nil {
			return err
		}
		if id >= uint64(len(all)) || len(a.Params) != all[id].Len || len(a.State) != len(h.model.Rule.Slots())*all[id].Len {
			return fmt.Errorf("%w: block %d came with %d parameters and %d of state", ErrMismatch, id, len(a.Params), len(a.State))
		}
		arrivals[id] = a
	}
	taker := &slotTaker{holding: h, want: slots, taken: map[SlotID]*MovedSlot{}}
	if err := taker.run(from); err != nil {
		return err
	}
	s.commitMu.Lock() // not while it reads: two shards may take blocks of each other
	defer s.commitMu.Unlock()
	s.moving.mu.Lock()
	defer s.moving.mu.Unlock()
	if _, err := s.moving.checkMoveLocked(s, term, epoch); cmp.Or(err, ctx.Err()) != nil {
		return cmp.Or(err, ctx.Err())
	}
	if s.moving.epoch != epoch || s.moving.taken == nil {
		s.moving.epoch, s.moving.taken, s.moving.slots = epoch, map[uint64]*MovedBlock{}, map[SlotID]*MovedSlot{}
	}
	maps.Copy(s.moving.taken, arrivals)
	maps.Copy(s.moving.slots, taker.taken)
	return nil
}

// Settle switches to the committed placement. m is nil if the caller sent the epoch alone; wanted reports that the
// model is needed too.
func (s *Shard) Settle(term uint64, epoch uint32, m *model.Model) (wanted bool, err error) {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	s.moving.mu.Lock()
	defer s.moving.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.moving.followsLocked(s, term); err != nil {
		return false, err
	}
	s.moving.term = term
	h := s.view.Load()
	ready := h != nil && s.ready.Load()
	switch {
	case ready && h.model.Sync, m != nil && m.Sync:
		return false, ErrSyncMove
	case ready && epoch < h.model.Placement.Epoch:
		return false, fmt.Errorf("%w: epoch %d, shard %d is at %d", ErrOldMove, epoch, s.index, h.model.Placement.Epoch)
	case ready && epoch == h.model.Placement.Epoch:
		for _, b := range h.blocks {
			b.mu.Lock()
			b.thawLocked()
			b.mu.Unlock()
		}
		for _, t := range h.tables {
			t.Thaw()
		}
		s.moving.since = time.Time{}
	case s.unrestored.Load() != nil:
		return false, fmt.Errorf("%w: shard %d waits: %s", ErrIncomplete, s.index, s.Unrestored())
	case m == nil:
		return true, nil
	case h != nil && !ready:
		return false, fmt.Errorf("%w: shard %d has no parameters yet", ErrIncomplete, s.index)
	default:
		if err := s.switchLocked(h, m); err != nil {
			return false, err
		}
	}
	s.moving.taken, s.moving.slots = nil, nil
	return false, nil
}

// switchLocked changes to the blocks that m gives this shard, all at one moment: no request is
// inside any block. old is nil in a server that joins.
func (s *Shard) switchLocked(old *View, m *model.Model) error {
	if old == nil {
		old = &View{model: m}
	}
	h := newView(m, s.index)
	from := make([]int, len(h.blocks)) // where each was, -1: it arrives
	for i, b := range h.blocks {
		from[i] = -1
		if kept := old.byID[b.ID]; kept != nil {
			h.blocks[i], h.byID[b.ID], from[i] = kept, kept, kept.Local
		} else if s.moving.taken[b.ID] == nil || s.moving.epoch != m.Placement.Epoch {
			return s.lacks(b.Name())
		}
	}
	arrived, err := s.placeTables(old, h)
	if err != nil {
		return err
	}
	for _, b := range old.blocks {
		b.mu.Lock()
	}
	s.renumberLocked(from)
	for i, b := range h.blocks {
		b.Local = i
		if from[i] < 0 {
			s.arriveLocked(h, b, s.moving.taken[b.ID])
		}
	}
	for _, b := range old.blocks {
		b.thawLocked()
		if h.byID[b.ID] == nil {
			b.moved, b.params, b.state = true, nil, nil
		}
	}
	s.arriveSlotsLocked(old, h, arrived)
	s.view.Store(h)
	s.ready.Store(true)
	s.Counters.Switched.Add(1)
	for _, b := range old.blocks {
		b.mu.Unlock()
	}
	fields := logrus.Fields{"epoch": m.Placement.Epoch, "blocks": len(h.blocks), "before": len(old.blocks)}
	if len(h.tables) > 0 {
		fields["slots"] = h.slotsHeld()
	}
	if !s.moving.since.IsZero() {
		fields["frozen"] = time.Since(s.moving.since).Round(time.Millisecond)
		s.moving.since = time.Time{}
	}
	s.Log.WithFields(fields).Info("placement changed")
	if s.index >= m.Placement.Shards {
		s.End(nil)
	}
	return nil
}

// renumberLocked gives the steps of all trainers the new order of blocks.
func (s *Shard) renumberLocked(from []int) {
	for _, t := range s.trainers {
		applied := make([]uint64, len(from))
		for i, was := range from {
			if was >= 0 {
				applied[i] = t.applied[was]
			}
		}
		t.applied = applied
	}
}

// arriveLocked fills a block.
func (s *Shard) arriveLocked(h *View, b *Block, a *MovedBlock) {
	b.params, b.state, b.updates, b.version = a.Params, a.State, a.Updates, a.Version
	s.heedRetiredLocked(h, a.Retired)
	for _, by := range a.Applied {
		if t := s.knownLocked(h, by); t != nil {
			t.applied[b.Local] = by.Step
		}
	}
}

// heedRetiredLocked forgets whom the source of a block, or of a slot, has forgotten.
func (s *Shard) heedRetiredLocked(h *View, said Retirement) {
	//guard:migration-carries-retired
	if said.after(&s.retired) {
		s.retired = said
		s.dropLocked(h.shut)
	}
}

// shut ends a trainer while no request is inside any block.
func (h *View) shut(t *Trainer) {
	t.fenced.Store(true)
	for k, table := range h.tables {
		table.Close(t.columns[k])
	}
}

// knownLocked is the trainer of a step that came along. If the source has a newer
// incarnation of it, the older one ends here too. It returns nil for an older or a retired incarnation, whose steps are not needed.
func (s *Shard) knownLocked(h *View, by AppliedStep) *Trainer {
	if s.retired.over(by.Incarnation) {
		return nil
	}
	t := s.trainers[by.Ordinal]
	if t == nil || t.incarnation < by.Incarnation {
		if t != nil {
			h.shut(t)
		}
		t = h.newTrainer(by.Ordinal, by.Incarnation)
		s.trainers[by.Ordinal] = t
	}
	if t.incarnation != by.Incarnation {
		return nil
	}
	return t
}

// lacks ends a shard that was assigned what it does not have.
func (s *Shard) lacks(what string) error {
	err := fmt.Errorf("%w: shard %d was given %s and does not have it: start it again, and it goes on from the last set of checkpoints", ErrBlocksLost, s.index, what)
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
