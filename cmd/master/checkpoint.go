package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
	"trainmaster/etcdstore"
	"trainmaster/ledger"
	"trainmaster/master"
	"trainmaster/master/snapshot"
	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/checkpoint/storage"
	"trainmaster/taskqueue"
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
	dir = cmd.Flags().String("checkpoint-dir", "", "`directory`, or s3://bucket/prefix, of the checkpoints of the job's parameter servers (required)")
	return dir, func() (checkpoint.Store, error) {
		if err := wantCheckpointDir(*dir); err != nil {
			return checkpoint.Store{}, err
		}
		place, err := storage.Open(*dir)
		if err != nil {
			return checkpoint.Store{}, cli.UsageErrorf("--checkpoint-dir: %w", err)
		}
		return checkpoint.Store{Place: place}, nil
	}
}

func wantCheckpointDir(dir string) error {
	if dir == "" {
		return cli.UsageErrorf("--checkpoint-dir: expected the directory of the job's parameter servers, found nothing")
	}
	return nil
}

// listedSet is what `master checkpoint list` shows of a set.
type listedSet struct {
	Set      uint64 `json:"set"`
	Named    bool   `json:"named"` // by etcd
	Mode     string `json:"mode"`
	Version  uint64 `json:"version"`
	Shards   int    `json:"shards"`
	Bytes    int64  `json:"bytes"`
	Complete bool   `json:"complete"`
	Problem  string `json:"problem"`
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
		list, err := listSets(cmd.Context(), store, *dir)
		if err != nil {
			return err
		}
		return cli.Render(cmd.OutOrStdout(), *format, list, func(w io.Writer) {
			fmt.Fprintln(w, "SET\tNAMED\tMODE\tVERSION\tSHARDS\tBYTES\tSTATE")
			for _, s := range list {
				named, state := "", "complete"
				if s.Named {
					named = "*"
				}
				if !s.Complete {
					state = "DAMAGED: " + s.Problem
				}
				fmt.Fprintf(w, "%d\t%s\t%s\t%d\t%d\t%s\t%s\n", s.Set, named, s.Mode, s.Version, s.Shards, cli.Thousands(uint64(s.Bytes)), state)
			}
		})
	}
	return cmd
}

// listSets lists the sets of a directory, the newest first. It includes the set that etcd names, also if its file is missing.
func listSets(ctx context.Context, store *etcdstore.Store, dir string) ([]listedSet, error) {
	pointer, err := store.ReadPointer(ctx)
	if err != nil {
		return nil, err
	}
	named := uint64(0)
	if set, err := checkpoint.ParseSet(pointer.Set); err == nil {
		named = set.Number
	}
	reports, err := inspectSets(ctx, dir)
	if err != nil && !errors.Is(err, checkpoint.ErrNoSet) {
		return nil, err
	}
	list, found := []listedSet{}, false
	for _, r := range reports {
		if r.Set == 0 {
			continue // of the last stop: servers load it without a command
		}
		s := listedSet{Set: r.Set, Named: r.Set == named, Mode: r.Mode, Version: r.Version, Shards: len(r.Shards), Complete: r.Complete, Problem: r.Problem}
		for _, part := range r.Shards {
			s.Bytes += part.Bytes
		}
		found = found || s.Named
		list = append(list, s)
	}
	if named != 0 && !found {
		list = append(list, listedSet{Set: named, Named: true, Problem: fmt.Sprintf("%s/%08d.json: expected the file of the set, found none", checkpoint.SetsDir, named)})
	}
	return list, nil
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
		return useSet(cmd, from, store, folder, number)
	}
	return cmd
}

func useSet(cmd *cobra.Command, from admin.Location, store *etcdstore.Store, folder checkpoint.Store, number uint64) error {
	ctx := cmd.Context()
	pointer, err := store.ReadPointer(ctx)
	if err != nil {
		return err
	}
	values, _, err := store.ReadAll(ctx, jobKey, taskqueue.StateKey)
	if err != nil {
		return err
	}
	if values[jobKey] == nil {
		return from.NoSuchJob(ctx, store)
	}
	job, err := etcdstore.ParseJob(values[jobKey])
	if err != nil {
		return err
	}
	set, text, err := wholeSet(ctx, folder, number)
	if err != nil {
		return err
	}
	if set.Job != "" && set.Job != job.Name {
		return cli.UsageErrorf("set %d: expected job %q, found job %q", number, job.Name, set.Job)
	}
	jobID := ""
	if values[taskqueue.StateKey] != nil { // an interrupted cut leaves no state
		var state struct{ JobID []byte }
		if err := etcdstore.Decode(values[taskqueue.StateKey], &state, admin.MaxStateDecoded); err != nil {
			return err
		}
		jobID = hex.EncodeToString(state.JobID)
	}
	var position master.Position
	if set.Position != nil {
		if err := json.Unmarshal(set.Position, &position); err != nil {
			return fmt.Errorf("set %d: position: %w", number, err)
		}
	}
	if position.Step != 0 {
		err = useCut(ctx, from, store, folder, &revival{set: set, text: text}, pointer, jobID)
	} else if err = noNewerStop(ctx, folder, set, jobID); err == nil {
		err = store.MovePointer(ctx, pointer, text)
	}
	if errors.Is(err, etcdstore.ErrJobRuns) {
		return fmt.Errorf("set %d: expected no running master or parameter server, since the tasks go back with the parameters (--update-mode sync): stop all of them, and give the command again", number)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "set %d is named: parameter servers load it\n", number)
	return nil
}

// noNewerStop returns an error if servers would not load the set: when they were stopped, all of them saved newer checkpoints of the
// same job id.
func noNewerStop(ctx context.Context, folder checkpoint.Store, set *checkpoint.Set, jobID string) error {
	stopped, err := folder.Stopped(ctx)
	if err != nil || stopped == nil || stopped.JobID != jobID || stopped.Shards[0].Compare(set.Shards[0].Generation) <= 0 {
		return err
	}
	return fmt.Errorf("set %d: expected no newer checkpoints of a stop in %q, found %s/%v, which servers load instead: move it out of the directory", set.Number, folder.Place, folder.Shard(0), stopped.Shards[0].Generation)
}

// wholeSet reads a set, all of whose files are as its manifests say.
func wholeSet(ctx context.Context, folder checkpoint.Store, number uint64) (*checkpoint.Set, []byte, error) {
	set, err := folder.ReadSet(ctx, number)
	if err != nil {
		return nil, nil, err
	}
	text, err := folder.ReadText(ctx, number)
	if err != nil {
		return nil, nil, err
	}
	if parsed, err := checkpoint.ParseSet(text); err != nil || parsed.Number != number {
		return nil, nil, fmt.Errorf("set %d: its file has changed while it was read", number)
	}
	if _, err := folder.Open(ctx, set); err != nil {
		return nil, nil, fmt.Errorf("set %d: expected a complete set: %w", number, err)
	}
	return set, text, nil
}

// useCut replaces the job with its state at the cut of a set.
func useCut(ctx context.Context, from admin.Location, store *etcdstore.Store, folder checkpoint.Store, r *revival, pointer etcdstore.Pointer, jobID string) error {
	state, err := folder.ReadState(ctx, r.set)
	if err != nil {
		return err
	}
	if r.file, err = snapshot.Parse(fmt.Sprintf("%s/%s/%s", folder.Place, checkpoint.SetsDir, r.set.State.Name), state); err != nil {
		return err
	}
	keys, err := store.Keys(ctx, taskqueue.LedgerPrefix)
	if err != nil {
		return err
	}
	r.ledger, r.replaces = len(keys) > 0, &pointer
	if r.replaced, err = replacedBefore(ctx, store); err != nil {
		return err
	}
	if jobID != "" && !slices.Contains(r.replaced, jobID) {
		r.replaced = append(r.replaced, jobID)
	}
	if bytes.Equal(r.text, pointer.Set) {
		return store.MovePointer(ctx, pointer, r.text) // the tasks are at its cut
	}
	_, err = r.adopt(ctx, store, from.Etcd.Job)
	return err
}

// replacedBefore returns the ids of the jobs that this one has replaced. No master may have moved their ledgers yet.
func replacedBefore(ctx context.Context, store *etcdstore.Store) ([]string, error) {
	value, _, err := store.Value(ctx, ledger.BeginKey)
	if err != nil || value == nil {
		return nil, err
	}
	var begin ledger.Begin
	if err := json.Unmarshal(value, &begin); err != nil {
		return nil, fmt.Errorf("%s: expected JSON, found %.80q: %w", ledger.BeginKey, value, err)
	}
	return begin.Replaced, nil
}
