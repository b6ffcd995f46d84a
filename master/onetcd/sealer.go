package onetcd

import (
	"context"
	"errors"
	"fmt"

	"trainmaster/ledger"
	"trainmaster/master"
)

// Sealer seals the ledger of a job as a master needs it.
type Sealer struct {
	*ledger.Sealer
}

var _ master.Sealer = Sealer{}

// Check finds out whether this master sees what is sealed of the ledger.
func (r Sealer) Check(ctx context.Context, jobID string) error {
	err := r.Sealer.Check(ctx, jobID)
	if errors.Is(err, ledger.ErrElsewhere) {
		return fmt.Errorf("%w: %w", master.ErrOtherLedger, err)
	}
	return err
}

// Seal seals until the term ends.
func (r Sealer) Seal(ctx context.Context, lead master.Leadership, jobID string, progress func() master.LedgerProgress) error {
	lock, ok := lead.(ledger.Lock)
	if !ok {
		return fmt.Errorf("seal the ledger: expected the lock of an etcd store, found %T", lead)
	}
	return r.Run(ctx, lock, jobID, func() ledger.Progress { return ledger.Progress(progress()) })
}

// Status returns how sealing goes.
func (r Sealer) Status() master.LedgerStatus {
	s := r.Sealer.Status()
	return master.LedgerStatus{Sealed: s.Through, Bytes: s.Bytes, Failures: s.Failures, Failure: s.Failure, Dir: s.Dir, Hangs: s.Hangs}
}
