package sparse

import "sync"

// arenaFloats is about how many values are allocated at once.
const arenaFloats = 1 << 18

// arena gives out chunks that it allocates many at a time: what the collector has
// to look at are the arena's allocations and not the chunks.
type arena struct {
	width   int // floats of a row, with the optimizer's state
	counted bool

	mu   sync.Mutex
	free []chunk
}

// take is a chunk of chunkRows rows.
func (a *arena) take() chunk {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.free) == 0 {
		n := max(1, min(64, arenaFloats/(chunkRows*a.width)))
		all := a.some(n * chunkRows)
		for i := range n {
			a.free = append(a.free, all.part(i*chunkRows, (i+1)*chunkRows, a.width))
		}
	}
	c := a.free[len(a.free)-1]
	a.free = a.free[:len(a.free)-1]
	return c
}

// some is a chunk of its own, of any number of rows.
func (a *arena) some(rows int) chunk {
	c := chunk{ids: make([]int64, rows), versions: make([]uint32, rows), values: make([]float32, rows*a.width)}
	if a.counted {
		c.updates = make([]uint32, rows)
	}
	return c
}

// part shares the memory of rows lo to hi.
func (c *chunk) part(lo, hi, width int) chunk {
	p := chunk{ids: c.ids[lo:hi:hi], versions: c.versions[lo:hi:hi], values: c.values[lo*width : hi*width : hi*width]}
	if c.updates != nil {
		p.updates = c.updates[lo:hi:hi]
	}
	return p
}
