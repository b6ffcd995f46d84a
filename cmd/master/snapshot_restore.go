package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"

	"github.com/spf13/cobra"

	"trainmaster/etcdstore"
	"trainmaster/taskqueue"
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
	Record   bool   `json:"record"`
}

func snapshotRestoreCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Make a job of a snapshot, where there is none",
		Long: `Restore puts the job of a snapshot into an etcd, under the name that it had or under that of --job. There must be no job of
that name: restore never writes over anything. Without --endpoints it is the embedded etcd under --data-dir, which
is made if it is not there. If it is broken off, run it again with the same file.

What was counted when the snapshot was taken stays counted. What trainers held then, and whatever was counted later, is
delivered again. The restored job is one of its own: trainers of the old one join anew, and nothing that they still
send counts in it.`,
		Example: `  master snapshot restore backup.tms --endpoints 10.0.0.1:2379 --job again
  master snapshot restore backup.tms --data-dir restored`,
		Args: cobra.ExactArgs(1),
	}
	to := addPlaceFlags(cmd, addEtcdFlags(cmd))
	format := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		file, err := openSnapshot(args[0])
		if err != nil {
			return err
		}
		if !cmd.Flag("job").Changed {
			to.etcd.Job = file.head.Job
		}
		store, closeStore, err := to.openTarget(cmd.Context())
		if err != nil {
			return err
		}
		defer closeStore()
		job, err := restoreSnapshot(cmd.Context(), store, to.etcd.Job, file)
		if errors.Is(err, etcdstore.ErrOccupied) {
			return usageErrorf("job %q in %v: %w", to.etcd.Job, to, err)
		}
		if err != nil {
			return err
		}
		return render(cmd.OutOrStdout(), *format, job, func(w io.Writer) {
			fmt.Fprintf(w, "job %s is restored at commit %s: %s tasks that were pending are delivered again\n", job.Job, thousands(job.Commit), thousands(uint64(job.Again)))
			fmt.Fprintf(w, "go on with it: master %s, and the settings that it had\n", to.flags())
			if !job.Record {
				fmt.Fprintln(w, "its record is not in the snapshot: start its masters with --record=false")
			}
		})
	}
	return cmd
}

// restoreSnapshot revives the job of a file under this store's prefix.
func restoreSnapshot(ctx context.Context, store *etcdstore.Store, name string, file *snapshotFile) (restoredJob, error) {
	queue, settings, err := file.queue()
	if err != nil {
		return restoredJob{}, fmt.Errorf("%w: %q: %w", errSnapshotFile, file.path, err)
	}
	cluster, err := store.ClusterID(ctx)
	if err != nil {
		return restoredJob{}, err
	}
	var random [24]byte // the job id, and a nonce
	if _, err := rand.Read(random[:]); err != nil {
		return restoredJob{}, fmt.Errorf("choose a job id: %w", err)
	}
	if err := queue.Revive(name, [16]byte(random[:]), cluster); err != nil {
		return restoredJob{}, err
	}
	events := queue.Flush().Record // what else it has to write are keys of sessions, to be deleted; they are not restored
	state := queue.Snapshot(0, binary.LittleEndian.Uint64(random[16:]))
	encoded, err := etcdstore.Encode(state)
	if err != nil {
		return restoredJob{}, err
	}
	err = store.Adopt(ctx, etcdstore.Adoption{
		ID: file.digest, Name: name, Settings: settings, State: encoded, Keys: file.keys(queue.Commit(), events),
	})
	job := restoredJob{
		Job: name, JobID: hex.EncodeToString(state.JobID), Cluster: fmt.Sprintf("%x", cluster), Commit: state.Commit, Epoch: state.Epoch,
		Restores: state.Restores, Again: len(queue.PendingTasks()), Record: file.head.Record,
	}
	return job, err
}

// queue is the job as it was saved, without its tables.
func (s *snapshotFile) queue() (*taskqueue.Queue, map[string]string, error) {
	small := map[string][]byte{}
	for item, err := range s.items() {
		if err != nil {
			return nil, nil, err
		}
		if item.Key == taskqueue.StateKey || item.Key == jobKey || strings.HasPrefix(item.Key, taskqueue.RosterPrefix) {
			small[item.Key] = item.Value
		}
	}
	job, err := etcdstore.ParseJob(small[jobKey])
	if err != nil {
		return nil, nil, err
	}
	var state taskqueue.Snapshot
	if err := etcdstore.Decode(small[taskqueue.StateKey], &state, maxStateDecoded); err != nil {
		return nil, nil, err
	}
	if _, err := state.Upgrade(); err != nil {
		return nil, nil, err
	}
	queue, err := taskqueue.Restore(&state, rosterOf(small), make([]*taskqueue.Table, len(state.Sets)), taskqueue.BackupOptions)
	return queue, job.Settings, err
}

// keys are those that the restored job has besides its settings and its state. Sessions stay behind.
func (s *snapshotFile) keys(commit uint64, events []byte) iter.Seq2[taskqueue.Write, error] {
	return func(yield func(taskqueue.Write, error) bool) {
		for item, err := range s.items() {
			if item.Key == taskqueue.StateKey || item.Key == jobKey || strings.HasPrefix(item.Key, taskqueue.RosterPrefix) {
				continue
			}
			if !yield(item, err) || err != nil {
				return
			}
		}
		if s.head.Record && len(events) > 0 {
			yield(taskqueue.Write{Key: taskqueue.RecordKey(commit), Value: events}, nil)
		}
	}
}
