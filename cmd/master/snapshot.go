package main

import (
	"context"
	"errors"
	"io/fs"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
	"trainmaster/cmd/internal/view"
	"trainmaster/etcdstore"
	"trainmaster/internal/filekind"
	"trainmaster/master/restore"
	"trainmaster/master/snapshot"
	"trainmaster/pserver/checkpoint"
)

func snapshotCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "Save a job to a file and restore it elsewhere",
		Long: `Snapshot saves the state of a job in etcd to a file. The job can be restored from the file in another etcd or under another
name. The file has the tasks, the progress of the passes, the set-aside tasks with their errors, the settings and the ledger.
With --checkpoint-dir it also has the parameters, at the same cut.`,
		Example: `  master snapshot save backup.tms --endpoints 10.0.0.1:2379`,
	}
	cmd.AddCommand(snapshotSaveCommand(), snapshotInspectCommand(), snapshotRestoreCommand())
	return cmd
}

func snapshotSaveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "save FILE",
		Short: "Save a job to a file",
		Long: `Save writes the state of a job in etcd, at one revision, to a file. The job may be running. An existing file is kept unless
--force is given; it is replaced when the new file is complete. Without --endpoints it reads the embedded etcd under --data-dir,
which no master may be using.

With --checkpoint-dir, the directory of its parameter servers, the file has the latest set of checkpoints too, and the state of
the job at the cut of that set: data and parameters of the restored job are consistent. Without it, the file has no parameters.

If --ledger-keep of the master has deleted a part of the ledger, the job can be saved only with --ledger=false. After a
restore, the earlier passes cannot be verified.`,
		Example: `  master snapshot save backup.tms --endpoints 10.0.0.1:2379
  # with the parameters
  master snapshot save backup.tms --endpoints 10.0.0.1:2379 --checkpoint-dir /shared/checkpoints
  master snapshot save backup.tms --data-dir trainmaster-data`,
		Args: cobra.ExactArgs(1),
	}
	from := admin.AddLocationFlags(cmd, cli.AddEtcdFlags(cmd))
	withLedger := cmd.Flags().Bool("ledger", true, "save the ledger too, from which master verify proves what was counted")
	dir := addLedgerDir(cmd)
	checkpoints := cmd.Flags().String("checkpoint-dir", "", "`directory`, or s3://bucket/prefix (azblob://, gs://), of the checkpoints of the job's parameter servers (default: the parameters are not saved)")
	force := cmd.Flags().Bool("force", false, "replace a file that exists")
	format := cli.AddOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := filekind.CheckNew(args[0], *force); err != nil {
			return cli.UsageErrorf("snapshot %q: %w", args[0], err)
		}
		store, closeStore, err := from.Open(cmd.Context())
		if err != nil {
			return err
		}
		defer closeStore()
		b := &restore.Backup{Store: store, Job: from.Etcd.Job, TakenBy: readVersion().Version, Ledger: *withLedger, LedgerDir: *dir}
		var folder *checkpoint.Store
		if *checkpoints != "" {
			opened, err := openCheckpoints(*checkpoints)
			if err != nil {
				return err
			}
			defer opened.Place.Close()
			folder = &opened
		}
		if err := b.Save(cmd.Context(), args[0], folder, cmd.ErrOrStderr()); err != nil {
			return orNoSuchJob(cmd.Context(), from, store, err)
		}
		return showSnapshot(cmd, *format, args[0])
	}
	return cmd
}

// orNoSuchJob replaces ErrNoJob by the error that names the jobs of an etcd.
func orNoSuchJob(ctx context.Context, from admin.Location, store *etcdstore.Store, err error) error {
	if errors.Is(err, restore.ErrNoJob) {
		return from.NoSuchJob(ctx, store)
	}
	return err
}

func snapshotInspectCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "inspect FILE",
		Short:   "Show and verify the contents of a snapshot",
		Long:    `Inspect reads and verifies a whole snapshot, and prints the job and its progress. It exits with 1 if the file is damaged.`,
		Example: `  master snapshot inspect backup.tms -o json`,
		Args:    cobra.ExactArgs(1),
	}
	format := cli.AddOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return showSnapshot(cmd, *format, args[0]) }
	return cmd
}

// openSnapshot opens a file that an operator named.
func openSnapshot(path string) (*snapshot.File, error) {
	s, err := snapshot.Open(path)
	if err != nil {
		if wrong := filekind.CheckFile(path); wrong != nil {
			return nil, cli.UsageErrorf("read snapshot %q: %w", path, wrong)
		}
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil, cli.UsageErrorf("read snapshot: %w", err)
	}
	return s, err
}

// showSnapshot opens a snapshot and prints its description.
func showSnapshot(cmd *cobra.Command, format, path string) error {
	s, err := openSnapshot(path)
	if err != nil {
		return err
	}
	info := view.Snapshot{File: path, Bytes: s.Size, Digest: s.Digest, Head: s.Head}
	return cli.Render(cmd.OutOrStdout(), format, info, info.Table)
}
