package main

import (
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
	"trainmaster/cmd/internal/view"
	"trainmaster/master/restore"
	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/checkpoint/storage"
)

func checkpointCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "checkpoint",
		Short: "List checkpoint sets and choose one to load",
		Long: `Checkpoint shows which set of checkpoints a job loads, and lets an operator choose another one. A parameter server loads the
set that etcd names and no other one. If a file of that set is damaged or missing, the server waits, and master status shows the file.`,
		Example: `  master checkpoint list --checkpoint-dir checkpoints --endpoints 10.0.0.1:2379`,
	}
	cmd.AddCommand(checkpointListCommand(), checkpointUseCommand())
	return cmd
}

// addCheckpointDir gives cmd the directory of the job's checkpoints. The function that it returns opens the directory.
func addCheckpointDir(cmd *cobra.Command) (dir *string, open func() (checkpoint.Store, error)) {
	dir = cmd.Flags().String("checkpoint-dir", "", "`directory`, or s3://bucket/prefix (azblob://, gs://), of the checkpoints of the job's parameter servers (required)")
	return dir, func() (checkpoint.Store, error) {
		if err := wantCheckpointDir(*dir); err != nil {
			return checkpoint.Store{}, err
		}
		return openCheckpoints(*dir)
	}
}

// openCheckpoints opens the directory that --checkpoint-dir names.
func openCheckpoints(dir string) (checkpoint.Store, error) {
	place, err := storage.Open(dir)
	if err != nil {
		return checkpoint.Store{}, cli.UsageErrorf("--checkpoint-dir: %w", err)
	}
	return checkpoint.Store{Place: place}, nil
}

func wantCheckpointDir(dir string) error {
	if dir == "" {
		return cli.UsageErrorf("--checkpoint-dir: expected the directory of the job's parameter servers, found nothing")
	}
	return nil
}

func checkpointListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List checkpoint sets, damaged ones included",
		Long: `List reads all files of each set in --checkpoint-dir and checks their digests. The column NAMED has a * for the set that
etcd names, which parameter servers load. It exits with 0 also if a set is damaged.`,
		Example: `  master checkpoint list --checkpoint-dir checkpoints --endpoints 10.0.0.1:2379
  master checkpoint list --checkpoint-dir checkpoints -o json | jq '.[] | select(.complete).set'`,
	}
	from := admin.AddLocationFlags(cmd, cli.AddEtcdFlags(cmd))
	dir, _ := addCheckpointDir(cmd)
	format := cli.AddOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := wantCheckpointDir(*dir); err != nil {
			return err
		}
		store, closeStore, err := from.Open(cmd.Context())
		if err != nil {
			return err
		}
		defer closeStore()
		list, err := restore.ListSets(cmd.Context(), store, *dir)
		if err != nil {
			return err
		}
		return cli.Render(cmd.OutOrStdout(), *format, list, func(w io.Writer) { view.ListedTable(w, list) })
	}
	return cmd
}

func checkpointUseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "use SET",
		Short: "Name the checkpoint set that servers load",
		Long: `Use checks all files of the set with that number in --checkpoint-dir, and names it in etcd. Parameter servers that wait because
the set before was damaged load it within seconds. Updates after its cut are lost; tasks that were counted since are not trained again.
Servers that have parameters keep them. Sets that are newer than the named one are removed, at the latest when the next set is complete.

With --update-mode sync the tasks roll back with the parameters: stop all masters and parameter servers of the job, give the
command, and start them again. Tasks that were counted after the cut are trained again. The job gets a new id, and its ledger
begins at the cut. In --ledger-dir, the directory of the ledger before is renamed to JOB-OLDID.

If the leader or the named set changes while it runs, the command changes nothing and exits with 1: repeat it.`,
		Example: `  # the newest set that is complete, as master checkpoint list shows
  master checkpoint use 7 --checkpoint-dir checkpoints --endpoints 10.0.0.1:2379`,
		Args: cobra.ExactArgs(1),
	}
	from := admin.AddLocationFlags(cmd, cli.AddEtcdFlags(cmd))
	_, openDir := addCheckpointDir(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		number, err := strconv.ParseUint(args[0], 10, 64)
		if err != nil || number == 0 {
			return cli.UsageErrorf("%q: expected the number of a set, as master checkpoint list shows", args[0])
		}
		folder, err := openDir()
		if err != nil {
			return err
		}
		defer folder.Place.Close()
		store, closeStore, err := from.Open(cmd.Context())
		if err != nil {
			return err
		}
		defer closeStore()
		if err := restore.UseSet(cmd.Context(), store, from.Etcd.Job, folder, number); err != nil {
			return orNoSuchJob(cmd.Context(), from, store, err)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "set %d is named: parameter servers load it\n", number)
		return nil
	}
	return cmd
}
