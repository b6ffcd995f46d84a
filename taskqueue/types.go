package taskqueue

import (
	"fmt"
	"time"

	"trainmaster/recordio"
)

// Chunk names one run of records in a file: the unit of the index.
type Chunk struct {
	Idx   int    // n-th chunk of the file, from 0
	Path  string // absolute path or a URL
	Index recordio.Index
}

// OffsetsOf identifies the offsets of n chunks; 0 stands for offsets that are all 0.
func OffsetsOf(n int, offset func(i int) int64) uint64 {
	h, known := uint64(14695981039346656037), false // FNV-1a of 64-bit words
	for i := range n {
		known = known || offset(i) != 0
		h = (h ^ uint64(offset(i))) * 1099511628211
	}
	if !known {
		return 0
	}
	return max(h, 1)
}

// Task is the unit of dispatch: one or more chunks, also of several files.
// Index is its number in the task table, from 0; a wait answer has Index -1
// and no chunks.
type Task struct {
	Index  int
	Chunks []Chunk
	Token  Token
}

// TaskEntry is a task in one of the literal queues. NumTimeout counts its
// failures in this pass.
type TaskEntry struct {
	NumTimeout int
	Task       Task
}

// TaskQueues is the literal view of one pass of one dataset: every task stands
// in exactly one of the three, or is set aside. It costs O(tasks) to build and
// serves tools and tests; the queue itself never holds it.
type TaskQueues struct {
	Todo    []TaskEntry
	Pending map[int]TaskEntry // by task index
	Done    []TaskEntry
}

// Pass numbers the walks over a dataset, from 1.
type Pass uint32

// Attempt numbers the dispatches of one task within one pass, from 1.
type Attempt uint32

// Ordinal is the small number of a trainer within its job; 0 is no trainer.
type Ordinal uint32

// Clock is the job clock in milliseconds, from 1. It is no wall clock: it advances only while the leader can commit, and
// continues from the stored value in the next term.
type Clock int64

// Add returns c moved by d, which is truncated to milliseconds.
func (c Clock) Add(d time.Duration) Clock { return c + Clock(d/time.Millisecond) }

// Sub returns the time from u to c.
func (c Clock) Sub(u Clock) time.Duration { return time.Duration(c-u) * time.Millisecond }

// Kind is the purpose of a dataset's tasks.
type Kind uint8

// The kinds of tasks.
const (
	Training Kind = iota
	Evaluation
	Prediction
	kinds = iota
)

func (k Kind) String() string {
	switch k {
	case Training:
		return "training"
	case Evaluation:
		return "evaluation"
	case Prediction:
		return "prediction"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Token names one dispatch. A finish carries it back, and is judged by it alone:
// (Epoch, Kind, Dataset, Pass, Position) name the task, Attempt the dispatch.
// The zero Token is what a client sends that knows none.
type Token struct {
	Epoch    uint32
	Kind     Kind
	Dataset  int
	Pass     Pass
	Position int // in the order of the pass, from 0
	Attempt  Attempt
}

// IsZero reports whether the client sent no token.
func (t Token) IsZero() bool { return t == Token{} }

func (t Token) String() string {
	return fmt.Sprintf("%d/%d/%d/%d.%d", t.Epoch, t.Dataset, t.Pass, t.Position, t.Attempt)
}

// Status is the state of the job.
type Status uint8

// The states of a job. Ended and Failed are final.
const (
	Running Status = iota
	Paused
	Ended
	Failed
)

func (s Status) String() string {
	switch s {
	case Running:
		return "running"
	case Paused:
		return "paused"
	case Ended:
		return "ended"
	case Failed:
		return "failed"
	}
	return fmt.Sprintf("status(%d)", uint8(s))
}
