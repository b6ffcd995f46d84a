package master_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"trainmaster/dataset"
	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/mastertest"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

// onlineConfig returns the configuration of a master with an online dataset, and a directory for its files. The glob is not looked at
// again before the end of the test.
func onlineConfig(t *testing.T) (config master.Config, dir string) {
	dir = t.TempDir()
	return master.Config{DatasetWatch: time.Hour, Queue: taskqueue.Options{Passes: 1}, Datasets: []master.Dataset{
		{SetSpec: taskqueue.SetSpec{Name: "clicks", Online: true}, Paths: []string{filepath.Join(dir, "watched-*")}, From: "--dataset clicks"},
	}}, dir
}

// appends appends files and expects the result.
func appends(t *testing.T, r *mastertest.Running, want master.Appended, names ...string) {
	t.Helper()
	got, err := r.AppendDataset(t.Context(), "clicks", names)
	if err != nil || got != want {
		t.Fatalf("append of %v: expected %+v, found %+v, %v", names, want, got, err)
	}
}

// move gives a file a name that a glob matches.
func move(t *testing.T, from, to string) string {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
	return to
}

// Appends, also repeated to the next master, add each file once. The close appends what the glob matches. Each task is counted once.
func TestAppendsAcrossMasters(t *testing.T) {
	store := etcdtest.Store(t)
	config, dir := onlineConfig(t)
	names := files(t, dir, 3, 2, 4, 1)
	r := mastertest.Start(t, store, config)
	awaitSets(t, r, 1)
	standby := mastertest.StandBy(t, store, config, nil)
	appends(t, r, master.Appended{Files: 1, Tasks: 3, Total: 3}, names[0])
	mastertest.Eventually(t, "a warm standby", standby.Warm)
	appends(t, r, master.Appended{Files: 1, Known: 1, Tasks: 2, Total: 5}, names[0], names[1])
	a := r.Join("a")
	token := a.Take(t)
	for range 4 {
		token = a.Take(t, token)
	}
	a.Leave(t) // the last task of the five goes back
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	standby.AwaitLeading()
	appends(t, standby, master.Appended{Known: 2, Total: 5}, names[0], names[1])
	appends(t, standby, master.Appended{Files: 1, Known: 2, Tasks: 4, Total: 9}, filepath.Join(dir, "part-00[0-2]"))
	if v, err := standby.Overview(t.Context()); err != nil || v.Sets[0].Tasks != 9 || v.Sets[0].Pass != 1 {
		t.Errorf("found %+v, %v", v, err)
	}
	move(t, names[3], filepath.Join(dir, "watched-0"))
	if tasks, err := standby.CloseDataset(t.Context(), "clicks"); err != nil || tasks != 10 {
		t.Errorf("close: expected 10 tasks, found %d, %v", tasks, err)
	}
	if tasks, err := standby.CloseDataset(t.Context(), "clicks"); err != nil || tasks != 10 {
		t.Errorf("close again: expected 10 tasks, found %d, %v", tasks, err)
	}
	appends(t, standby, master.Appended{Known: 2, Total: 10}, names[0], names[1])
	if err := standby.Join("b").Work(t.Context()); err != nil {
		t.Fatal(err)
	}
	reports := mastertest.Verify(t, store)
	if len(reports) != 1 || reports[0].CountedOnce != 10 || reports[0].Tasks != 10 {
		t.Errorf("found %+v, expected 10 tasks counted once", reports)
	}
}

// New files that a glob matches are appended, also while another one is damaged. Indexed files are never read again.
func TestWatchedGlob(t *testing.T) {
	config, dir := onlineConfig(t)
	config.DatasetWatch = 10 * time.Millisecond
	names := files(t, dir, 3, 2, 4)
	r := mastertest.Start(t, etcdtest.Store(t), config)
	tasks := func(n int) {
		t.Helper()
		mastertest.Eventually(t, "appended tasks", func() bool {
			v, err := r.Overview(t.Context())
			return err == nil && len(v.Sets) == 1 && v.Sets[0].Tasks == n
		})
	}
	tasks(0)
	first := move(t, names[0], filepath.Join(dir, "watched-1"))
	tasks(3)
	for _, damaged := range []string{first, filepath.Join(dir, "watched-2")} {
		if err := os.WriteFile(damaged, []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	move(t, names[1], filepath.Join(dir, "watched-3"))
	tasks(5)
	if _, err := r.CloseDataset(t.Context(), "clicks"); err == nil || !strings.Contains(err.Error(), "append the files of --dataset clicks before the close: ") || !strings.Contains(err.Error(), "watched-2") {
		t.Errorf("close with a damaged file: got %v", err)
	}
	move(t, names[2], filepath.Join(dir, "watched-2"))
	tasks(9)
	if n := count(r.Logged(), "new files not appended, retrying"); n < 1 || n > 3 {
		t.Errorf("logged %d times that files are not appended, expected once for each error", n)
	}
	if n, err := r.CloseDataset(t.Context(), "clicks"); n != 9 || err != nil {
		t.Errorf("close: found %d tasks, %v", n, err)
	}
}

// A request that cannot be used changes nothing.
// A range is the only path of its dataset, also of an append.
func TestRangeIsTheOnlyPathOfAnOnlineDataset(t *testing.T) {
	config, dir := onlineConfig(t)
	names, numbers := files(t, dir, 3), []string{"range://x?records=10&per-task=2"}
	for _, pair := range [][][]string{{names, numbers}, {numbers, names}, {numbers, {"range://y?records=10&per-task=2"}}} {
		r := mastertest.Start(t, etcdtest.Store(t), config)
		awaitSets(t, r, 1)
		if _, err := r.AppendDataset(t.Context(), "clicks", pair[0]); err != nil {
			t.Fatal(err)
		}
		if got, err := r.AppendDataset(t.Context(), "clicks", pair[1]); !errors.Is(err, dataset.ErrBadRange) {
			t.Errorf("%q after %q: expected a refusal, got %+v, %v", pair[1], pair[0], got, err)
		}
		if err := r.Stop(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRefusedAppends(t *testing.T) {
	config, dir := onlineConfig(t)
	names := files(t, dir, 3, 2, 4)
	fixed := files(t, t.TempDir(), 2)
	config.Datasets = append(config.Datasets, master.Dataset{SetSpec: taskqueue.SetSpec{Name: "fixed"}, Paths: fixed, From: "--dataset fixed"})
	store := etcdtest.Store(t)
	r := mastertest.Start(t, store, config)
	awaitSets(t, r, 2)
	if _, err := r.CloseDataset(t.Context(), "clicks"); !errors.Is(err, taskqueue.ErrEmptySet) {
		t.Errorf("close of an empty dataset: got %v", err)
	}
	appends(t, r, master.Appended{Files: 1, Tasks: 3, Total: 3}, names[0])
	content, err := os.ReadFile(names[1])
	if err != nil {
		t.Fatal(err)
	}
	damaged := filepath.Join(dir, "damaged")
	for path, bytes := range map[string][]byte{damaged: content[:len(content)-5], names[0]: content} {
		if err := os.WriteFile(path, bytes, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		set, name string
		want      error
		words     string
	}{
		{"books", names[1], taskqueue.ErrNoSet, `"books"; there are clicks, fixed`},
		{"fixed", names[1], taskqueue.ErrNotOnline, `--dataset 'fixed=PATH,online'`},
		{"clicks", dir + "/none-*", dataset.ErrNoMatch, dir + "/none-*: "},
		{"clicks", dir + "/none", os.ErrNotExist, dir + "/none"},
		{"clicks", damaged, recordio.ErrTruncated, damaged + ": byte "},
		{"clicks", names[0], dataset.ErrReplaced, names[0] + ": "},
		{"clicks", dir + "/*", dataset.ErrReplaced, "write new data to a new file"},
	} {
		if got, err := r.AppendDataset(t.Context(), c.set, []string{c.name}); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.words) || got.Files > 0 {
			t.Errorf("append of %s to %s: expected %v with %s, got %+v, %v", c.name, c.set, c.want, c.words, got, err)
		}
	}
	if _, err := r.AppendDataset(t.Context(), "clicks", nil); !errors.Is(err, dataset.ErrNoNames) {
		t.Errorf("append of nothing: got %v", err)
	}
	if v := awaitSets(t, r, 2); v.Sets[0].Tasks != 3 {
		t.Errorf("after refused requests: expected 3 tasks, found %+v", v.Sets[0])
	}
	state, _, _ := mastertest.State(t, store)
	parts, _, err := store.Prefixed(t.Context(), "/task_queues/tasks/"+state.Sets[0].ReportID)
	if err != nil || len(parts) != 1 || state.Sets[0].Parts != 1 {
		t.Errorf("expected one part, found %d, %v", len(parts), err)
	}
	if _, err := r.CloseDataset(t.Context(), "clicks"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.AppendDataset(t.Context(), "clicks", names[1:2]); !errors.Is(err, taskqueue.ErrSetClosed) {
		t.Errorf("append to a closed dataset: got %v", err)
	}
}

// The next master appends after a crash between the parts of a segment and the commit that names it: the parts are not mixed.
func TestCrashBetweenPartsAndSegment(t *testing.T) {
	store := etcdtest.Store(t)
	config, dir := onlineConfig(t)
	names := files(t, dir, 3, 2, 4)
	r := mastertest.Start(t, store, config)
	awaitSets(t, r, 1)
	appends(t, r, master.Appended{Files: 1, Tasks: 3, Total: 3}, names[0])
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	// The interrupted append: parts after the named parts.
	state, _, _ := mastertest.State(t, store)
	lock, err := store.Campaign(t.Context(), etcdstore.CampaignConfig{Address: "127.0.0.1:1", TTL: mastertest.LeaseTTL})
	if err != nil {
		t.Fatal(err)
	}
	_, revision, err := store.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var writes []taskqueue.Write
	for i := range 2 {
		writes = append(writes, taskqueue.Write{Key: etcdstore.PartKey(state.Sets[0].ReportID, 1+i), Value: []byte("of an interrupted append")})
	}
	if err := lock.PutParts(t.Context(), revision, writes, nil); err != nil {
		t.Fatal(err)
	}
	if err := lock.Resign(context.Background()); err != nil {
		t.Fatal(err)
	}
	r = mastertest.Start(t, store, config)
	if v := awaitSets(t, r, 1); v.Sets[0].Tasks != 3 {
		t.Errorf("after the crash: expected 3 tasks, found %+v", v.Sets[0])
	}
	appends(t, r, master.Appended{Files: 1, Tasks: 2, Total: 5}, names[1])
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	r = mastertest.Start(t, store, config)
	appends(t, r, master.Appended{Files: 1, Known: 2, Tasks: 4, Total: 9}, names...)
	if _, err := r.CloseDataset(t.Context(), "clicks"); err != nil {
		t.Fatal(err)
	}
	if err := r.Join("a").Work(t.Context()); err != nil {
		t.Fatal(err)
	}
	if reports := mastertest.Verify(t, store); len(reports) != 1 || reports[0].CountedOnce != 9 || reports[0].Tasks != 9 {
		t.Errorf("found %+v, expected 9 tasks counted once", reports)
	}
}

// A master with a dataset of the same name that is not online is refused, and a deterministic job has no online dataset.
func TestOnlineIsASettingOfTheJob(t *testing.T) {
	store := etcdtest.Store(t)
	config, _ := onlineConfig(t)
	r := mastertest.Start(t, store, config)
	awaitSets(t, r, 1)
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	other := config
	other.Datasets = []master.Dataset{config.Datasets[0]}
	other.Datasets[0].Online = false
	if err := endsWith(t, store, other); !errors.Is(err, master.ErrOtherJob) || !strings.Contains(err.Error(), `datasets was "clicks weight 1 online" at the beginning and is "clicks weight 1" here`) {
		t.Errorf("got %v", err)
	}
	config.Sync, config.Deterministic, config.Queue.ExplicitCommit, config.Queue.Cuts = true, true, true, true
	if err := config.Validate(); err == nil || !strings.HasPrefix(err.Error(), "deterministic: expected no online dataset, found clicks") {
		t.Errorf("got %v", err)
	}
}
