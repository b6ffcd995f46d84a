package reference

import (
	"fmt"
	"iter"

	"trainmaster/trainer/model"
)

// recordError is an error in the data of a task.
type recordError struct {
	record int // in the task, from 0
	err    error
}

func (e *recordError) Error() string {
	return fmt.Sprintf("record %d of the task: %v", e.record, e.err)
}
func (e *recordError) Unwrap() error { return e.err }

// batches cuts records into mini-batches, and mini-batches into groups. It reuses its memory.
type batches struct {
	memory []*model.Batch // a group
	size   int
}

func newBatches(m model.Model, size, group int) batches {
	b := batches{size: size}
	for range group {
		b.memory = append(b.memory, m.NewBatch(size))
	}
	return b
}

// of yields groups of mini-batches of size records. The last mini-batch and the last group may be smaller, but never empty. Each
// group is valid until the next iteration. An error is a *recordError and the last yielded value: the mini-batches of an unfinished
// group before it are dropped.
func (b *batches) of(records iter.Seq2[[]byte, error]) iter.Seq2[[]*model.Batch, error] {
	return func(yield func([]*model.Batch, error) bool) {
		full := 0
		b.memory[0].Reset()
		n := 0
		for record, err := range records {
			batch := b.memory[full]
			if err == nil {
				err = batch.Append(record)
			}
			if err != nil {
				yield(nil, &recordError{n, err})
				return
			}
			n++
			if batch.Len() < b.size {
				continue
			}
			if full++; full == len(b.memory) {
				if !yield(b.memory, nil) {
					return
				}
				full = 0
			}
			b.memory[full].Reset()
		}
		if b.memory[full].Len() > 0 {
			full++
		}
		if full > 0 {
			yield(b.memory[:full], nil)
		}
	}
}
