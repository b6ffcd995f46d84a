package taskqueue

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
)

// uncommittedTask is a finished task whose step is not committed.
type uncommittedTask struct {
	liveKey
	step uint64
	base int64   // of the entry that it was, and will be if it is rolled back
	mark int64   // as of a holder
	next Attempt // as of an entry
	by   Ordinal // the trainer that held it; 0: unknown
}

func (k liveKey) compare(o liveKey) int {
	return cmp.Or(cmp.Compare(k.pass, o.pass), cmp.Compare(k.position, o.position))
}

// uncommittedAt returns the uncommitted task at k, or nil.
func (s *set) uncommittedAt(k liveKey) *uncommittedTask {
	if at, ok := slices.BinarySearchFunc(s.uncommitted, k, func(b uncommittedTask, k liveKey) int { return b.compare(k) }); ok {
		return &s.uncommitted[at]
	}
	return nil
}

// addUncommitted keeps a finished task for the commit of its step.
func (s *set) addUncommitted(a uncommittedTask) {
	at, _ := slices.BinarySearchFunc(s.uncommitted, a.liveKey, func(b uncommittedTask, k liveKey) int { return b.compare(k) })
	s.uncommitted = slices.Insert(s.uncommitted, at, a)
	s.openPass(a.pass).uncommitted++
}

// encodeUncommitted writes the uncommitted tasks, column by column.
func (s *set) encodeUncommitted() []byte {
	if len(s.uncommitted) == 0 {
		return nil
	}
	b := make([]byte, 0, 8+6*len(s.uncommitted))
	b = binary.AppendUvarint(b, uint64(len(s.uncommitted)))
	var last uncommittedTask
	for _, a := range s.uncommitted {
		b = binary.AppendUvarint(b, uint64(a.pass-last.pass))
		last.pass = a.pass
	}
	for _, a := range s.uncommitted {
		b = binary.AppendVarint(b, int64(a.position-last.position))
		last.position = a.position
	}
	for _, a := range s.uncommitted {
		b = binary.AppendVarint(b, int64(a.step-last.step))
		last.step = a.step
	}
	for _, a := range s.uncommitted {
		b = binary.AppendUvarint(b, uint64(a.base))
	}
	for _, a := range s.uncommitted {
		b = binary.AppendUvarint(b, uint64(a.mark))
	}
	for _, a := range s.uncommitted {
		b = binary.AppendUvarint(b, uint64(a.next-1))
	}
	for _, a := range s.uncommitted {
		b = binary.AppendUvarint(b, uint64(a.by))
	}
	return b
}

// uncommittedEntryBytes is the minimum size of an entry. Each of its seven fields takes at least one byte.
const uncommittedEntryBytes = 7

// restoreUncommitted reads the uncommitted tasks. Their steps must be after the committed one.
func (s *set) restoreUncommitted(data []byte, committed uint64) error {
	if len(data) == 0 {
		return nil
	}
	c := &columns{buf: data}
	n := c.uint(uint64(len(data) / uncommittedEntryBytes))
	if c.bad {
		return fmt.Errorf("since columns of %d bytes name too many entries", len(data))
	}
	list := make([]uncommittedTask, n)
	var last uncommittedTask
	for i := range list {
		last.pass += Pass(c.uint(math.MaxUint32))
		list[i].pass = last.pass
	}
	for i := range list {
		last.position += int(c.int())
		list[i].position = last.position
	}
	for i := range list {
		last.step += uint64(c.int())
		list[i].step = last.step
	}
	for i := range list {
		list[i].base = int64(c.uint(math.MaxInt64 - 1))
	}
	for i := range list {
		list[i].mark = int64(c.uint(math.MaxInt64))
	}
	for i := range list {
		list[i].next = Attempt(c.uint(math.MaxUint32-1)) + 1
	}
	for i := range list {
		list[i].by = Ordinal(c.uint(math.MaxUint32))
	}
	if c.bad || len(c.buf) > 0 {
		return errors.New("the since columns end early or late")
	}
	for i, a := range list {
		p := s.openPass(a.pass)
		if p == nil || a.position < 0 || a.position >= s.dispatched(a.pass) || i > 0 && list[i-1].compare(a.liveKey) >= 0 || s.byKey[a.liveKey] != nil || a.step <= committed {
			return fmt.Errorf("since entry %d: pass %d, position %d, step %d after the committed %d", i, a.pass, a.position, a.step, committed)
		}
		p.uncommitted++
	}
	s.uncommitted = list
	return nil
}

// ExactSnapshot is the stored state of explicit commits, besides the columns.
type ExactSnapshot struct {
	Committed  uint64 // step
	Generation uint64
	RolledTo   uint64
	Round      uint64    // the step that is being flushed; 0: none
	Members    []Ordinal // rising
	Flushed    []Ordinal // rising
}

func (x *explicitCommits) snapshot() *ExactSnapshot {
	return &ExactSnapshot{
		Committed: x.committed, Generation: x.generation, RolledTo: x.rolledTo, Round: x.round,
		Members: slices.Sorted(maps.Keys(x.members)), Flushed: slices.Sorted(maps.Keys(x.flushed)),
	}
}

func (s *ExactSnapshot) restore() (*explicitCommits, error) {
	x := newExplicitCommits()
	x.committed, x.generation, x.rolledTo, x.round = s.Committed, s.Generation, s.RolledTo, s.Round
	if s.RolledTo > s.Committed || s.Round != 0 && s.Round <= s.Committed || s.Round == 0 && len(s.Flushed) > 0 {
		return nil, fmt.Errorf("steps: %+v", *s)
	}
	for _, o := range s.Members {
		x.members[o] = true
	}
	for _, o := range s.Flushed {
		x.flushed[o] = true
	}
	return x, nil
}
