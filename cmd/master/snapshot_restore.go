package main

import (
	"errors"
	"io"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
	"trainmaster/cmd/internal/view"
	"trainmaster/etcdstore"
	"trainmaster/master/restore"
	"trainmaster/master/snapshot"
)

func snapshotRestoreCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Restore a job from a snapshot",
		Long: `Restore writes the job of a snapshot to an etcd, under its former name or the name of --job. The etcd must not have a job of
that name: restore overwrites nothing. Without --endpoints it uses the embedded etcd under --data-dir, and creates it if it
does not exist. If restore is interrupted, run it again with the same file.

If the snapshot has parameters, they are written to --checkpoint-dir, which must be empty. It is the --checkpoint-dir of the
parameter servers of the restored job.

Tasks that were counted in the snapshot stay counted. Tasks that were dispatched then, or counted later, are dispatched again.
The restored job is a new job instance: trainers of the former job must join again, and their pending reports are
rejected.`,
		Example: `  master snapshot restore backup.tms --endpoints 10.0.0.1:2379 --job again
  # a snapshot with parameters
  master snapshot restore backup.tms --endpoints 10.0.0.1:2379 --checkpoint-dir /shared/again
  master snapshot restore backup.tms --data-dir restored`,
		Args: cobra.ExactArgs(1),
	}
	to := admin.AddLocationFlags(cmd, cli.AddEtcdFlags(cmd))
	checkpoints := cmd.Flags().String("checkpoint-dir", "", "empty `directory`, or s3://bucket/prefix (azblob://, gs://), for the parameters of a snapshot that has them")
	format := cli.AddOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		file, err := openSnapshot(args[0])
		if err != nil {
			return err
		}
		if err := checkParameters(file, args[0], *checkpoints); err != nil {
			return err
		}
		if !cmd.Flag("job").Changed {
			to.Etcd.Job = file.Head.Job
		}
		store, closeStore, err := to.OpenTarget(cmd.Context())
		if err != nil {
			return err
		}
		defer closeStore()
		if stored, _, err := store.State(cmd.Context()); err == nil && stored != nil { // before much is written
			return cli.UsageErrorf("job %q in %v: %w: choose another --job, or remove that job as docs/keys.md describes", to.Etcd.Job, to, etcdstore.ErrOccupied)
		}
		r := &restore.Plan{File: file, Ledger: file.Head.Ledger}
		if file.Head.Model {
			r.Ledger = true
			if err := restoreModel(cmd, r, *checkpoints, to.Etcd.Job); err != nil {
				return err
			}
		}
		job, err := r.Restore(cmd.Context(), store, to.Etcd.Job)
		if errors.Is(err, etcdstore.ErrOccupied) {
			return cli.UsageErrorf("job %q in %v: %w", to.Etcd.Job, to, err)
		}
		if err != nil {
			return err
		}
		return cli.Render(cmd.OutOrStdout(), *format, job, func(w io.Writer) {
			view.RestoredTable(w, job, r, to.Flags(), *checkpoints)
		})
	}
	return cmd
}

// checkParameters returns an error if --checkpoint-dir is given for a snapshot without parameters, or missing for one with them.
func checkParameters(file *snapshot.File, path, checkpoints string) error {
	switch {
	case file.Head.Model && checkpoints == "":
		return cli.UsageErrorf("--checkpoint-dir: expected an empty directory for the parameters of set %[2]d in %[1]s", path, file.Head.Set)
	case !file.Head.Model && checkpoints != "":
		return cli.UsageErrorf("--checkpoint-dir: expected it with a snapshot that has parameters, %s has none", path)
	case !file.Head.Model && file.Head.Set != 0:
		return cli.UsageErrorf("%s is the state of a job at a set of checkpoints: restore the job from that directory with master --resume", path)
	}
	return nil
}

// restoreModel writes the parameters of a snapshot to the directory of --checkpoint-dir, and indexes the dataset of the job again.
func restoreModel(cmd *cobra.Command, r *restore.Plan, checkpoints, job string) error {
	folder, err := openCheckpoints(checkpoints)
	if err != nil {
		return err
	}
	defer folder.Place.Close()
	if r.Set, r.Text, err = restore.PutModel(cmd.Context(), r.File, folder, cmd.ErrOrStderr()); err != nil {
		return err
	}
	if r.Tables, err = restore.IndexAgain(cmd.Context(), r.File, nil, cli.NewLogger(cmd).WithField("job", job)); err != nil {
		return cli.UsageErrorf("%w", err)
	}
	return nil
}
