package verify

import (
	"context"
	"errors"
	"fmt"

	"trainmaster/ledger"
	"trainmaster/taskqueue"
)

// ErrNoEntries is the error of a ledger without entries: the job ran without a ledger, or no trainer has joined it.
var ErrNoEntries = errors.New("expected ledger entries, found none")

// Check feeds the ledger up to a stored state to a verifier. The reports of all passes come with the errors that it finds: tasks
// that are missing or were counted twice, and differences between the ledger and the state.
func Check(ctx context.Context, reader *ledger.Reader, state *taskqueue.Snapshot) (reports []taskqueue.PassReport, wrong error) {
	verifier, err := taskqueue.ResumeVerifier(reader.Outline())
	if err != nil {
		return nil, err
	}
	for e, err := range reader.Entries(ctx, state.Commit) {
		if err == nil {
			err = verifier.Add(e.Commit, e.Events)
		}
		if err != nil {
			return append([]taskqueue.PassReport{}, verifier.Report()...), fmt.Errorf("read the ledger: %w", err)
		}
	}
	if verifier.Last() == 0 {
		return nil, ErrNoEntries
	}
	reports = append([]taskqueue.PassReport{}, verifier.Report()...)
	var bad []error
	for _, r := range reports {
		if r.Missing > 0 || r.CountedTwice > 0 {
			bad = append(bad, fmt.Errorf("dataset %d, pass %d: missing tasks: %d, counted twice: %d", r.Set, r.Pass, r.Missing, r.CountedTwice))
		}
	}
	if err := verifier.CrossCheck(state); err != nil {
		bad = append(bad, fmt.Errorf("ledger and state of commit %d differ: %w", state.Commit, err))
	}
	return reports, errors.Join(bad...)
}
