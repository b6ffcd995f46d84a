package onetcd

import (
	"context"
	"errors"
	"fmt"

	"trainmaster/master"
	"trainmaster/record"
)

// Recorder seals the record of a job as a master needs it.
type Recorder struct {
	*record.Sealer
}

var _ master.Recorder = Recorder{}

// Check finds out whether this master sees what is sealed of the record.
func (r Recorder) Check(ctx context.Context, jobID string) error {
	err := r.Sealer.Check(ctx, jobID)
	if errors.Is(err, record.ErrElsewhere) {
		return fmt.Errorf("%w: %w", master.ErrOtherRecord, err)
	}
	return err
}

// Seal seals until the term ends.
func (r Recorder) Seal(ctx context.Context, lead master.Leadership, jobID string, progress func() master.RecordProgress) error {
	lock, ok := lead.(record.Lock)
	if !ok {
		return fmt.Errorf("seal the record: expected the lock of an etcd store, found %T", lead)
	}
	return r.Run(ctx, lock, jobID, func() record.Progress { return record.Progress(progress()) })
}

// Status returns how sealing goes.
func (r Recorder) Status() master.RecordStatus {
	s := r.Sealer.Status()
	return master.RecordStatus{Sealed: s.Through, Bytes: s.Bytes, Failures: s.Failures, Failing: s.Failing}
}
