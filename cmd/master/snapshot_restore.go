package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"trainmaster/etcdstore"
	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/checkpoint/storage"
)

// restoredJob is what `master snapshot restore` says.
type restoredJob struct {
	Job      string `json:"job"`
	JobID    string `json:"job_id"`
	Cluster  string `json:"cluster"`
	Commit   uint64 `json:"commit"`
	Epoch    uint32 `json:"epoch"`
	Restores uint8  `json:"restores"`
	Again    int    `json:"delivered_again"`
	Ledger   bool   `json:"ledger"`
}

func snapshotRestoreCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Make a job of a snapshot, where there is none",
		Long: `Restore puts the job of a snapshot into an etcd, under the name that it had or under that of --job. There must be no job of
that name: restore never writes over anything. Without --endpoints it is the embedded etcd under --data-dir, which
is made if it is not there. If it is broken off, run it again with the same file.

The parameters of a snapshot that has them go into --checkpoint-dir, an empty folder, which is then that of the job's
parameter servers.

What was counted when the snapshot was taken stays counted. What trainers held then, and whatever was counted later, is
delivered again. The restored job is one of its own: trainers of the old one join anew, and nothing that they still
send counts in it.`,
		Example: `  master snapshot restore backup.tms --endpoints 10.0.0.1:2379 --job again
  # one with parameters
  master snapshot restore backup.tms --endpoints 10.0.0.1:2379 --checkpoint-dir /shared/again
  master snapshot restore backup.tms --data-dir restored`,
		Args: cobra.ExactArgs(1),
	}
	to := addPlaceFlags(cmd, addEtcdFlags(cmd))
	checkpoints := cmd.Flags().String("checkpoint-dir", "", "empty `folder`, or s3://bucket/prefix, for the parameters of a snapshot that has them")
	format := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		file, err := openSnapshot(args[0])
		if err != nil {
			return err
		}
		switch {
		case file.Head.Model && *checkpoints == "":
			return usageErrorf("--checkpoint-dir: expected an empty folder for the parameters, which %s has: those of set %d", args[0], file.Head.Set)
		case !file.Head.Model && *checkpoints != "":
			return usageErrorf("--checkpoint-dir: expected it with a snapshot that has parameters, %s has none", args[0])
		case !file.Head.Model && file.Head.Set != 0:
			return usageErrorf("%s is the state of a job beside its set of checkpoints: begin the job from that folder with master --resume", args[0])
		}
		if !cmd.Flag("job").Changed {
			to.etcd.Job = file.Head.Job
		}
		store, closeStore, err := to.openTarget(cmd.Context())
		if err != nil {
			return err
		}
		defer closeStore()
		if stored, _, err := store.State(cmd.Context()); err == nil && stored != nil { // before much is written
			return usageErrorf("job %q in %v: %w: choose another --job, or remove that one as docs/keys.md says", to.etcd.Job, to, etcdstore.ErrOccupied)
		}
		r := &revival{file: file, ledger: file.Head.Ledger}
		if file.Head.Model {
			r.ledger = true
			place, err := storage.Open(*checkpoints)
			if err != nil {
				return usageErrorf("--checkpoint-dir: %w", err)
			}
			defer place.Close()
			if r.set, r.text, err = putModel(cmd.Context(), file, checkpoint.Store{Place: place}, cmd.ErrOrStderr()); err != nil {
				return err
			}
			if r.tables, err = indexAgain(cmd.Context(), file, nil, newLogger(cmd).WithField("job", to.etcd.Job)); err != nil {
				return usageErrorf("%w", err)
			}
		}
		job, err := r.adopt(cmd.Context(), store, to.etcd.Job)
		if errors.Is(err, etcdstore.ErrOccupied) {
			return usageErrorf("job %q in %v: %w", to.etcd.Job, to, err)
		}
		if err != nil {
			return err
		}
		return render(cmd.OutOrStdout(), *format, job, func(w io.Writer) {
			fmt.Fprintf(w, "job %s is restored at commit %s: %s tasks that were pending are delivered again\n", job.Job, thousands(job.Commit), thousands(uint64(job.Again)))
			fmt.Fprintf(w, "go on with it: master %s, and the settings that it had\n", to.flags())
			if r.set != nil {
				fmt.Fprintf(w, "its parameters are those of set %d, in %s: start its parameter servers with --checkpoint-dir %[2]s\n", r.set.Number, *checkpoints)
			}
			switch {
			case job.Ledger:
			case r.ledger:
				fmt.Fprintln(w, "its ledger is not in the snapshot: master verify proves what comes from here on")
			default:
				fmt.Fprintln(w, "its ledger is not in the snapshot: start its masters with --ledger=false")
			}
		})
	}
	return cmd
}
