package table

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"trainmaster/pserver/floats"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/partition"
)

// Errors of a batch.
var (
	ErrNotHeld   = errors.New("slot is not held here")
	ErrWrongSlot = errors.New("id is not of this slot")
	ErrFull      = errors.New("slot is full")
	// ErrNotFinite: the sender changed a gradient in shared memory after it was checked.
	ErrNotFinite = errors.New("gradient in shared memory is no longer finite: the trainer changed it before the reply")
)

// Table is the share of a table that a shard holds.
type Table struct {
	cfg     Config
	rule    optimizer.Rule
	counted bool // the rule wants to know the number of updates
	state   int  // slices of state
	init    initializer
	arena   *arena       // with the layout of a row
	slots   [Slots]*slot // nil: not held
	held    []uint32
	current func() *Cut

	overflow atomic.Pointer[Overflow]
	cut      atomic.Pointer[Cut] // last cut with preserved rows
}

// New makes an empty table with the slots held. cfg has passed Validate, and rule is o's.
// current is the cut that is being collected, nil if none; it is called with a slot's lock held.
func New(cfg Config, o optimizer.Config, held []uint32, current func() *Cut) *Table {
	rule := o.Rule()
	state := len(rule.Slots())
	t := &Table{
		cfg: cfg, rule: rule, counted: o.Counted(), state: state,
		init: newInitializer(cfg), held: held, current: current,
		arena: &arena{shape: newShape(cfg.Dim*(1+state), o.Counted())},
	}
	for _, i := range held {
		t.slots[i] = &slot{key: cfg.Key}
	}
	return t
}

// Overflow is a row that is not finite after an update.
type Overflow struct {
	ID      int64
	Element int // of the row, or of a slice of the optimizer's state
	Value   float32
}

func (o *Overflow) String() string {
	return fmt.Sprintf("element %d of the row of id %d, or of its state, is %v", o.Element, o.ID, o.Value)
}

// Overflow is the first row that is not finite, nil if there is none.
func (t *Table) Overflow() *Overflow { return t.overflow.Load() }

// see looks for values that are not finite.
func (t *Table) see(id int64, values []float32) {
	if floats.Finite(values) || t.overflow.Load() != nil {
		return
	}
	i := floats.FirstNotFinite(values)
	t.overflow.CompareAndSwap(nil, &Overflow{id, i % t.cfg.Dim, values[i]})
}

// Config is the table's.
func (t *Table) Config() Config { return t.cfg }

// Held lists the slots held, ascending.
func (t *Table) Held() []uint32 { return t.held }

// Holds reports whether a slot is held.
func (t *Table) Holds(slot uint32) bool { return slot < Slots && t.slots[slot] != nil }

// Rows is the number of rows.
func (t *Table) Rows() (n int) {
	for _, i := range t.held {
		s := t.slots[i]
		s.Lock()
		n += s.liveRows
		s.Unlock()
	}
	return n
}

// Bytes is the size of its rows in memory.
func (t *Table) Bytes() int { return t.Rows() * t.RowBytes() }

// RowBytes is the size of one row.
func (t *Table) RowBytes() int { return 4 * t.arena.words() }

// Partition returns the partition of a slot, nil if the slot is not held.
func (t *Table) Partition(slot uint32) *partition.Partition {
	if !t.Holds(slot) {
		return nil
	}
	return &t.slots[slot].Partition
}

// slotError adds the slot to an error.
func (t *Table) slotError(slot uint32, err error) error {
	return fmt.Errorf("table %q, slot %d: %w", t.cfg.Name, slot, err)
}

// scratch is the memory of a call. Its slices are as long as the batch.
type scratch struct {
	rows          []uint32
	places        []uint32
	newCandidates []int
	ids           []int64
	sums          []float32
	touched       uint32 // of no meaning: it makes what only warms the cache count
}

var scratches = sync.Pool{New: func() any { return &scratch{} }}

// grown is s with n elements of any value.
func grown[T any](s []T, n int) []T { return slices.Grow(s[:0], n)[:n] }

// Check reports whether the slots of a batch are held, and its ids are theirs.
func (t *Table) Check(rows *Batch) error {
	k := 0
	for _, span := range rows.Spans {
		if !t.Holds(span.Slot) {
			return t.slotError(span.Slot, ErrNotHeld)
		}
		for _, id := range rows.IDs[k : k+int(span.Rows)] {
			if slot := t.cfg.SlotOf(id); slot != span.Slot {
				return fmt.Errorf("table %q, id %d under slot %d: %w: expected slot %d", t.cfg.Name, id, span.Slot, ErrWrongSlot, slot)
			}
		}
		k += int(span.Rows)
	}
	return nil
}

// Lookup fills dst, of shape [ids, dim], with the values of the ids of a checked batch. All rows of a slot come from one state. Later
// updates by others make the next gradients of the trainer stale; by is nil if staleness does not count. The error is
// [partition.ErrMoved].
func (t *Table) Lookup(rows *Batch, by *partition.Trainer, dst []float32) error {
	sc := scratches.Get().(*scratch)
	defer scratches.Put(sc)
	k := 0
	for _, span := range rows.Spans {
		ids := rows.IDs[k : k+int(span.Rows)]
		if err := t.lookup(span.Slot, ids, by, dst[k*t.cfg.Dim:], sc); err != nil {
			return err
		}
		k += len(ids)
	}
	return nil
}

func (t *Table) lookup(number uint32, ids []int64, by *partition.Trainer, dst []float32, sc *scratch) error {
	dim := t.cfg.Dim
	sc.rows = grown(sc.rows, len(ids))
	s := t.slots[number]
	s.Lock()
	if s.Moved() {
		s.Unlock()
		return t.slotError(number, partition.ErrMoved)
	}
	if by != nil {
		s.See(by, s.pushed)
	}
	s.findAll(ids, sc.rows, sc)
	for k, row := range sc.rows {
		if row != noRow {
			copy(dst[k*dim:(k+1)*dim], t.arena.floats(s.at(row)))
		}
	}
	s.Unlock()
	for k, row := range sc.rows {
		if row == noRow {
			t.init.fill(dst[k*dim:(k+1)*dim], ids[k])
		}
	}
	return nil
}
