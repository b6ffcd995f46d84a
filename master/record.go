package master

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// Recorder moves the record out of the store's way while a term lasts.
type Recorder interface {
	// Check is ErrOtherRecord when this master does not see what was sealed of the record
	// before: then it must not lead. Other errors say that it cannot be known now. jobID is
	// "" before the state is read.
	Check(ctx context.Context, jobID string) error
	// Seal seals until the term ends. Whatever goes wrong with the record is its own affair;
	// its error is that the term is over.
	Seal(ctx context.Context, lead Leadership, jobID string, progress func() RecordProgress) error
	Status() RecordStatus
}

// RecordProgress is how far commits, and the events in them, are.
type RecordProgress struct {
	Commit uint64 // the last one
	Bytes  uint64 // of events, in this term
}

// RecordStatus is how sealing goes.
type RecordStatus struct {
	Sealed   uint64 // the last sealed commit
	Bytes    int64  // of what is sealed and kept
	Failures int64  // attempts that failed
	Failing  bool   // the last attempt did
}

// checkRecord is ErrOtherRecord or nil: an answer that is not known now keeps no master from leading.
func (m *Master) checkRecord(ctx context.Context, jobID string) error {
	if m.Recorder == nil || m.config.NoRecord {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	err := m.checking.do(bounded, 0, func(ctx context.Context) error { return m.Recorder.Check(ctx, jobID) })
	if err != nil && !errors.Is(err, ErrOtherRecord) {
		m.log.WithError(err).Warn("whether the record is where this master looks is not known")
		return nil
	}
	return err
}

// seal runs the recorder for a term. It returns soon after the term has ended, also if the file system
// hangs: the leader must resign then.
func (m *Master) seal(ctx context.Context, t *term) error {
	if m.Recorder == nil || m.config.NoRecord {
		return nil
	}
	c := t.committer
	err := m.sealing.do(ctx, sealPatience, func(ctx context.Context) error {
		return m.Recorder.Seal(ctx, c.lead, hex.EncodeToString(t.jobID[:]), func() RecordProgress {
			return RecordProgress{Commit: c.number.Load(), Bytes: c.recorded.Load()}
		})
	})
	if errors.Is(err, errHangs) {
		m.log.Warn("sealing did not end with the term: the file system of the record does not answer")
	}
	return err
}

const (
	checkTimeout = 5 * time.Second
	sealPatience = 2 * time.Second // for what sealing has begun when the term ends
)

// detached runs calls that may not return: their file system hangs, and no context ends a system call.
// One runs at a time; a call that its caller no longer waits for keeps the turn until it returns.
type detached struct{ turn }

var errHangs = errors.New("call has not returned")

// do runs call and waits for it, patience longer than ctx.
func (d detached) do(ctx context.Context, patience time.Duration, call func(context.Context) error) error {
	if err := d.take(ctx); err != nil {
		return fmt.Errorf("wait for an earlier call: %w", err)
	}
	done := make(chan error, 1)
	go func() {
		err := call(ctx)
		d.give()
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	//guard:sealing-time-limit
	case <-time.After(patience):
		return fmt.Errorf("%w: %w", errHangs, context.Cause(ctx))
	}
}
