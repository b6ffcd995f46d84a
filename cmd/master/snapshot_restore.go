package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
	"trainmaster/etcdstore"
	"trainmaster/master/restore"
	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/checkpoint/storage"
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
	checkpoints := cmd.Flags().String("checkpoint-dir", "", "empty `directory`, or s3://bucket/prefix, for the parameters of a snapshot that has them")
	format := cli.AddOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		file, err := openSnapshot(args[0])
		if err != nil {
			return err
		}
		switch {
		case file.Head.Model && *checkpoints == "":
			return cli.UsageErrorf("--checkpoint-dir: expected an empty directory for the parameters of set %[2]d in %[1]s", args[0], file.Head.Set)
		case !file.Head.Model && *checkpoints != "":
			return cli.UsageErrorf("--checkpoint-dir: expected it with a snapshot that has parameters, %s has none", args[0])
		case !file.Head.Model && file.Head.Set != 0:
			return cli.UsageErrorf("%s is the state of a job at a set of checkpoints: restore the job from that directory with master --resume", args[0])
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
			place, err := storage.Open(*checkpoints)
			if err != nil {
				return cli.UsageErrorf("--checkpoint-dir: %w", err)
			}
			defer place.Close()
			if r.Set, r.Text, err = restore.PutModel(cmd.Context(), file, checkpoint.Store{Place: place}, cmd.ErrOrStderr()); err != nil {
				return err
			}
			if r.Tables, err = restore.IndexAgain(cmd.Context(), file, nil, cli.NewLogger(cmd).WithField("job", to.Etcd.Job)); err != nil {
				return cli.UsageErrorf("%w", err)
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
			fmt.Fprintf(w, "job %s is restored at commit %s: %s tasks that were pending are dispatched again\n", job.Job, cli.Thousands(job.Commit), cli.Thousands(uint64(job.Again)))
			fmt.Fprintf(w, "continue it with: master %s, and its former settings\n", to.Flags())
			if r.Set != nil {
				fmt.Fprintf(w, "its parameters are from set %d: start its parameter servers with --checkpoint-dir %s\n", r.Set.Number, *checkpoints)
			}
			switch {
			case job.Ledger:
			case r.Ledger:
				fmt.Fprintln(w, "its former ledger is not in the snapshot: master verify checks passes from here on")
			default:
				fmt.Fprintln(w, "its ledger is not in the snapshot: start its masters with --ledger=false")
			}
		})
	}
	return cmd
}
