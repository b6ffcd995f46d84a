package table

import (
	"fmt"

	"trainmaster/pserver/partition"
)

const (
	rowBits = 24
	// maxRows is how many rows a slot has room for.
	maxRows = 1<<rowBits - 1

	noRow = ^uint32(0)

	// marked is set in the version of a row during an update; the other bits are the position of its id in the update.
	marked = 1 << 31
	// maxClock is the greatest distinguishable step.
	maxClock = marked - 1
)

// slot is a share of a table. The lock of the partition guards everything.
type slot struct {
	partition.Partition
	key      Key // of the table
	index    []uint32
	chunks   []chunk
	stride   int      // words of a row, once there is one
	liveRows int      // rows in use
	end      uint32   // row numbers from here on were never used
	free     []uint32 // those below that are free
	clock    uint32   // the greatest step applied
	pushed   uint32   // updates by trainers since this process has the slot

	candidates map[int64]candidate // nil: none

	cut   uint64 // Number of the last cut of this slot.
	saved *saved // Rows preserved for that cut, nil without any.
}

// candidate is an id without a row.
type candidate struct {
	updates uint32
	version uint32 // as of a row
}

// at is a row.
func (s *slot) at(row uint32) record {
	i := int(row&(chunkRows-1)) * s.stride
	return s.chunks[row>>chunkBits].words[i : i+s.stride : i+s.stride]
}

// stamp notes that a row changes after the last cut of the slot.
func (s *slot) stamp(row uint32) {
	s.chunks[row>>chunkBits].stamps[row&(chunkRows-1)] = uint8(s.cut)
}

// hasChanged reports whether a cut contains a row that did not change after the cut: whether the row changed since the full cut. A
// row with a stamp that is more than 255 cuts old can seem changed.
func (s *slot) hasChanged(row uint32, c *Cut) bool {
	//guard:delta-has-all-changes
	return c.Since == nil || s.chunks[row>>chunkBits].stamps[row&(chunkRows-1)]-uint8(c.Since.Number) <= uint8(c.Number-1-c.Since.Number)
}

// find is the row of an id, or noRow.
func (s *slot) find(h uint64, id int64) uint32 {
	if len(s.index) == 0 {
		return noRow
	}
	for p := firstBucket(h, len(s.index)); ; p = s.after(p) {
		var row uint32
		if p, row = s.match(p, tag(h)); row == noRow || s.at(row).id() == id {
			return row
		}
	}
}

// match is the first place in the index, from p on, with a tag, and its row; noRow if a free place comes first.
func (s *slot) match(p int, want uint32) (int, uint32) {
	for ; ; p = s.after(p) {
		switch e := s.index[p]; {
		case e == 0:
			return p, noRow
		case e&^maxRows == want:
			return p, e&maxRows - 1
		}
	}
}

// after is the place after one.
func (s *slot) after(p int) int {
	if p++; p < len(s.index) {
		return p
	}
	return 0
}

// findAll sets rows to the rows of ids, or noRow. It runs several passes, so that index entries and values are fetched from memory in
// parallel: sequential fetches would take most of the time.
func (s *slot) findAll(ids []int64, rows []uint32, sc *scratch) {
	if len(s.index) == 0 {
		for k := range rows {
			rows[k] = noRow
		}
		return
	}
	sc.places = grown(sc.places, len(ids))
	sum := uint32(0)
	for k, id := range ids {
		p := firstBucket(s.key.hash(id), len(s.index))
		sc.places[k] = uint32(p)
		sum += s.index[p]
	}
	const line = 16 // words
	for k, id := range ids {
		if _, rows[k] = s.match(int(sc.places[k]), tag(s.key.hash(id))); rows[k] != noRow {
			r := s.at(rows[k])
			for j := line; j < len(r); j += line {
				sum += r[j]
			}
			sum += r[0] + r[len(r)-1] + uint32(s.chunks[rows[k]>>chunkBits].stamps[rows[k]&(chunkRows-1)])
		}
	}
	for k, id := range ids {
		if rows[k] != noRow && s.at(rows[k]).id() != id { // another id with the same tag
			rows[k] = s.find(s.key.hash(id), id)
		}
	}
	sc.touched += sum
}

// insert makes a row for an id that has none, with values all 0 or left over.
func (s *slot) insert(h uint64, id int64, a *arena) uint32 {
	if 5*(s.liveRows+1) > 4*len(s.index) {
		s.reindex(max(leastRows, len(s.index)+len(s.index)/5))
	}
	var row uint32
	if n := len(s.free); n > 0 {
		row, s.free = s.free[n-1], s.free[:n-1]
	} else {
		row = s.end
		s.end++
		s.extend(row, a)
	}
	s.liveRows++
	s.at(row).setID(id)
	s.enter(h, row)
	return row
}

// enter puts a row into the index, which has room.
func (s *slot) enter(h uint64, row uint32) {
	p := firstBucket(h, len(s.index))
	for s.index[p] != 0 {
		p = s.after(p)
	}
	s.index[p] = tag(h) | (row + 1)
}

// reindex makes an index of n entries for the rows in use.
func (s *slot) reindex(n int) {
	s.index = make([]uint32, n)
	for row := range s.end {
		if r := s.at(row); *r.version() != 0 {
			s.enter(s.key.hash(r.id()), row)
		}
	}
}

// extend makes sure that there is room for a row that was never used. A slot's first chunk
// begins with few rows, and grows.
func (s *slot) extend(row uint32, a *arena) {
	s.stride = a.words()
	switch k, i := int(row>>chunkBits), int(row&(chunkRows-1)); {
	case row == 0:
		s.chunks = append(s.chunks, chunk{make([]uint32, leastRows*s.stride), new([chunkRows]uint8)})
	case k == len(s.chunks):
		s.chunks = append(s.chunks, chunk{a.take(), new([chunkRows]uint8)})
	case i*s.stride == len(s.chunks[k].words):
		larger := a.room(2 * i)
		copy(larger, s.chunks[k].words)
		s.chunks[k].words = larger
	}
}

// expire drops what was last updated when the clock was more than n steps lower, if the clock is to be
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
		r := s.at(row)
		if v := *r.version(); v == 0 || v >= least {
			continue
		}
		s.preserve(row)
		*r.version() = 0
		s.free = append(s.free, row)
		s.liveRows--
		dropped = true
	}
	if dropped {
		s.reindex(len(s.index))
	}
	for id, w := range s.candidates {
		if w.version < least {
			s.preserveCandidate(id)
			delete(s.candidates, id)
		}
	}
}

// checkRoom returns an error if the slot has no room for more rows.
func (s *slot) checkRoom(more int) error {
	if s.liveRows+more > maxRows {
		return fmt.Errorf("%w: %d rows, and %d more: expected at most %d", ErrFull, s.liveRows, more, maxRows)
	}
	return nil
}
