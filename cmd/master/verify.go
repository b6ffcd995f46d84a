package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"trainmaster/etcdstore"
	"trainmaster/taskqueue"
)

func verifyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Prove from the record that every task was counted exactly once",
		Long: `Verify reads the record of a job, which the master writes in the same transactions as the state, and says for each pass what
became of its tasks: every one must be counted once or set aside. Then it compares the record with the state. It needs no
master, and can run while one leads. Without --endpoints it reads the embedded etcd under --data-dir, which no master may
be using.

It exits with 1 if a task is missing or was counted twice, or if the record and the state disagree, and with 2 if there
is no record.`,
		Example: `  master verify --endpoints 10.0.0.1:2379 --job digits
  master verify --data-dir trainmaster-data -o json`,
	}
	from := addPlaceFlags(cmd, addEtcdFlags(cmd))
	format := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		store, closeStore, err := from.open(cmd.Context())
		if err != nil {
			return err
		}
		defer closeStore()
		reports, wrong := verify(cmd.Context(), store, from)
		if reports == nil {
			return wrong
		}
		return errors.Join(wrong, render(cmd.OutOrStdout(), *format, reports, func(w io.Writer) {
			fmt.Fprintln(w, "DATASET\tPASS\tTASKS\tCOUNTED ONCE\tSET ASIDE\tREDELIVERED\tMISSING\tCOUNTED TWICE")
			for _, r := range reports {
				aside := fmt.Sprint(r.SetAside)
				if r.Dropped > 0 {
					aside += fmt.Sprintf(" (%d dropped)", r.Dropped)
				}
				fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%s\t%d\t%d\t%d\n", r.Set, r.Pass, r.Tasks, r.CountedOnce, aside, r.Redelivered, r.Missing, r.CountedTwice)
			}
			if wrong == nil {
				fmt.Fprintln(w, "\nNothing is missing and nothing was counted twice; the record agrees with the state.")
			}
		}))
	}
	return cmd
}

// verify feeds the record up to the stored state to a verifier. The reports are nil when there is none to be made. What
// is found wrong comes with them.
func verify(ctx context.Context, store *etcdstore.Store, from place) (reports []taskqueue.PassReport, wrong error) {
	stored, _, err := store.State(ctx)
	if err != nil {
		return nil, err
	}
	if stored == nil {
		return nil, from.noSuchJob(ctx, store)
	}
	var state taskqueue.Snapshot
	if err := etcdstore.Decode(stored, &state, maxStateDecoded); err != nil {
		return nil, fmt.Errorf("read the state: %w", err)
	}
	verifier := taskqueue.NewVerifier()
	for r, err := range record(ctx, store, state.Commit) {
		if err != nil {
			return nil, err
		}
		if err := verifier.Add(r.commit, r.events); err != nil {
			return append([]taskqueue.PassReport{}, verifier.Report()...), fmt.Errorf("read the record: %w", err)
		}
	}
	if verifier.Last() == 0 {
		return nil, usageErrorf("no record of job %q under %s%s: it ran with --record=false, or nobody has joined it yet; nothing can be verified", from.etcd.Job, store.Prefix(), recordKeys)
	}
	reports = append([]taskqueue.PassReport{}, verifier.Report()...)
	var bad []error
	for _, r := range reports {
		if r.Missing > 0 || r.CountedTwice > 0 {
			bad = append(bad, fmt.Errorf("dataset %d, pass %d: %d tasks are missing and %d were counted twice", r.Set, r.Pass, r.Missing, r.CountedTwice))
		}
	}
	if err := verifier.CrossCheck(&state); err != nil {
		bad = append(bad, fmt.Errorf("the record and the state of commit %d disagree: %w", state.Commit, err))
	}
	return reports, errors.Join(bad...)
}

const (
	recordKeys      = "/record/"
	recordPageBits  = 12 // commits of a page have the same number but for so many bits: three hex digits
	maxStateDecoded = 64 << 20
)

// recordValue is what one commit wrote into the record.
type recordValue struct {
	commit uint64
	events []byte
}

// record reads the record in the order of commits, up to the given one, a page of commits at a time. What stands there is
// never written again, so that pages need not be of one revision while a master goes on.
func record(ctx context.Context, store *etcdstore.Store, last uint64) iter.Seq2[recordValue, error] {
	return func(yield func(recordValue, error) bool) {
		for page := uint64(0); page <= last>>recordPageBits; page++ {
			values, _, err := store.Prefixed(ctx, fmt.Sprintf("%s%013x", recordKeys, page))
			if err != nil {
				yield(recordValue{}, fmt.Errorf("read the record: %w", err))
				return
			}
			for _, key := range slices.Sorted(maps.Keys(values)) {
				commit, err := strconv.ParseUint(strings.TrimPrefix(key, recordKeys), 16, 64)
				if err != nil {
					yield(recordValue{}, fmt.Errorf("%s: expected the number of a commit as 16 hexadecimal digits: %w", key, err))
					return
				}
				if commit > last || !yield(recordValue{commit, values[key]}, nil) {
					return
				}
			}
		}
	}
}
