package master

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// Sealer moves the ledger out of the store's way while a term lasts.
type Sealer interface {
	// Check is ErrOtherLedger when this master does not see what was sealed of the ledger
	// before: then it must not lead. Other errors say that it cannot be known now. jobID is
	// "" before the state is read.
	Check(ctx context.Context, jobID string) error
	// Seal seals the ledger until the term ends. It handles failures of the ledger itself; the returned error means
	// that the term is over.
	Seal(ctx context.Context, lead Leadership, jobID string, progress func() LedgerProgress) error
	Status() LedgerStatus
}

// LedgerProgress is how far commits, and the events in them, are.
type LedgerProgress struct {
	Commit uint64 // number of the last commit
	Bytes  uint64 // of events, in this term
}

// LedgerStatus is how sealing goes.
type LedgerStatus struct {
	Sealed   uint64 // the last sealed commit
	Bytes    int64  // size of the sealed files that are kept
	Failures int64  // attempts that failed
	Failure  string // why the last attempt failed; "": it did not
	Dir      string // of the sealed files; "": they are kept in etcd
	// Hangs is how long the directory has not answered. It is 0 while an access takes less than 10 s.
	Hangs time.Duration
}

// checkLedger is ErrOtherLedger or nil: an answer that is not known now keeps no master from leading.
func (m *Master) checkLedger(ctx context.Context, jobID string) error {
	if m.Sealer == nil || m.config.NoLedger {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	err := m.checking.do(bounded, 0, func(ctx context.Context) error { return m.Sealer.Check(ctx, jobID) })
	if err != nil && !errors.Is(err, ErrOtherLedger) {
		m.log.WithError(err).Warn("whether the ledger is where this master looks is not known")
		return nil
	}
	return err
}

// seal runs the sealer for a term. It returns soon after the term has ended, also if the file system
// hangs: the leader must resign then.
func (m *Master) seal(ctx context.Context, t *term) error {
	if m.Sealer == nil || m.config.NoLedger {
		return nil
	}
	c := t.committer
	err := m.sealing.do(ctx, sealPatience, func(ctx context.Context) error {
		return m.Sealer.Seal(ctx, c.lead, hex.EncodeToString(t.jobID[:]), func() LedgerProgress {
			return LedgerProgress{Commit: c.number.Load(), Bytes: c.ledgerBytes.Load()}
		})
	})
	if errors.Is(err, errHangs) {
		m.log.Warn("sealing did not end with the term: the file system of the ledger does not answer")
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

// do runs call and waits for it, up to patience after ctx ends.
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
