package master_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/committer"
	"trainmaster/master/mastertest"
	"trainmaster/taskqueue"
)

// older replaces the stored state with the state of an older master.
func older(t *testing.T, store *etcdstore.Store) {
	t.Helper()
	replaceState(t, store, func(s *taskqueue.Snapshot) { s.Format = 1 })
}

// F19: the state of an older master is read, and stored in the newest format in one fenced transaction before any
// other write. The job continues.
func TestStateOfAnOlderMaster(t *testing.T) {
	store := etcdtest.Store(t)
	r := mastertest.Start(t, store, master.Config{})
	r.Register(7)
	a := r.Join("a")
	task := a.Take(t)
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	older(t, store)
	before, encoded, revision := mastertest.State(t, store)

	// A read of the state decodes it and changes nothing.
	roster, err := store.Roster(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	queue, err := committer.Stored(t.Context(), store, encoded, roster)
	if err != nil || queue.Overview().Sets[0].Pending != 1 {
		t.Fatalf("read: got %v", err)
	}
	if _, _, now := mastertest.State(t, store); now != revision {
		t.Error("read: expected an unchanged state")
	}

	r = mastertest.Start(t, store, master.Config{})
	upgrade, _, err := store.Prefixed(t.Context(), "/ledger/")
	if err != nil {
		t.Fatal(err)
	}
	after, _, _ := mastertest.State(t, store)
	if after.Format != taskqueue.Format || after.Commit != before.Commit+1 || upgrade[taskqueue.LedgerKey(after.Commit)] != nil {
		t.Errorf("stored state: found format %d, commit %d; expected %d, %d, and no ledger event", after.Format, after.Commit, taskqueue.Format, before.Commit+1)
	}
	before.Format, before.Commit, before.Nonce, before.LockRevision = after.Format, after.Commit, after.Nonce, after.LockRevision
	if !reflect.DeepEqual(after, before) {
		t.Errorf("state:\n found    %+v\n expected %+v", after, before)
	}
	upgraded := 0
	for _, line := range r.Log.AllEntries() {
		if line.Message == "the state was upgraded" && line.Data["from"] == 1 && line.Data["to"] == taskqueue.Format {
			upgraded++
		}
	}
	if upgraded != 1 {
		t.Errorf("log: found %q, expected one line of the upgrade", r.Logged())
	}
	if tasks, err := r.PendingTasks(t.Context()); err != nil || len(tasks) != 1 || tasks[0].Token != task {
		t.Errorf("pending: %+v, %v", tasks, err)
	}
	a.At(r).Take(t, task)
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	r = mastertest.Start(t, store, master.Config{}) // needs no upgrade
	if slices.Contains(r.Logged(), "the state was upgraded") {
		t.Error("expected no second upgrade")
	}
}

// F18: an old state that cannot be upgraded is unchanged.
func TestOldStateThatIsRefused(t *testing.T) {
	store := etcdtest.Store(t)
	r := mastertest.Start(t, store, master.Config{})
	r.Register(7)
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	replaceState(t, store, func(s *taskqueue.Snapshot) { s.Format, s.Restores = 1, 1 })
	if err := refusesState(t, store, master.Config{}); !errors.Is(err, taskqueue.ErrDamaged) || !strings.Contains(err.Error(), "upgrade the state from format 1") {
		t.Errorf("found %v", err)
	}
}

// No master begins a job while it is being restored from a backup. The master waits and leads the restored job.
func TestNoJobBeginsOverARestore(t *testing.T) {
	store := etcdtest.Store(t)
	overwrite(t, store, taskqueue.RestoringKey, []byte("a file"))
	r := mastertest.StandBy(t, store, master.Config{}, nil)
	mastertest.Eventually(t, "the reason to wait in the log", func() bool {
		for _, line := range r.Log.AllEntries() {
			if err, ok := line.Data["error"].(error); ok && strings.Contains(err.Error(), "is being restored from a backup") {
				return true
			}
		}
		return false
	})
	if state, _, err := store.State(t.Context()); err != nil || state != nil || r.Leading() || r.Ended() {
		t.Fatalf("found a state of %d bytes, leading %v, ended %v, %v", len(state), r.Leading(), r.Ended(), err)
	}
	if _, err := store.Client().Delete(t.Context(), store.Prefix()+taskqueue.RestoringKey); err != nil {
		t.Fatal(err)
	}
	r.AwaitLeading()
}
