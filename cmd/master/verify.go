package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
	"trainmaster/etcdstore"
	"trainmaster/taskqueue"
)

func verifyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Prove from the ledger that every task was counted exactly once",
		Long: `Verify reads the ledger of a job, which the master writes in the same transactions as the state, and checks for each pass
that every task was counted once or set aside. Then it compares the ledger with the state. It needs no
master, and can run while one leads. Without --endpoints it reads the embedded etcd under --data-dir, which no master may
be using. Sealed files are read from the directory that the master has stored in etcd, or from --ledger-dir.

It exits with 1 if a task is missing or was counted twice, if the ledger and the state disagree, or if a sealed file is
damaged or missing, and with 2 if there is no ledger. Passes whose entries the master has deleted,
by --ledger-keep, are listed without figures.`,
		Example: `  master verify --endpoints 10.0.0.1:2379 --job digits
  master verify --data-dir trainmaster-data -o json`,
	}
	from := admin.AddLocationFlags(cmd, cli.AddEtcdFlags(cmd))
	dir := addLedgerDir(cmd)
	format := cli.AddOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		store, closeStore, err := from.Open(cmd.Context())
		if err != nil {
			return err
		}
		defer closeStore()
		reports, wrong := verify(cmd.Context(), store, from, *dir)
		if reports == nil {
			return wrong
		}
		return errors.Join(wrong, cli.Render(cmd.OutOrStdout(), *format, reports, func(w io.Writer) { verifyTable(w, reports, wrong) }))
	}
	return cmd
}

// addLedgerDir gives cmd the flag for the directory of the sealed ledger.
func addLedgerDir(cmd *cobra.Command) *string {
	return cmd.Flags().String("ledger-dir", "", "`directory` of the sealed ledger, that of --ledger-dir of the masters (default: the directory that etcd names)")
}

// verify feeds the ledger up to the stored state to a verifier. The reports are nil when there is none to be made. What
// is found wrong comes with them.
func verify(ctx context.Context, store *etcdstore.Store, from admin.Location, dir string) (reports []taskqueue.PassReport, wrong error) {
	reader, state, err := admin.OpenLedger(ctx, store, from, dir)
	if err != nil {
		return nil, err
	}
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
		return nil, admin.NoLedger(store, from)
	}
	reports = append([]taskqueue.PassReport{}, verifier.Report()...)
	var bad []error
	for _, r := range reports {
		if r.Missing > 0 || r.CountedTwice > 0 {
			bad = append(bad, fmt.Errorf("dataset %d, pass %d: %s missing, %d counted twice", r.Set, r.Pass, cli.Counted(r.Missing, "task"), r.CountedTwice))
		}
	}
	if err := verifier.CrossCheck(state); err != nil {
		bad = append(bad, fmt.Errorf("the ledger and the state of commit %d disagree: %w", state.Commit, err))
	}
	return reports, errors.Join(bad...)
}

// verifyTable writes the counts of each pass and the conclusion.
func verifyTable(w io.Writer, reports []taskqueue.PassReport, wrong error) {
	fmt.Fprintln(w, "DATASET\tPASS\tTASKS\tCOUNTED ONCE\tSET ASIDE\tREDELIVERED\tMISSING\tCOUNTED TWICE")
	unseen := 0
	for _, r := range reports {
		if r.Unseen {
			unseen++
			fmt.Fprintf(w, "%d\t%d\t%d\t-\t-\t-\t-\t-\n", r.Set, r.Pass, r.Tasks)
			continue
		}
		aside := fmt.Sprint(r.SetAside)
		if r.Dropped > 0 {
			aside += fmt.Sprintf(" (%d dropped)", r.Dropped)
		}
		fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%s\t%d\t%d\t%d\n", r.Set, r.Pass, r.Tasks, r.CountedOnce, aside, r.Redelivered, r.Missing, r.CountedTwice)
	}
	switch {
	case wrong == nil && unseen == 0:
		fmt.Fprintln(w, "\nNothing is missing and nothing was counted twice; the ledger agrees with the state.")
	case wrong == nil:
		fmt.Fprintln(w, "\nIn the passes with figures nothing is missing and nothing was counted twice; the ledger agrees with the state.")
	}
	if unseen > 0 {
		fmt.Fprintf(w, "Of %s, marked with -, the ledger is not kept any longer (--ledger-keep of the master), or was lost before the job was resumed: nothing is known of them.\n", cli.Counted(unseen, "pass"))
	}
}
