package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"trainmaster/dataset/convert"
	"trainmaster/etcdstore"
)

const (
	// runFile, in the directory of a run, has what it takes to go on with the run.
	runFile        = "run.json"
	checkpointsDir = "checkpoints"
)

type savedRun struct {
	Settings map[string]string `json:"settings"`
	Command  []string          `json:"command,omitempty"` // of the user's own trainers
	Folder   string            `json:"folder,omitempty"`  // where the command runs; absent from older runs
	Data     convert.Result    `json:"data"`
}

// ErrNoRun: there is nothing to go on with.
var ErrNoRun = errors.New("no run to go on with")

// Settings are those that the run in a directory began with: Config.Settings and Config.Command.
func Settings(dir string) (settings map[string]string, command []string, err error) {
	r, err := readRun(dir)
	return r.Settings, r.Command, err
}

func readRun(dir string) (r savedRun, err error) {
	text, err := os.ReadFile(filepath.Join(dir, runFile))
	if errors.Is(err, fs.ErrNotExist) {
		return r, fmt.Errorf("%w: expected a directory of `master run` with a %s, which is written when its data is there: %w", ErrNoRun, runFile, err)
	} else if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("%w: %s: %w", ErrNoRun, filepath.Join(dir, runFile), err)
	}
	_, noTasks := os.Stat(filepath.Join(dir, "etcd"))
	if _, err := os.Stat(filepath.Join(dir, checkpointsDir, "sets")); err != nil && noTasks != nil {
		return r, fmt.Errorf("%w: its tasks were in its etcd, and there is no set of checkpoints: %w", ErrNoRun, errors.Join(noTasks, err))
	}
	return r, nil
}

// begin prepares the data, or finds that of the run to go on with.
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
	text, err := json.MarshalIndent(savedRun{j.config.Settings, j.config.Command, j.folder, j.data}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(j.path(runFile), append(text, '\n'), 0o600)
}

// countServers takes as many parameter servers as the job to go on with has come to (see `master scale`).
func (j *Job) countServers(ctx context.Context) error {
	if !j.config.Resume {
		return nil
	}
	store, err := etcdstore.Open(ctx, etcdstore.Config{Endpoints: []string{j.endpoint}})
	if err != nil {
		return fmt.Errorf("look for the number of parameter servers: %w", err)
	}
	defer store.Close()
	n, err := store.DesiredNow(ctx)
	if err != nil {
		return fmt.Errorf("look for the number of parameter servers: %w", err)
	}
	if n > 0 && n != j.config.Servers { // an etcd that was lost says nothing: the masters begin the job anew
		j.config.Log.WithField("began_with", j.config.Servers).Warnf("the job has %d parameter servers by now: starting as many", n)
		j.config.Servers = n
	}
	return nil
}
