package main

import (
	"errors"
	"io"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
	"trainmaster/cmd/internal/view"
)

func verifyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Verify that each task was counted once",
		Long: `Verify reads the ledger of a job, which the master writes in the same transactions as the state, and checks for each pass
that every task was counted once or set aside. Then it compares the ledger with the state. It needs no
master, and can run while one leads. Without flags it reads the etcd of a master run that is under way in this directory, else the
embedded etcd under --data-dir, else the newest run in this directory. Sealed files are read from the directory that the master has
stored in etcd, or from --ledger-dir.

It exits with 1 if a task is missing or was counted twice, if the ledger and the state disagree, or if a sealed file is
damaged or missing, and with 2 if there is no ledger. Passes whose entries the master has deleted,
by --ledger-keep, are listed without figures.`,
		Example: `  master verify --endpoints 10.0.0.1:2379 --job digits
  master verify --data-dir trainmaster-data -o json`,
	}
	from, find := admin.AddRunFlags(cmd)
	dir := addLedgerDir(cmd)
	format := cli.AddOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := find(); err != nil {
			return err
		}
		store, closeStore, err := from.Open(cmd.Context())
		if err != nil {
			return err
		}
		defer closeStore()
		reports, wrong := admin.VerifyJob(cmd.Context(), store, from, *dir)
		if reports == nil {
			return wrong
		}
		return errors.Join(wrong, cli.Render(cmd.OutOrStdout(), *format, reports, func(w io.Writer) { view.VerifyTable(w, reports, wrong) }))
	}
	return cmd
}

// addLedgerDir gives cmd the flag for the directory of the sealed ledger.
func addLedgerDir(cmd *cobra.Command) *string {
	return cmd.Flags().String("ledger-dir", "", "`directory` of the sealed ledger, that of --ledger-dir of the masters (default: the directory that etcd names)")
}
