package agent

import (
	"context"
	"slices"
	"sync"

	"trainmaster/dataset"
	"trainmaster/recordio"
)

// chunks are chunks in shared memory. Several processes share a chunk, and the last chunks stay for a process that needs them later.
// Memory is used again: its pages need not be cleared.
type chunks struct {
	files files

	mu     sync.Mutex
	last   uint64 // key
	byName map[chunkName]*entry
	idle   []*entry  // without holders, the oldest first
	spare  []*memory // for other chunks
}

// Bounds of the memory that no connection holds.
const (
	idleChunks  = 4
	spareMemory = 8
)

type chunkName struct {
	path  string
	stamp dataset.Stamp
	index recordio.Index
}

// entry is a chunk.
type entry struct {
	name   chunkName
	key    uint64
	loaded chunkLoad
	holds  int // of all connections
	isIdle bool

	memory    *memory
	size, gap int
	err       error
}

type chunkLoad chan struct{} // closed when memory or err is set

// holder is what one connection holds.
type holder struct {
	entries map[uint64]*entry
	count   map[uint64]int
	ended   bool
}

func newChunks(stores *dataset.Stores) *chunks {
	if stores == nil {
		stores = dataset.DefaultStores
	}
	return &chunks{files: files{stores: stores}, byName: map[chunkName]*entry{}}
}

// get returns a chunk, which the connection holds until it frees it.
func (c *chunks) get(ctx context.Context, by *holder, path string, stamp dataset.Stamp, ix recordio.Index) (*entry, error) {
	name := chunkName{path, stamp, ix}
	c.mu.Lock()
	e := c.byName[name]
	mine := e == nil
	if mine {
		c.last++
		e = &entry{name: name, key: c.last, loaded: make(chunkLoad)}
		c.byName[name] = e
	}
	e.holds++
	c.busy(e)
	c.mu.Unlock()
	if mine {
		e.memory, e.size, e.gap, e.err = c.load(path, stamp, ix)
		close(e.loaded)
	}
	select {
	case <-e.loaded:
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	err := context.Cause(ctx)
	select {
	case <-e.loaded:
		err = e.err
	default:
	}
	if err != nil || by.ended {
		c.release(e, 1)
		return e, err
	}
	if by.entries == nil {
		by.entries, by.count = map[uint64]*entry{}, map[uint64]int{}
	}
	by.entries[e.key] = e
	by.count[e.key]++
	return e, nil
}

// busy takes an entry from the idle ones.
func (c *chunks) busy(e *entry) {
	if !e.isIdle {
		return
	}
	e.isIdle = false
	for i, other := range c.idle {
		if other == e {
			c.idle = append(c.idle[:i], c.idle[i+1:]...)
			return
		}
	}
}

// release ends holds of an entry.
func (c *chunks) release(e *entry, n int) {
	e.holds -= n
	//guard:chunk-memory-held
	if e.holds > 0 {
		return
	}
	if e.err != nil { // the next request tries again
		delete(c.byName, e.name)
		return
	}
	select {
	case <-e.loaded:
	default:
		return // the goroutine that loads it has a hold
	}
	e.isIdle = true
	c.idle = append(c.idle, e)
	for len(c.idle) > idleChunks {
		old := c.idle[0]
		c.idle = c.idle[1:]
		delete(c.byName, old.name)
		c.recycle(old.memory)
	}
}

// recycle keeps memory for another chunk.
func (c *chunks) recycle(m *memory) {
	c.spare = append(c.spare, m)
	if len(c.spare) > spareMemory {
		c.spare[0].release()
		c.spare = c.spare[1:]
	}
}

// room returns memory of at least size bytes, and not much more.
func (c *chunks) room(size int) (*memory, error) {
	c.mu.Lock()
	for i, m := range slices.Backward(c.spare) { // the last memory may be in the cache of the processor
		if n := len(m.bytes); n >= size && n <= 4*size+4<<20 {
			c.spare = append(c.spare[:i], c.spare[i+1:]...)
			c.mu.Unlock()
			return m, nil
		}
	}
	c.mu.Unlock()
	m, err := newMemory(size)
	if err != nil {
		c.mu.Lock()
		c.trim()
		c.mu.Unlock()
		m, err = newMemory(size)
	}
	return m, err
}

// trim releases the memory that no connection holds.
func (c *chunks) trim() {
	for _, e := range c.idle {
		delete(c.byName, e.name)
		e.memory.release()
	}
	for _, m := range c.spare {
		m.release()
	}
	c.idle, c.spare = nil, nil
}

// free ends one hold of a connection. It ignores keys that the connection does not hold.
func (c *chunks) free(by *holder, key uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := by.entries[key]
	if e == nil {
		return
	}
	if by.count[key]--; by.count[key] == 0 {
		delete(by.count, key)
		delete(by.entries, key)
	}
	c.release(e, 1)
}

func (c *chunks) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trim()
	c.files.close()
}

// freeAll ends the holds of a connection that has ended.
func (c *chunks) freeAll(by *holder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	by.ended = true
	for key, e := range by.entries {
		c.release(e, by.count[key])
	}
	by.entries, by.count = nil, nil
}

// load reads a chunk.
func (c *chunks) load(path string, stamp dataset.Stamp, ix recordio.Index) (m *memory, size, gap int, err error) {
	file, err := c.files.open(path, ix.Layout, stamp)
	if err != nil {
		return nil, 0, 0, err
	}
	defer c.files.done(file)
	content, gap, err := file.load(ix, func(n int) (_ []byte, err error) {
		if m != nil { // the bytes of a cache were damaged, and are read again
			m.release()
		}
		if m, err = c.room(n); err != nil {
			return nil, err
		}
		return m.bytes[:n:n], nil
	})
	if err != nil {
		if m != nil {
			m.release()
		}
		return nil, 0, 0, err
	}
	return m, len(content), gap, nil
}
