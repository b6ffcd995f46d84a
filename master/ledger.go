package master

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
	"trainmaster/ledger"
)

// Sealer moves the ledger from etcd to sealed files while a term lasts. *ledger.Sealer implements it.
type Sealer interface {
	// Check returns ledger.ErrElsewhere if this master does not see the sealed part of the ledger: it must not lead then. Other
	// errors mean that this is not known now. jobID is "" before the state is read.
	Check(ctx context.Context, jobID string) error
	// Run seals the ledger until the term ends. It handles failures of the ledger itself; the returned error means that the term is
	// over.
	Run(ctx context.Context, lock ledger.Lock, jobID string, progress func() ledger.Progress) error
	Status() ledger.Status
}

// checkLedger is ErrOtherLedger or nil: an answer that is not known now keeps no master from leading.
func (m *Master) checkLedger(ctx context.Context, jobID string) error {
	if !m.config.seals() {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	err := m.checking.do(bounded, 0, func(ctx context.Context) error { return m.config.Ledger.Check(ctx, jobID) })
	if errors.Is(err, ledger.ErrElsewhere) {
		return fmt.Errorf("%w: %w", ErrOtherLedger, err)
	}
	if err != nil {
		m.config.Log.WithError(err).Warn("whether the ledger is where this master looks is not known")
	}
	return nil
}

// seal runs the sealer for a term. It returns soon after the term has ended, also if the file system
// hangs: the leader must resign then.
func (m *Master) seal(ctx context.Context, t *term) error {
	if !m.config.seals() {
		return nil
	}
	c := t.committer
	err := m.sealing.do(ctx, sealPatience, func(ctx context.Context) error {
		return m.config.Ledger.Run(ctx, c.lead, hex.EncodeToString(t.jobID[:]), func() ledger.Progress {
			return ledger.Progress{Commit: c.number.Load(), Bytes: c.ledgerBytes.Load()}
		})
	})
	if errors.Is(err, errHangs) {
		m.config.Log.Warn("sealing did not end with the term: the file system of the ledger does not answer")
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
