package master_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/mastertest"
	"trainmaster/taskqueue"
)

// twoDatasets returns the configuration of a master that registers two datasets.
func twoDatasets(t *testing.T) (config master.Config, a, b []string) {
	t.Helper()
	dirs := []string{t.TempDir(), t.TempDir()}
	a, b = files(t, dirs[0], 30), files(t, dirs[1], 10)
	return master.Config{ChunksPerTask: 1, Datasets: []master.Dataset{
		{SetSpec: taskqueue.SetSpec{Name: "a", Weight: 3}, Paths: []string{filepath.Join(dirs[0], "part-*")}, From: "--dataset a"},
		{SetSpec: taskqueue.SetSpec{Name: "b", Weight: 1, Passes: 2}, Paths: b, From: "--dataset b"},
	}}, a, b
}

// awaitSets waits until the given number of datasets is registered.
func awaitSets(t *testing.T, r *mastertest.Running, n int) (v taskqueue.Overview) {
	t.Helper()
	mastertest.Eventually(t, "the datasets are registered", func() bool {
		var err error
		v, err = r.Overview(t.Context())
		return err == nil && len(v.Sets) == n
	})
	return v
}

// endsWith runs a master until it ends, and returns its error.
func endsWith(t *testing.T, store *etcdstore.Store, config master.Config) error {
	t.Helper()
	r := mastertest.StandBy(t, store, config, nil)
	mastertest.Eventually(t, "the end of the master", r.Ended)
	return r.Stop()
}

// A master registers the datasets of its configuration, in their order, and once. Reports of trainers are refused.
func TestMasterRegistersItsDatasets(t *testing.T) {
	store := etcdtest.Store(t)
	config, a, _ := twoDatasets(t)
	if sets := config.Committer().Queue.Sets; !slices.Equal(sets, []string{"a", "b"}) {
		t.Errorf("the job waits for the datasets %q, expected both", sets)
	}
	r := mastertest.Start(t, store, config)
	v := awaitSets(t, r, 2)
	if s := v.Sets[0]; s.Name != "a" || s.Weight != 3 || s.Tasks != 30 || s.Passes != 0 && s.Passes != 1 {
		t.Errorf("dataset 0: found %+v", s)
	}
	if s := v.Sets[1]; s.Name != "b" || s.Weight != 1 || s.Tasks != 10 || s.Passes != 2 {
		t.Errorf("dataset 1: found %+v", s)
	}
	if err := r.ReportDataset(t.Context(), a); !errors.Is(err, taskqueue.ErrOtherDataset) || !strings.Contains(err.Error(), "(a, b): start trainers without --data") {
		t.Errorf("report of a trainer: got %v", err)
	}
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	r = mastertest.Start(t, store, config)
	awaitSets(t, r, 2)
	if n := count(r.Logged(), "indexing the dataset"); n != 0 {
		t.Errorf("the next master read the files %d times, expected never", n)
	}
}

// A master with other files, names or weights than the job is refused. Its files may be missing.
func TestMasterWithOtherDatasetsIsRefused(t *testing.T) {
	store := etcdtest.Store(t)
	config, a, b := twoDatasets(t)
	r := mastertest.Start(t, store, config)
	awaitSets(t, r, 2)
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	for want, other := range map[string]func(d []master.Dataset) []master.Dataset{
		`datasets was "a weight 3, b weight 1 passes 2" at the beginning and is "a weight 1, b`:     func(d []master.Dataset) []master.Dataset { d[0].Weight = 1; return d },
		`datasets was "a weight 3, b weight 1 passes 2" at the beginning and is "a weight 3" here`:  func(d []master.Dataset) []master.Dataset { return d[:1] },
		`datasets was "a weight 3, b weight 1 passes 2" at the beginning and is "of trainers" here`: func([]master.Dataset) []master.Dataset { return nil },
		"--dataset b: another dataset was reported first":                                           func(d []master.Dataset) []master.Dataset { d[1].Paths = a; return d },
	} {
		c := config
		c.Datasets = other(append([]master.Dataset{}, config.Datasets...))
		if err := endsWith(t, store, c); !errors.Is(err, master.ErrOtherJob) || !strings.Contains(err.Error(), want) {
			t.Errorf("expected an error with %s, got %v", want, err)
		}
	}
	if err := os.Remove(b[0]); err != nil {
		t.Fatal(err)
	}
	r = mastertest.Start(t, store, config)
	awaitSets(t, r, 2)
	mastertest.Eventually(t, "the master has tried to read the files", func() bool {
		return r.Ended() || slices.Contains(r.Logged(), "dataset not registered, retrying")
	})
	if err := r.Stop(); err != nil {
		t.Errorf("without the files of a registered dataset the master ended: %v", err)
	}
}

// The files of a new dataset cannot be read: the master ends with their names.
func TestUnreadableDatasetOfTheMaster(t *testing.T) {
	config, _, b := twoDatasets(t)
	content, err := os.ReadFile(b[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b[0], content[:len(content)-5], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := endsWith(t, etcdtest.Store(t), config); !errors.Is(err, master.ErrBadDataset) || !strings.Contains(err.Error(), "--dataset b: "+b[0]+": byte ") {
		t.Errorf("got %v", err)
	}
}

func TestDeterministicJobHasOneDataset(t *testing.T) {
	c, _, _ := twoDatasets(t)
	c.Sync, c.Deterministic, c.Queue.ExplicitCommit, c.Queue.Cuts = true, true, true, true
	if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), "deterministic: expected one dataset, found 2") {
		t.Errorf("got %v", err)
	}
	c.Datasets = c.Datasets[:1]
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}
