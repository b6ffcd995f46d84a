package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"trainmaster/dataset/convert"
	"trainmaster/etcdstore"
	"trainmaster/taskqueue"
)

const (
	// runFile has the settings and the data of a run, to resume it.
	runFile        = "run.json"
	checkpointsDir = "checkpoints"
)

type savedRun struct {
	Settings map[string]string `json:"settings"`
	Command  []string          `json:"command,omitempty"` // of the user's own trainers
	Folder   string            `json:"folder,omitempty"`  // working directory of the command; absent in older runs
	Data     convert.Result    `json:"data"`
}

// ErrNoRun is the error of a directory that has no run to resume.
var ErrNoRun = errors.New("no run to resume")

// Settings returns Config.Settings and Config.Command of the run in a directory.
func Settings(dir string) (settings map[string]string, command []string, err error) {
	r, err := readRun(dir)
	return r.Settings, r.Command, err
}

func readRun(dir string) (r savedRun, err error) {
	text, err := os.ReadFile(filepath.Join(dir, runFile))
	if errors.Is(err, fs.ErrNotExist) {
		return r, fmt.Errorf("%w: expected a directory of `master run` with %s, which is written after the data: %w", ErrNoRun, runFile, err)
	} else if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("%w: %s: %w", ErrNoRun, filepath.Join(dir, runFile), err)
	}
	_, noTasks := os.Stat(filepath.Join(dir, "etcd"))
	if _, err := os.Stat(filepath.Join(dir, checkpointsDir, "sets")); err != nil && noTasks != nil {
		return r, fmt.Errorf("%w: expected its etcd or a set of checkpoints: %w", ErrNoRun, errors.Join(noTasks, err))
	}
	return r, nil
}

// NewDir makes the next numbered directory in parent, and parent.
func NewDir(parent string) (string, error) {
	bad := func(err error) error {
		return fmt.Errorf("%q: expected a directory that can be written: %w", parent, err)
	}
	parent, err := filepath.Abs(parent)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", bad(err)
	}
	for n := 1; ; n++ {
		dir := filepath.Join(parent, fmt.Sprintf("%03d", n))
		switch err := os.Mkdir(dir, 0o755); {
		case err == nil:
			return dir, nil
		case !os.IsExist(err):
			return "", bad(err)
		}
	}
}

// begin prepares the data, or reads the data of the run to resume.
func (j *Job) begin(ctx context.Context) error {
	if j.config.Resume {
		r, err := readRun(j.config.Dir)
		j.data, j.folder = r.Data, r.Folder
		return err
	}
	if err := j.prepare(ctx); err != nil {
		return err
	}
	if len(j.config.Command) > 0 {
		var err error
		if j.folder, err = os.Getwd(); err != nil {
			return err
		}
	}
	if j.config.Strategy != nil {
		if err := os.WriteFile(StrategyPath(j.config.Dir), j.config.Strategy, 0o600); err != nil {
			return err
		}
	}
	text, err := json.MarshalIndent(savedRun{j.config.Settings, j.config.Command, j.folder, j.data}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(j.path(runFile), append(text, '\n'), 0o600)
}

// continueJob prepares the etcd of a resumed run for its processes. It reports whether a run with own trainers has already ended: its
// trainers would wait for a master forever.
func (j *Job) continueJob(ctx context.Context) (ended bool, err error) {
	if !j.config.Resume {
		return false, nil
	}
	store, err := etcdstore.Open(ctx, etcdstore.Config{Endpoints: []string{j.endpoint}})
	if err != nil {
		return false, fmt.Errorf("end the leases of the earlier run: %w", err)
	}
	defer store.Close()
	if err := endLeases(ctx, store); err != nil {
		return false, err
	}
	if err := j.countServers(ctx, store); err != nil || len(j.config.Command) == 0 {
		return false, err
	}
	state, err := readState(ctx, store)
	return state.Status == taskqueue.Ended, err
}

// endLeases revokes the leases of the earlier processes of a resumed run, so that the new processes do not wait until the leases
// expire. The etcd of a run serves no other process, and its files are locked while it runs: no holder of a lease can be connected.
func endLeases(ctx context.Context, store *etcdstore.Store) error {
	leases, err := store.Client().Leases(ctx)
	if err != nil {
		return fmt.Errorf("end the leases of the earlier run: %w", err)
	}
	for _, l := range leases.Leases {
		if _, err := store.Client().Revoke(ctx, l.ID); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return fmt.Errorf("end lease %x of the earlier run: %w", l.ID, err)
		}
	}
	return nil
}

// countServers sets the number of parameter servers to the current number of the resumed job, which `master scale` may have changed.
func (j *Job) countServers(ctx context.Context, store *etcdstore.Store) error {
	n, err := store.DesiredNow(ctx)
	if err != nil {
		return fmt.Errorf("read the number of parameter servers: %w", err)
	}
	if n > 0 && n != j.config.Servers { // 0 if etcd was lost: the masters then restore the job
		j.config.Log.WithField("began_with", j.config.Servers).Warnf("the job was scaled to %d parameter servers: starting that number", n)
		j.config.Servers = n
	}
	return nil
}
