package proxy

import (
	"context"
	"time"

	"golang.org/x/sync/semaphore"
)

// AheadBytes and MaxStreams are limits of a reader and of a service.
const (
	AheadBytes = aheadBytes
	MaxStreams = maxStreams
)

// Ahead is a reader that reads ahead.
type Ahead struct {
	budget  *semaphore.Weighted
	batches chan batch
}

// ReadAhead reads a specification from its first record on, as ReadData does. The error comes at the end.
func ReadAhead(ctx context.Context, spec *Spec, size int32) (*Ahead, <-chan error) {
	a := &Ahead{semaphore.NewWeighted(aheadBytes), make(chan batch, aheadBytes/aheadUnit)}
	ended := make(chan error, 1)
	go func() {
		defer close(a.batches)
		ended <- fill(ctx, spec.Read(0), size, a.budget, a.batches)
	}()
	return a, ended
}

// Waiting is the number of batches that wait for the connection.
func (a *Ahead) Waiting() int { return len(a.batches) }

// Next takes a batch, as the connection does, and returns its size and number of records.
func (a *Ahead) Next() (bytes int, records int32, ok bool) {
	b, ok := <-a.batches
	a.budget.Release(b.reserved)
	return len(b.data), b.records, ok
}

// Streams are the streams of a service.
type Streams struct{ streams }

// NewStreams returns no streams.
func NewStreams(idle time.Duration) *Streams {
	return &Streams{streams{idle: idle, byID: map[int64]*stream{}}}
}

// Add is add.
func (s *Streams) Add(spec *Spec) (int64, error) { return s.add(spec) }

// Use is use.
func (s *Streams) Use(id int64) (end func(), err error) {
	_, end, err = s.use(id)
	return end, err
}

// Len is the number of streams.
func (s *Streams) Len() int { return len(s.byID) }

// Decode returns the records of an encoded batch.
func Decode(data []byte) (records [][]byte, err error) {
	for {
		record, rest, ok, err := nextRecord(data)
		if err != nil || !ok {
			return records, err
		}
		records, data = append(records, record), rest
	}
}
