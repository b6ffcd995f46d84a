package taskqueue

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
)

// Online datasets grow while they are trained. A dataset with SetSpec.Online begins with an empty table. AppendSegment adds tasks to the
// end of its first pass, which stays open until CloseSet. In the first pass the order of the tasks is the order of their arrival. Later
// passes follow over all tasks; with SetSpec.Shuffle each of them has its own permutation.
//
// A segment is nothing in the state but larger numbers: of parts, chunks and tasks, and the digest of all parts as a chain. The parts of
// a segment have the numbers after the parts that the state names, so the parts of an interrupted append are overwritten by the next
// append before a state names them.

// Errors of the events of online datasets.
var (
	// ErrNoSet is returned for the name of no dataset of the job.
	ErrNoSet = errors.New("no such dataset")
	// ErrNotOnline is returned for a dataset that cannot grow.
	ErrNotOnline = errors.New("dataset is not online")
	// ErrSetClosed is returned for an append to a closed dataset.
	ErrSetClosed = errors.New("dataset is closed")
	// ErrOtherSegment is returned for an append whose table does not continue the table of the dataset.
	ErrOtherSegment = errors.New("another segment was appended first")
	// ErrEmptySet is returned if a dataset without tasks is to be closed.
	ErrEmptySet = errors.New("dataset has no tasks")
)

// grows reports whether segments can be appended: the first pass stays open.
func (s *set) grows() bool { return s.online && !s.closed }

// growing returns a dataset that accepts appends.
func (q *Queue) growing(name string) (*set, error) {
	s := q.named(name)
	switch {
	case q.hasEnded():
		return nil, fmt.Errorf("%w: it is %s", ErrJobOver, q.status)
	case s == nil:
		names := make([]string, len(q.sets))
		for i, other := range q.sets {
			names[i] = other.name
		}
		return nil, fmt.Errorf("%w: %q; %s", ErrNoSet, name, some("there are", "there is none", names))
	case !s.online:
		return nil, fmt.Errorf("%w: %q: expected a dataset that the master was started with as --dataset '%s=PATH,online'", ErrNotOnline, name, name)
	case s.closed:
		return s, fmt.Errorf("%w: %q: its %d tasks are final", ErrSetClosed, name, s.tasks)
	}
	return s, nil
}

// Growing returns the number of an online dataset that is not closed, or the reason why there is none of that name. With ErrSetClosed, it
// returns the number of the closed dataset.
func (q *Queue) Growing(name string) (set int, err error) {
	s, err := q.growing(name)
	if s != nil {
		set = s.id
	}
	return set, err
}

// Parts returns the number of parts of the table of a dataset, and their digest.
func (q *Queue) Parts(set int) (n int, report string, digest [32]byte) {
	s := q.sets[set]
	return s.parts, s.reportID, s.partsDigest
}

// AppendSegment adds tasks to an online dataset. The caller has stored their parts after the parts of the dataset.
type AppendSegment struct {
	Name        string
	After       [32]byte // digest of the parts before the segment
	Parts       int      // of the segment
	PartsDigest [32]byte // of all parts
	Table       *Table   // of the dataset with the segment
}

func (ev *AppendSegment) apply(q *Queue) Answer {
	s, err := q.growing(ev.Name)
	switch {
	case err != nil:
		return Answer{Err: err}
	//guard:segment-appended-once
	case s.partsDigest != ev.After || ev.Table.Chunks() <= s.chunks:
		return Answer{Err: fmt.Errorf("%w: %q: repeat the request", ErrOtherSegment, ev.Name)}
	case ev.Table.Tasks() > maxTasks:
		return Answer{Err: fmt.Errorf("%w: expected at most %d tasks, found %d", ErrBadSet, maxTasks, ev.Table.Tasks())}
	}
	tasks, chunks := ev.Table.Tasks()-s.tasks, ev.Table.Chunks()-s.chunks
	s.parts, s.partsDigest, s.table = s.parts+ev.Parts, ev.PartsDigest, ev.Table
	s.tasks, s.chunks, q.dirty = s.tasks+tasks, s.chunks+chunks, true
	q.ledger.appended(s.id, tasks, chunks)
	q.notice(false, "segment appended", map[string]any{"set": s.id, "name": s.name, "tasks": tasks, "of": s.tasks})
	q.unblock(WaitTask)
	return Answer{Set: s.id}
}

// CloseSet closes an online dataset: its first pass ends when all tasks are done. A closed dataset stays closed.
type CloseSet struct{ Name string }

func (ev *CloseSet) apply(q *Queue) Answer {
	s, err := q.growing(ev.Name)
	switch {
	case errors.Is(err, ErrSetClosed):
		return Answer{Set: s.id}
	case err != nil:
		return Answer{Err: err}
	//guard:empty-dataset-not-closed
	case s.tasks == 0:
		return Answer{Err: fmt.Errorf("%w: %q: expected at least one append before the close", ErrEmptySet, ev.Name)}
	}
	s.closed, q.dirty = true, true
	q.ledger.closed(s.id)
	q.notice(false, "dataset closed", map[string]any{"set": s.id, "name": s.name, "tasks": s.tasks})
	q.unblock(WaitTask)
	q.advance(s)
	return Answer{Set: s.id}
}

// Extend returns a table that continues this one: Add and AddPart append to it and do not change this table, which stays safe for
// concurrent reading. Only one table at a time may continue a table.
func (t *Table) Extend() *Table {
	next := *t
	next.mixed = maps.Clone(t.mixed)
	return &next
}

// ChainDigest returns the digest of the parts of an online dataset after one more part.
func ChainDigest(before [32]byte, part []byte) [32]byte {
	sum := sha256.Sum256(part)
	return sha256.Sum256(append(before[:], sum[:]...))
}
