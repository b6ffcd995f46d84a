// Package partition implements the common part of a dense block and a slot of an embedding table. A partition is the unit of
// migration: it belongs to one shard, has one lock, and stores the step of each trainer that it applied last.
//
// A step is applied once. A frozen partition takes no update until the migration ends, and a partition that has left takes none at
// all. The steps are a part of the partition, so an update that a trainer repeats after a migration is recognized at the
// destination.
package partition

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// Errors of an update.
var (
	ErrEnded = errors.New("the trainer has been replaced by a newer incarnation")
	ErrMoved = errors.New("partition is on another shard")
)

// ErrFrozen is the error of an update of a frozen partition. Until closes when the migration ends.
type ErrFrozen struct{ Until <-chan struct{} }

func (ErrFrozen) Error() string { return "partition is frozen for a migration" }

// ID names a partition of a model.
type ID struct {
	Table  uint32 // 0: a dense block; otherwise 1 + the number of the table of a slot
	Number uint64 // of the block in the placement, or of the slot
}

// Block returns the ID of a dense block.
func Block(number uint64) ID { return ID{Number: number} }

// Slot returns the ID of a slot of a table.
func Slot(table int, slot uint32) ID { return ID{Table: uint32(table) + 1, Number: uint64(slot)} }

func (id ID) String() string {
	if id.Table == 0 {
		return fmt.Sprintf("block %d", id.Number)
	}
	return fmt.Sprintf("slot %d of table %d", id.Number, id.Table-1)
}

// Trainer is one incarnation of a trainer.
type Trainer struct {
	number      int
	incarnation uint64
	ended       atomic.Bool
}

// NewTrainer returns a trainer without updates. Partitions store its steps under a small number. Two trainers can have the same number
// if one of them has ended, and if they differ in incarnation.
func NewTrainer(number int, incarnation uint64) *Trainer {
	return &Trainer{number: number, incarnation: incarnation}
}

// Number is the number of the trainer.
func (t *Trainer) Number() int { return t.number }

// Incarnation is the number of this start of the trainer.
func (t *Trainer) Incarnation() uint64 { return t.incarnation }

// End refuses updates of the trainer. A partition has no update in progress once its Drain returns.
func (t *Trainer) End() { t.ended.Store(true) }

// Ended reports whether End was called.
func (t *Trainer) Ended() bool { return t.ended.Load() }

// Partition is embedded by a block and by a slot. Its lock guards their content too.
type Partition struct {
	sync.Mutex

	marks  []mark        // by number of the trainer
	frozen chan struct{} // closed when the migration that froze the partition ends; nil if it is not frozen
	moved  bool          // whether another shard owns the partition
}

// mark is what a partition stores of a trainer.
type mark struct {
	incarnation uint64
	step        uint64 // last applied
	seen        uint32 // see See
}

// mark returns the mark of a trainer, nil if there is none.
func (p *Partition) mark(t *Trainer) *mark {
	if t.number >= len(p.marks) || p.marks[t.number].incarnation != t.incarnation {
		return nil
	}
	return &p.marks[t.number]
}

// newMark is mark that makes one.
func (p *Partition) newMark(t *Trainer) *mark {
	if m := p.mark(t); m != nil {
		return m
	}
	for len(p.marks) <= t.number {
		p.marks = append(p.marks, mark{})
	}
	p.marks[t.number] = mark{incarnation: t.incarnation}
	return &p.marks[t.number]
}

// Step returns the step of a trainer that was applied last. The caller holds the lock.
func (p *Partition) Step(t *Trainer) uint64 {
	if m := p.mark(t); m != nil {
		return m.step
	}
	return 0
}

// SetStep stores the step of a trainer that was applied last. The caller holds the lock, or no other goroutine has the partition yet.
func (p *Partition) SetStep(t *Trainer, step uint64) { p.newMark(t).step = step }

// See notes that a trainer has seen a number of updates. The caller holds the lock.
func (p *Partition) See(t *Trainer, updates uint32) {
	if !t.Ended() { // another trainer can have the number
		p.newMark(t).seen = updates + 1
	}
}

// Seen returns the number of See, and whether there is one. The caller holds the lock.
func (p *Partition) Seen(t *Trainer) (updates uint32, known bool) {
	if m := p.mark(t); m != nil && m.seen > 0 {
		return m.seen - 1, true
	}
	return 0, false
}

// Admit reports whether a step of a trainer is new for the partition. The error is ErrEnded, ErrMoved or ErrFrozen. The caller holds
// the lock.
func (p *Partition) Admit(t *Trainer, step uint64) (isNew bool, err error) {
	switch {
	case t.Ended():
		return false, ErrEnded
	case p.moved:
		return false, ErrMoved
	case p.frozen != nil:
		return false, ErrFrozen{p.frozen}
	}
	//guard:push-once
	isNew = step > p.Step(t)
	return isNew, nil
}

// Moved reports whether another shard owns the partition. The caller holds the lock.
func (p *Partition) Moved() bool { return p.moved }

// Drain returns when no other goroutine is in an operation that began before the call.
func (p *Partition) Drain() {
	p.Lock()
	p.Unlock() //nolint:staticcheck // empty on purpose: it waits for the current holder
}

// Freeze refuses updates until Thaw or Leave. Freezing the partition again changes nothing.
func (p *Partition) Freeze() {
	p.Lock()
	defer p.Unlock()
	if p.frozen == nil {
		p.frozen = make(chan struct{})
	}
}

// Frozen returns a channel that closes when the migration ends, nil if the partition is not frozen. Another migration has another
// channel.
func (p *Partition) Frozen() <-chan struct{} {
	p.Lock()
	defer p.Unlock()
	return p.frozen
}

// WhileFrozen calls read under the lock if the partition is still frozen for the migration of the channel, and reports whether it is.
func (p *Partition) WhileFrozen(until <-chan struct{}, read func()) bool {
	p.Lock()
	defer p.Unlock()
	if until == nil || p.frozen != until {
		return false
	}
	read()
	return true
}

// Thaw permits updates again.
func (p *Partition) Thaw() {
	p.Lock()
	defer p.Unlock()
	p.thaw()
}

func (p *Partition) thaw() {
	if p.frozen != nil {
		close(p.frozen)
		p.frozen = nil
	}
}

// Leave ends the use of the partition here: another shard owns it. drop releases its content, under the lock.
func (p *Partition) Leave(drop func()) {
	p.Lock()
	defer p.Unlock()
	p.thaw()
	p.moved = true
	drop()
}
