package sparse

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
	image   *Image // without rows and waiting ids
	count   int    // of rows that the cut has
	due     []uint64
	rows    []uint32 // that were copied, by number
	words   []uint32 // the rows, one after the other
	waited  int      // ids without a row at the cut
	waiting map[int64]candidate
	// waiting has the ids that changed since, as they were at the cut. updates is 0 of an id that was not there.
}

// saveLocked starts what a slot keeps for a cut.
func (t *Table) saveLocked(number uint32, c *Cut) *saved {
	s := t.slots[number]
	s.cut = c.Number
	m := &Image{Clock: s.clock, Living: s.living, Lost: s.lost, Freed: s.freed[:len(s.freed):len(s.freed)]}
	for _, column := range c.Columns {
		m.Steps = append(m.Steps, column.steps[number])
	}
	p := &saved{image: m, count: s.countLocked(c.Full), waited: len(s.waiting), due: make([]uint64, (s.end+63)/64)}
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
	s.saved = p
	return p
}

// preserve copies a row that is about to change, if a cut wants it.
func (s *slot) preserve(row uint32) {
	if p := s.saved; p != nil && int(row/64) < len(p.due) && p.due[row/64]>>(row%64)&1 != 0 {
		s.copyRow(p, row)
	}
}

// copyRow copies a row that is due.
func (s *slot) copyRow(p *saved, row uint32) {
	p.due[row/64] &^= 1 << (row % 64)
	r := s.at(row)
	if *r.version() == 0 {
		return // free at the cut
	}
	p.rows, p.words = append(p.rows, row), append(p.words, r...)
}

// preserveWaiting copies what is known of an id without a row, before it changes.
func (s *slot) preserveWaiting(id int64) {
	p := s.saved
	if p == nil {
		return
	}
	if _, there := p.waiting[id]; there {
		return
	}
	if p.waiting == nil {
		p.waiting = map[int64]candidate{}
	}
	p.waiting[id] = s.waiting[id]
}

// copyDue copies due rows from a row on, and returns the row to go on from and whether there are more.
func (s *slot) copyDue(p *saved, row uint32) (next uint32, more bool) {
	most := len(p.words) + pieceWords
	for i := int(row / 64); i < len(p.due); i++ {
		for p.due[i] != 0 {
			if len(p.words) >= most {
				return uint32(64 * i), true
			}
			s.copyRow(p, uint32(64*i+bits.TrailingZeros64(p.due[i])))
		}
	}
	return 0, false
}

// pause lets others have the lock.
func (s *slot) pause() {
	s.mu.Unlock()
	runtime.Gosched()
	s.mu.Lock()
}

// Collect returns a slot as it was at the cut, once. Updates go on meanwhile: the lock is held for one piece at a time.
func (t *Table) Collect(number uint32, c *Cut) *Image {
	s := t.slots[number]
	s.mu.Lock()
	p := s.saved
	if s.cut != c.Number {
		p = t.saveLocked(number, c)
	}
	s.mu.Unlock()
	rows, words := slices.Grow(c.rows[:0], p.count), slices.Grow(c.words[:0], p.count*t.arena.words()) // no lock: it may take long
	s.mu.Lock()
	p.rows, p.words = append(rows, p.rows...), append(words, p.words...)
	for row, more := s.copyDue(p, 0); more; row, more = s.copyDue(p, row) {
		s.pause()
	}
	waiting := make([]Waiting, 0, p.waited)
	seen := 0
	for id, w := range s.waiting { // changes meanwhile are fine: of an id that changes p.waiting has the old value
		if _, changed := p.waiting[id]; !changed {
			waiting = append(waiting, Waiting{id, w.updates, w.version})
		}
		if seen++; seen%1024 == 0 {
			s.pause()
		}
	}
	s.saved = nil
	s.mu.Unlock()
	c.rows, c.words = p.rows, p.words
	t.fill(p)
	p.image.Waiting = p.mergeWaiting(waiting)
	return p.image
}

// fill puts the rows that were copied into the image, by their numbers.
func (t *Table) fill(p *saved) {
	m, n, stride := p.image, len(p.rows), t.arena.words()
	m.IDs, m.Versions, m.Values = make([]int64, 0, n), make([]uint32, 0, n), make([]float32, 0, n*t.arena.values)
	if t.counted {
		m.Updates = make([]uint32, 0, n)
	}
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(p.rows[a], p.rows[b]) })
	for _, i := range order {
		t.addRow(m, p.words[i*stride:(i+1)*stride])
	}
}

// mergeWaiting returns the ids without a row at the cut, ascending: those that did not change, and those that did.
func (p *saved) mergeWaiting(list []Waiting) []Waiting {
	for id, w := range p.waiting {
		if w.updates > 0 {
			list = append(list, Waiting{id, w.updates, w.version})
		}
	}
	slices.SortFunc(list, func(a, b Waiting) int { return cmp.Compare(a.ID, b.ID) })
	list = slices.Compact(list) // an id that changed after it was read is there twice, with one value
	if len(list) == 0 {
		return nil
	}
	return list
}
