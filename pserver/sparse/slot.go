package sparse

import (
	"fmt"
	"sync"
)

const (
	chunkBits = 8
	chunkRows = 1 << chunkBits
	leastRows = 32 // of a slot's first chunk, which grows to chunkRows

	rowBits = 24
	// maxRows is how many rows a slot has room for.
	maxRows = 1<<rowBits - 1

	noRow = ^uint32(0)

	// marked is set in the version of a row while an update is under way: the rest is the place of its id in the update.
	marked = 1 << 31
	// maxClock is the greatest step that is told from those after it.
	maxClock = marked - 1
)

// slot is a share of a table. mu guards everything, the columns' entries for
// this slot too.
type slot struct {
	mu     sync.Mutex
	index  []uint32
	chunks []chunk
	living int      // rows in use
	end    uint32   // row numbers from here on were never used
	free   []uint32 // those below that are free
	clock  uint32   // the greatest step applied

	waiting map[int64]candidate // nil: none

	cut     uint64  // number of the last cut that has this slot
	image   *Image  // what that cut has, when an update came before its collector
	tracked bool    // there was a full cut: from then on freed is kept
	freed   []int64 // ids whose row was dropped since the last full cut
}

// candidate is an id without a row.
type candidate struct {
	updates uint32
	version uint32 // as of a row
}

// chunk is room for some rows. Its slices have the same number of rows.
type chunk struct {
	ids      []int64
	versions []uint32
	updates  []uint32 // nil: not counted
	values   []float32
	dirty    [chunkRows / 64]uint64 // a bit for each row that changed since the last full cut
}

// at is the chunk of a row and its place there.
func (s *slot) at(row uint32) (*chunk, int) {
	return &s.chunks[row>>chunkBits], int(row & (chunkRows - 1))
}

// find is the row of an id, or noRow.
func (s *slot) find(h uint64, id int64) uint32 {
	if len(s.index) == 0 {
		return noRow
	}
	want := tag(h)
	for p := place(h, len(s.index)); ; {
		e := s.index[p]
		if e == 0 {
			return noRow
		}
		if e&^maxRows == want {
			row := e&maxRows - 1
			if c, i := s.at(row); c.ids[i] == id {
				return row
			}
		}
		if p++; p == len(s.index) {
			p = 0
		}
	}
}

// insert makes a row for an id that has none, with values all 0 or left over.
func (s *slot) insert(h uint64, id int64, a *arena) uint32 {
	if 5*(s.living+1) > 4*len(s.index) {
		s.reindex(max(leastRows, len(s.index)+len(s.index)/2))
	}
	var row uint32
	if n := len(s.free); n > 0 {
		row, s.free = s.free[n-1], s.free[:n-1]
	} else {
		row = s.end
		s.end++
		s.extend(row, a)
	}
	s.living++
	c, i := s.at(row)
	c.ids[i] = id
	s.enter(h, row)
	return row
}

// enter puts a row into the index, which has room.
func (s *slot) enter(h uint64, row uint32) {
	p := place(h, len(s.index))
	for s.index[p] != 0 {
		if p++; p == len(s.index) {
			p = 0
		}
	}
	s.index[p] = tag(h) | (row + 1)
}

// reindex makes an index of n entries for the rows in use.
func (s *slot) reindex(n int) {
	s.index = make([]uint32, n)
	for row := range s.end {
		if c, i := s.at(row); c.versions[i] != 0 {
			s.enter(hash(c.ids[i]), row)
		}
	}
}

// extend makes sure that the chunk of a row that was never used has room for it. A slot's first chunk
// begins with few rows, and grows.
func (s *slot) extend(row uint32, a *arena) {
	if int(row>>chunkBits) == len(s.chunks) {
		if row == 0 {
			s.chunks = append(s.chunks, a.some(leastRows))
		} else {
			s.chunks = append(s.chunks, a.take())
		}
		return
	}
	c, i := s.at(row)
	if i < len(c.ids) {
		return
	}
	var larger chunk
	if rows := 2 * len(c.ids); rows < chunkRows {
		larger = a.some(rows)
	} else {
		larger = a.take()
	}
	copy(larger.ids, c.ids)
	copy(larger.versions, c.versions)
	copy(larger.updates, c.updates)
	copy(larger.values, c.values)
	larger.dirty = c.dirty
	*c = larger
}

// expire drops what was not updated in the last n steps before the clock, if the clock is to be
// moved past a multiple of the period; then it moves the clock.
func (s *slot) expire(n, step uint64) {
	old := uint64(s.clock)
	now := max(old, min(step, maxClock))
	s.clock = uint32(now)
	period := max(1, n/4)
	if n == 0 || now/period == old/period || now <= n {
		return
	}
	least := uint32(now - n)
	dropped := false
	for row := range s.end {
		c, i := s.at(row)
		if v := c.versions[i]; v == 0 || v >= least {
			continue
		}
		c.versions[i] = 0
		c.dirty[i/64] &^= 1 << (i % 64)
		if s.tracked {
			s.freed = append(s.freed, c.ids[i])
		}
		s.free = append(s.free, row)
		s.living--
		dropped = true
	}
	if dropped {
		s.reindex(len(s.index))
	}
	for id, w := range s.waiting {
		if w.version < least {
			delete(s.waiting, id)
		}
	}
}

// checkRoom says whether as many more rows fit.
func (s *slot) checkRoom(more int) error {
	if s.living+more > maxRows {
		return fmt.Errorf("%w: %d rows, and %d more: expected at most %d", ErrFull, s.living, more, maxRows)
	}
	return nil
}
