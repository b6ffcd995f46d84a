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
// Each row that was in use at the cut is read exactly one time. Its bit in due is set until then, and its stamp does not change before.
type saved struct {
	cut        *Cut
	arena      *arena
	image      *Image // without rows and candidates
	listed     bool   // the unchanged rows are wanted
	due        []uint64
	kept       []keptRow // that updates were about to change
	unchanged  []uint32  // rows that the cut does not have, and that updates were about to change
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
	m := &Image{Clock: s.clock, LiveRows: s.liveRows}
	for _, by := range c.Trainers {
		m.Steps = append(m.Steps, s.Step(by))
	}
	p := &saved{cut: c, arena: t.arena, image: m, listed: c.Since != nil && t.cfg.Expiry > 0, waited: len(s.candidates), due: make([]uint64, (s.end+63)/64)}
	for i := range p.due {
		p.due[i] = ^uint64(0)
	}
	if n := s.end % 64; n > 0 {
		p.due[len(p.due)-1] = 1<<n - 1
	}
	for _, row := range s.free {
		p.due[row/64] &^= 1 << (row % 64)
	}
	t.cut.Store(c)
	s.saved = p
	//guard:cut-copies-rows-lazily
	return p
}

// countLocked returns the number of rows that the cut has. It reads no rows: a push that follows slot by slot would wait for each.
func (s *slot) countLocked(p *saved) int {
	if p.cut.Since == nil {
		return p.image.LiveRows
	}
	n := len(p.kept)
	for i, word := range p.due {
		for ; word != 0; word &= word - 1 {
			row := uint32(64*i + bits.TrailingZeros64(word))
			if s.hasChanged(row, p.cut) {
				n++
			}
		}
	}
	return n
}

// preserve copies a row that is about to change, if a cut wants it.
func (s *slot) preserve(row uint32) {
	if p := s.saved; p != nil && int(row/64) < len(p.due) && p.due[row/64]>>(row%64)&1 != 0 {
		switch r, has := s.takeDue(p, row); {
		case r == nil:
		case has:
			p.kept = append(p.kept, keptRow{row, p.cut.keep(r, p.arena)})
		default:
			p.unchanged = append(p.unchanged, row)
		}
	}
}

// takeDue returns a row that is due, which it is not any more, and whether the cut has the row. It returns nil for a row of which
// nothing is wanted.
func (s *slot) takeDue(p *saved, row uint32) (r record, has bool) {
	p.due[row/64] &^= 1 << (row % 64)
	if has = s.hasChanged(row, p.cut); !has && !p.listed {
		return nil, false
	}
	return s.at(row), has
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
	most, first := len(c.words)+pieceWords, int(row/64)
	for i := first; i < len(p.due); i++ {
		for p.due[i] != 0 {
			if len(c.words) >= most || 64*(i-first) >= pieceWords {
				return uint32(64 * i), true
			}
			row := uint32(64*i + bits.TrailingZeros64(p.due[i]))
			switch r, has := s.takeDue(p, row); {
			case r == nil:
			case has:
				c.rows, c.words = append(c.rows, row), append(c.words, r...)
			default:
				c.unchanged = append(c.unchanged, row)
			}
		}
	}
	return 0, false
}

// pause releases the lock for other goroutines.
func (s *slot) pause() {
	s.Unlock()
	runtime.Gosched()
	s.Lock()
}

// Collect returns a slot as it was at the cut, once. Updates continue: the lock is held for one piece at a time.
func (t *Table) Collect(number uint32, c *Cut) *Image { return t.CollectInto(number, c, &Image{}) }

// CollectInto is Collect into an image whose memory is used again: fresh pages may take the system longer than the copy.
func (t *Table) CollectInto(number uint32, c *Cut, into *Image) *Image {
	s := t.slots[number]
	s.Lock()
	p := s.saved
	if s.cut != c.Number {
		p = t.saveLocked(number, c)
	}
	n := s.countLocked(p)
	s.Unlock()
	c.rows, c.words, c.unchanged = slices.Grow(c.rows[:0], n), slices.Grow(c.words[:0], n*t.arena.words()), c.unchanged[:0] // no lock: it may take long
	if p.listed {
		c.unchanged = slices.Grow(c.unchanged, max(0, p.image.LiveRows-n))
	}
	s.Lock()
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
	s.Unlock()
	m := p.image
	m.IDs, m.Versions, m.Updates, m.Values, m.Unchanged = into.IDs[:0], into.Versions[:0], into.Updates[:0], into.Values[:0], into.Unchanged[:0]
	*into = *m
	t.fill(into, p)
	t.noteUsed(number, p, into)
	into.Candidates = p.mergeCandidates(list)
	return into
}

// noteUsed keeps which row numbers a full cut has, or notes in the image which of these rows are unchanged.
func (t *Table) noteUsed(number uint32, p *saved, m *Image) {
	c := p.cut
	setOf := func(lists ...[]uint32) []uint64 {
		set := make([]uint64, len(p.due))
		for _, row := range slices.Concat(lists...) {
			set[row/64] |= 1 << (row % 64)
		}
		return set
	}
	switch {
	case p.listed:
		used, unchanged := c.Since.used[number], setOf(c.unchanged, p.unchanged)
		m.Unchanged = append(m.Unchanged, make([]byte, (onesCount(used)+7)/8)...)
		i := 0
		for w, word := range used {
			for ; word != 0; word &= word - 1 {
				if unchanged[w]&(word&-word) != 0 {
					m.Unchanged[i/8] |= 1 << (i % 8)
				}
				i++
			}
		}
	case t.cfg.Expiry > 0:
		kept := make([]uint32, len(p.kept))
		for i, k := range p.kept {
			kept[i] = k.row
		}
		c.used[number] = setOf(c.rows, kept)
	}
}

func onesCount(words []uint64) (n int) {
	for _, word := range words {
		n += bits.OnesCount64(word)
	}
	return n
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
