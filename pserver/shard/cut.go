package shard

import (
	"slices"

	"trainmaster/pserver/table"
)

// Cut is a consistent state of the shard, of which images are made while updates continue. A cut has, of each block, the updates before
// its start and none after it. The first update of a block after the start preserves the block (copy on write). The writer of the
// checkpoint copies the other blocks.
type Cut struct {
	number   uint64
	view     *View
	Version  uint64
	JobEpoch uint32
	Trainers []*Trainer // by ordinal; later trainers have pushed nothing before the cut
	Tables   []*table.Cut
	Retired  Retirement
}

// Image is a copy of a block at a cut.
type Image struct {
	Params  []float32
	State   []float32
	Updates uint64
	Version uint64
	Applied []uint64 // by cut.trainers
}

// begin is called with the block's lock held. The values follow, by keep.
func (i *Image) begin(b *Block, c *Cut) {
	i.size(b)
	i.Updates, i.Version = b.updates, b.version
	i.Applied = i.Applied[:0]
	for _, t := range c.Trainers {
		i.Applied = append(i.Applied, b.Step(t.Trainer))
	}
}

// size makes room for the values of a block.
func (i *Image) size(b *Block) {
	i.Params = slices.Grow(i.Params[:0], len(b.params))[:len(b.params)]
	i.State = slices.Grow(i.State[:0], len(b.state))[:len(b.state)]
}

// keep takes elements lo to hi, with the block's lock held: best just before they change, as they are in the cache then.
// No image keeps nothing.
func (i *Image) keep(b *Block, lo, hi int) {
	if i == nil {
		return
	}
	copy(i.Params[lo:hi], b.params[lo:hi])
	for slot := 0; slot < len(b.state); slot += b.Len {
		copy(i.State[slot+lo:slot+hi], b.state[slot+lo:slot+hi])
	}
}

// StartCut fixes the moment. Until endCut every update preserves what it changes. since returns the earlier cut that the rows of a
// table are compared with, nil for all rows; a nil since compares with none.
func (s *Shard) StartCut(since func(h *View, table int, number uint64) *table.Cut) *Cut {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	s.mu.Lock() // no trainer joins, and pushes, between the roster and the moment
	defer s.mu.Unlock()
	s.cuts++
	c := &Cut{
		number: s.cuts, view: s.view.Load(), Version: s.version.Load(), JobEpoch: s.jobEpoch.Load(), Trainers: s.rosterLocked(), Retired: s.retired,
	}
	c.Tables = s.cutTables(c, since)
	s.cut.Store(c)
	return c
}

// EndCut drops the preserved images that were not collected.
func (s *Shard) EndCut(h *View) {
	s.cut.Store(nil)
	for _, b := range h.blocks {
		b.Lock()
		if b.image != nil {
			b.image, b.spare = nil, b.image
		}
		b.Unlock()
	}
	for _, t := range h.tables {
		t.EndCut()
	}
}

// preserveLocked is called before any change of a block, with its lock held. The image that it returns has to keep all
// elements, each before it changes; nil: no cut wants them.
func (s *Shard) preserveLocked(b *Block) *Image {
	c := s.cut.Load()
	if c == nil || b.cut == c.number {
		return nil
	}
	b.image = b.beginImage(c)
	return b.image
}

// beginImage begins the image of a cut. The caller holds the lock.
func (b *Block) beginImage(c *Cut) *Image {
	i := b.spare
	if i == nil {
		i = &Image{}
	}
	b.spare, b.cut = nil, c.number
	i.begin(b, c)
	return i
}

// Collect returns the block as it was at the cut. The image is the caller's until Recycle.
func (b *Block) Collect(c *Cut) *Image {
	b.Lock()
	defer b.Unlock()
	if i := b.image; b.cut == c.number {
		b.image = nil
		return i
	}
	i := b.beginImage(c)
	i.keep(b, 0, b.Len)
	return i
}

// Recycle takes back the image that Collect returned. Its memory stays from cut to cut: new pages of the system take longer than the
// copy.
func (b *Block) Recycle(i *Image) {
	b.Lock()
	defer b.Unlock()
	b.spare = i
}

// Reserve takes the memory of a cut of all blocks. No update has to wait for it then.
func (s *Shard) Reserve() {
	if h := s.view.Load(); h != nil {
		for _, b := range h.blocks {
			b.reserve()
		}
	}
}

func (b *Block) reserve() {
	b.Lock()
	defer b.Unlock()
	if b.spare != nil || b.image != nil {
		return
	}
	b.spare = &Image{}
	b.spare.size(b)
	for _, values := range [][]float32{b.spare.Params, b.spare.State} {
		clear(values[:cap(values)]) // the system gives pages when they are written
	}
}
