package master

import (
	"context"
	"encoding/hex"
	"errors"
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

// checkRecord is ErrOtherRecord or nil: what is not known now keeps nobody from leading.
func (m *Master) checkRecord(ctx context.Context, jobID string) error {
	if m.Recorder == nil || m.config.NoRecord {
		return nil
	}
	err := m.Recorder.Check(ctx, jobID)
	if err != nil && !errors.Is(err, ErrOtherRecord) {
		m.log.WithError(err).Warn("whether the record is where this master looks is not known")
		return nil
	}
	return err
}

// seal runs the recorder for a term.
func (m *Master) seal(ctx context.Context, t *term) error {
	if m.Recorder == nil || m.config.NoRecord {
		return nil
	}
	c := t.committer
	return m.Recorder.Seal(ctx, c.lead, hex.EncodeToString(t.jobID[:]), func() RecordProgress {
		return RecordProgress{Commit: c.number.Load(), Bytes: c.recorded.Load()}
	})
}
