package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
	"trainmaster/etcdstore"
	"trainmaster/ledger"
	"trainmaster/master"
	"trainmaster/master/committer"
	"trainmaster/master/snapshot"
	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/checkpoint/storage"
	"trainmaster/taskqueue"
)

const (
	jobKey       = "/job"
	psDesiredKey = "/ps_desired"
)

// snapshotInfo is what the snapshot commands say of a file.
type snapshotInfo struct {
	File   string `json:"file"`
	Bytes  int64  `json:"bytes"`
	Digest string `json:"sha256"` // of all but the last 32 bytes, which are it
	snapshot.Head
}

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
		Short: "Save a job to a file, while it runs or not",
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
	dir := cmd.Flags().String("ledger-dir", "", "`directory` of the sealed ledger, that of --ledger-dir of the masters (default: the directory that etcd names)")
	checkpoints := cmd.Flags().String("checkpoint-dir", "", "`directory`, or s3://bucket/prefix, of the checkpoints of the job's parameter servers (default: the parameters are not saved)")
	force := cmd.Flags().Bool("force", false, "replace a file that exists")
	format := cli.AddOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if err := cli.CheckNew(args[0], *force); err != nil {
			return cli.UsageErrorf("snapshot %q: %w", args[0], err)
		}
		store, closeStore, err := from.Open(cmd.Context())
		if err != nil {
			return err
		}
		defer closeStore()
		b := &backup{store: store, from: from, withLedger: *withLedger, ledgerDir: *dir}
		if err := b.read(cmd.Context()); err != nil {
			return err
		}
		content := snapshot.Content{Head: b.head, Items: b.items(cmd.Context())}
		if *checkpoints != "" {
			place, err := storage.Open(*checkpoints)
			if err != nil {
				return cli.UsageErrorf("--checkpoint-dir: %w", err)
			}
			defer place.Close()
			members, err := b.addModel(cmd.Context(), checkpoint.Store{Place: place})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, members.Close()) }()
			content = snapshot.Content{Head: b.head, Items: b.items(cmd.Context()), Files: filesOf(members, newTransfer(cmd.ErrOrStderr(), "parameters saved", members.Bytes()))}
		}
		if err := snapshot.Write(args[0], content); err != nil {
			return err
		}
		return showSnapshot(cmd, *format, args[0])
	}
	return cmd
}

// backup collects the state of a job for a file.
type backup struct {
	store      *etcdstore.Store
	from       admin.Location
	withLedger bool
	ledgerDir  string

	values map[string][]byte // all keys at one revision, except parts and ledger
	state  taskqueue.Snapshot
	head   snapshot.Head
	ledger *ledger.Reader
	set    []byte // the latest; nil: none
}

// read reads what may change, in one transaction. The parts that the state names never do, and the ledger only grows.
func (b *backup) read(ctx context.Context) error {
	var err error
	var revision int64
	if b.values, revision, err = b.store.ReadAll(ctx, jobKey, taskqueue.StateKey, taskqueue.AsidePrefix, taskqueue.RosterPrefix, psDesiredKey, taskqueue.SecretKey, taskqueue.StepKey, master.LatestSetKey); err != nil {
		return err
	}
	if b.values[taskqueue.StateKey] == nil {
		return b.from.NoSuchJob(ctx, b.store)
	}
	b.set = b.values[master.LatestSetKey]
	delete(b.values, master.LatestSetKey) // it is of use with its files only
	// What could not be restored is not saved.
	if _, err := etcdstore.ParseJob(b.values[jobKey]); err != nil {
		return err
	}
	queue, err := committer.Stored(ctx, b.store, b.values[taskqueue.StateKey], admin.RosterOf(b.values))
	if err != nil {
		return err
	}
	if err := etcdstore.Decode(b.values[taskqueue.StateKey], &b.state, admin.MaxStateDecoded); err != nil {
		return err
	}
	if b.withLedger {
		if b.ledger, err = ledger.Open(ctx, b.store, b.from.Etcd.Job, b.ledgerDir); err != nil {
			return err
		}
		if gone := b.ledger.Outline().Commit; gone > 0 {
			return cli.UsageErrorf("the ledger up to commit %d is not kept any more (--ledger-keep of the master): save the job with --ledger=false", gone)
		}
	}
	s := &b.state
	if b.ledger != nil && len(s.Sets) > 0 { // with a dataset there are events, unless the master wrote no ledger
		found := false
		for _, err := range b.ledger.Entries(ctx, s.Commit) {
			if err != nil {
				return err
			}
			found = true
			break
		}
		if !found {
			b.ledger = nil
		}
	}
	b.head = snapshot.Head{
		Job: s.Job, JobID: hex.EncodeToString(s.JobID), Cluster: fmt.Sprintf("%x", s.Cluster), Revision: revision, Format: s.Format,
		Commit: s.Commit, Epoch: s.Epoch, Status: s.Status.String(), Restores: s.Restores, Ledger: b.ledger != nil,
		TakenAt: time.Now().UTC().Format(time.RFC3339), TakenBy: readVersion().Version, Datasets: snapshot.DatasetsOf(queue),
	}
	return nil
}

// items yields what goes into the file: small things first, then the parts, then the ledger.
func (b *backup) items(ctx context.Context) iter.Seq2[taskqueue.Write, error] {
	return func(yield func(taskqueue.Write, error) bool) {
		for _, key := range slices.Sorted(maps.Keys(b.values)) {
			if !yield(taskqueue.Write{Key: key, Value: b.values[key]}, nil) {
				return
			}
		}
		for _, set := range b.state.Sets {
			if b.values[snapshot.DatasetKey(0)] != nil {
				break // the restore builds the tables from the files
			}
			parts, _, err := b.store.Parts(ctx, set.ReportID, set.Parts)
			if err != nil {
				yield(taskqueue.Write{}, err)
				return
			}
			for i, part := range parts {
				if !yield(taskqueue.Write{Key: etcdstore.PartKey(set.ReportID, i), Value: part}, nil) {
					return
				}
			}
		}
		if b.ledger == nil {
			return
		}
		for e, err := range b.ledger.Entries(ctx, b.state.Commit) {
			if !yield(taskqueue.Write{Key: taskqueue.LedgerKey(e.Commit), Value: e.Events}, err) || err != nil {
				return
			}
		}
	}
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
		if wrong := cli.CheckFile(path); wrong != nil {
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
	info := snapshotInfo{path, s.Size, s.Digest, s.Head}
	return cli.Render(cmd.OutOrStdout(), format, info, func(w io.Writer) {
		fmt.Fprintf(w, "%s: job %s, %s, commit %s, at %s\n", cli.OneLineName(path), info.Job, info.Status, cli.Thousands(info.Commit), info.TakenAt)
		if len(info.Datasets) > 0 {
			fmt.Fprintln(w, "\nDATASET\tPASS\tDONE\tPENDING\tRETRY\tSET ASIDE\tTASKS")
		}
		for _, d := range info.Datasets {
			fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d\t%d\t%d\n", d.Dataset, d.Pass, d.Done, d.Pending, d.Retry, d.SetAside, d.Tasks)
		}
		what := "with its ledger"
		if !info.Ledger {
			what = "without its ledger: master verify can prove nothing of it"
		}
		model := "without its parameters"
		if info.Model {
			model = fmt.Sprintf("with its parameters, of set %d", info.Set)
		}
		fmt.Fprintf(w, "\n%s bytes, whole, %s; %s\n", cli.Thousands(uint64(info.Bytes)), what, model)
	})
}
