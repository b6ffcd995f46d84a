package reference

import (
	"fmt"
	"iter"

	"trainmaster/trainer/model"
)

// recordError is about the data of a task, not about the trainer.
type recordError struct {
	record int // in the task, from 0
	err    error
}

func (e *recordError) Error() string {
	return fmt.Sprintf("record %d of the task: %v", e.record, e.err)
}
func (e *recordError) Unwrap() error { return e.err }

// batches cuts records into mini-batches. Its memory is used again and again.
type batches struct {
	batch *model.Batch
	size  int
}

// of yields mini-batches of size records, the last one smaller when they do not come out even. Each is valid until the
// next one is asked for. An error is a *recordError and the last thing that is yielded.
func (b *batches) of(records iter.Seq2[[]byte, error]) iter.Seq2[*model.Batch, error] {
	return func(yield func(*model.Batch, error) bool) {
		b.batch.Reset()
		n := 0
		for record, err := range records {
			if err == nil {
				err = b.batch.Append(record)
			}
			if err != nil {
				yield(nil, &recordError{n, err})
				return
			}
			n++
			if b.batch.Len() == b.size {
				if !yield(b.batch, nil) {
					return
				}
				b.batch.Reset()
			}
		}
		if b.batch.Len() > 0 {
			yield(b.batch, nil)
		}
	}
}
