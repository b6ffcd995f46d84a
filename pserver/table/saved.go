package table

import (
	"cmp"
	"math/bits"
	"runtime"
	"slices"
)

// pieceWords bounds how much is copied under a slot's lock at a time: 64 KiB, or one row.
const pieceWords = 1 << 14

// saved is what a slot keeps for a cut, from the first update after the cut to its collection. An update copies the rows that it is
// about to change; Collect copies the other rows in pieces. The rest of the slot is fixed at the start.
//
// Each row that the cut has is copied once: due has its bit until then. In a full cut due also has the rows that were free, since
// to find those takes a look at every row. Such a row still has version 0 when it is copied, or when it is used again.
type saved struct {
	cut        *Cut
	arena      *arena
	image      *Image // without rows and candidates
	count      int    // of rows that the cut has
	due        []uint64
	kept       []keptRow // that updates were about to change
	waited     int       // ids without a row at the cut
	candidates map[int64]candidate
	// candidates has the candidates that changed since, as they were at the cut. updates is 0 for an id that was no candidate.
}

// keptRow is a copy of a row: its number in the slot, and the place of the copy in the memory of the cut.
type keptRow struct{ row, place uint32 }

// keep copies a row into the memory of the cut. It takes chunks of the arena, so that nothing has to grow: slots that grow by doubling do
// so all in one push, as each push changes about as many rows of each. EndCut gives the chunks back.
func (c *Cut) keep(r record, a *arena) (place uint32) {
	c.mu.Lock()
	place = c.keeps
	if c.keeps++; place%chunkRows == 0 {
		c.memory = append(c.memory, chunk{words: a.take()})
	}
	to := c.at(place, a)
	c.mu.Unlock()
	copy(to, r)
	return place
}

// at is the copy of a row. The caller holds mu, or no other row is preserved during the call.
func (c *Cut) at(place uint32, a *arena) record {
	i := int(place%chunkRows) * a.words()
	return c.memory[place/chunkRows].words[i : i+a.words()]
}

// saveLocked starts what a slot keeps for a cut.
func (t *Table) saveLocked(number uint32, c *Cut) *saved {
	s := t.slots[number]
	s.cut = c.Number
	m := &Image{Clock: s.clock, LiveRows: s.liveRows, Lost: s.lost, Freed: s.freed[:len(s.freed):len(s.freed)]}
	for _, column := range c.Columns {
		m.Steps = append(m.Steps, column.steps[number])
	}
	p := &saved{cut: c, arena: t.arena, image: m, count: s.countLocked(c.Full), waited: len(s.candidates), due: make([]uint64, (s.end+63)/64)}
	if c.Full {
		for i := range p.due {
			p.due[i] = ^uint64(0)
		}
		if n := s.end % 64; n > 0 {
			p.due[len(p.due)-1] = 1<<n - 1
		}
		for i := range s.chunks {
			clear(s.chunks[i].dirty[:])
		}
		s.freed, s.tracked, s.lost, m.Freed, m.Lost = nil, true, false, nil, false
	} else {
		for i := range s.chunks {
			copy(p.due[min(len(p.due), i*len(s.chunks[i].dirty)):], s.chunks[i].dirty[:])
		}
	}
	t.cut.Store(c)
	s.saved = p
	//guard:cut-copies-rows-lazily
	return p
}

// preserve copies a row that is about to change, if a cut wants it.
func (s *slot) preserve(row uint32) {
	if p := s.saved; p != nil && int(row/64) < len(p.due) && p.due[row/64]>>(row%64)&1 != 0 {
		if r := s.takeDue(p, row); r != nil {
			p.kept = append(p.kept, keptRow{row, p.cut.keep(r, p.arena)})
		}
	}
}

// takeDue returns a row that is due, which it is not any more; nil if it was free at the cut.
func (s *slot) takeDue(p *saved, row uint32) record {
	p.due[row/64] &^= 1 << (row % 64)
	if r := s.at(row); *r.version() != 0 {
		return r
	}
	return nil
}

// preserveCandidate copies what is known of an id without a row, before it changes.
func (s *slot) preserveCandidate(id int64) {
	p := s.saved
	if p == nil {
		return
	}
	if _, there := p.candidates[id]; there {
		return
	}
	if p.candidates == nil {
		p.candidates = map[int64]candidate{}
	}
	p.candidates[id] = s.candidates[id]
}

// copyDue copies due rows from a row on, and returns the next row and whether there are more.
func (s *slot) copyDue(p *saved, row uint32) (next uint32, more bool) {
	c := p.cut
	most := len(c.words) + pieceWords
	for i := int(row / 64); i < len(p.due); i++ {
		for p.due[i] != 0 {
			if len(c.words) >= most {
				return uint32(64 * i), true
			}
			row := uint32(64*i + bits.TrailingZeros64(p.due[i]))
			if r := s.takeDue(p, row); r != nil {
				c.rows, c.words = append(c.rows, row), append(c.words, r...)
			}
		}
	}
	return 0, false
}

// pause releases the lock for other goroutines.
func (s *slot) pause() {
	s.mu.Unlock()
	runtime.Gosched()
	s.mu.Lock()
}

// Collect returns a slot as it was at the cut, once. Updates continue: the lock is held for one piece at a time.
func (t *Table) Collect(number uint32, c *Cut) *Image { return t.CollectInto(number, c, &Image{}) }

// CollectInto is Collect into an image whose memory is used again: fresh pages may take the system longer than the copy.
func (t *Table) CollectInto(number uint32, c *Cut, into *Image) *Image {
	s := t.slots[number]
	s.mu.Lock()
	p := s.saved
	if s.cut != c.Number {
		p = t.saveLocked(number, c)
	}
	s.mu.Unlock()
	c.rows, c.words = slices.Grow(c.rows[:0], p.count), slices.Grow(c.words[:0], p.count*t.arena.words()) // no lock: it may take long
	s.mu.Lock()
	for row, more := s.copyDue(p, 0); more; row, more = s.copyDue(p, row) {
		s.pause()
	}
	list := make([]Candidate, 0, p.waited)
	seen := 0
	for id, w := range s.candidates { // concurrent changes are harmless: p.candidates has the old values
		if _, changed := p.candidates[id]; !changed {
			list = append(list, Candidate{id, w.updates, w.version})
		}
		if seen++; seen%1024 == 0 {
			s.pause()
		}
	}
	s.saved = nil
	s.mu.Unlock()
	m := p.image
	m.IDs, m.Versions, m.Updates, m.Values = into.IDs[:0], into.Versions[:0], into.Updates[:0], into.Values[:0]
	*into = *m
	t.fill(into, p)
	into.Candidates = p.mergeCandidates(list)
	return into
}

// fill puts the rows that were copied into the image, by their numbers.
func (t *Table) fill(m *Image, p *saved) {
	c, stride := p.cut, t.arena.words()
	n := len(c.rows) + len(p.kept)
	m.IDs, m.Versions, m.Values = slices.Grow(m.IDs, n), slices.Grow(m.Versions, n), slices.Grow(m.Values, n*t.arena.values)
	if t.counted {
		m.Updates = slices.Grow(m.Updates, n)
	}
	slices.SortFunc(p.kept, func(a, b keptRow) int { return cmp.Compare(a.row, b.row) })
	c.mu.Lock()
	memory := c.memory // append-only
	c.mu.Unlock()
	all, kept := Cut{memory: memory}, p.kept
	for i, row := range c.rows {
		for ; len(kept) > 0 && kept[0].row < row; kept = kept[1:] {
			t.addRow(m, all.at(kept[0].place, t.arena))
		}
		t.addRow(m, c.words[i*stride:(i+1)*stride])
	}
	for _, k := range kept {
		t.addRow(m, all.at(k.place, t.arena))
	}
}

// mergeCandidates returns the ids without a row at the cut, ascending, with changed ids as they were at the cut.
func (p *saved) mergeCandidates(list []Candidate) []Candidate {
	for id, w := range p.candidates {
		if w.updates > 0 {
			list = append(list, Candidate{id, w.updates, w.version})
		}
	}
	slices.SortFunc(list, func(a, b Candidate) int { return cmp.Compare(a.ID, b.ID) })
	list = slices.Compact(list) // an id that changed after it was read is a duplicate with the same value
	if len(list) == 0 {
		return nil
	}
	return list
}
