package main

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/cmd/internal/cli"
	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/ledger"
	"trainmaster/master"
	"trainmaster/master/committer"
	"trainmaster/master/mastertest"
	"trainmaster/taskqueue"
)

// train runs a job to its end: one task is set aside, two are finished in commits of their own.
func (l *led) train(tasks int) {
	l.t.Helper()
	l.report(tasks)
	s := l.join("a")
	poison := s.take()
	for range 2 {
		task, err := s.send(true, fail(poison, "torn"))
		if err != nil {
			l.t.Fatal(err)
		}
		if task.Index == poison.Index {
			poison = task
		}
	}
	for range 2 {
		if _, err := s.send(false, finish(s.held[0])); err != nil {
			l.t.Fatal(err)
		}
		s.take()
	}
	for {
		_, err := s.send(true, finish(s.held[0]))
		if errors.Is(err, master.ErrJobFinished) {
			return
		}
		if err != nil || len(s.held) == 0 {
			l.t.Fatalf("holds %v, %v", s.held, err)
		}
	}
}

func TestVerify(t *testing.T) {
	l := lead(t, master.Config{Shuffle: true, Queue: taskqueue.Options{Passes: 2, MaxFailures: 1}})
	l.train(30)
	args := append([]string{"verify", "-o", "json"}, l.etcd...)
	want := []taskqueue.PassReport{
		{Pass: 1, Tasks: 30, CountedOnce: 29, SetAside: 1, Redelivered: 1},
		{Pass: 2, Tasks: 30, CountedOnce: 29, SetAside: 1},
	}
	r := runArgs(t, args...)
	r.wants(t, cli.ExitOK)
	if found := decode[[]taskqueue.PassReport](t, r.stdout); !slices.Equal(found, want) {
		t.Errorf("found %+v, want %+v", found, want)
	}
	if n := strings.Count(r.stdout, `"set": 0,`); n != len(want) {
		t.Errorf("the dataset is named %d times, want once for each pass:\n%s", n, r.stdout)
	}
	table := runArgs(t, append([]string{"verify"}, l.etcd...)...)
	table.wants(t, cli.ExitOK)
	if !strings.Contains(table.stdout, "COUNTED TWICE") || !strings.Contains(table.stdout, "Nothing is missing") {
		t.Errorf("table:\n%s", table.stdout)
	}
	l.stop()
	runArgs(t, args...).wants(t, cli.ExitOK)

	finishes := l.finishes()
	if len(finishes) != 2 {
		t.Fatalf("%d commits of one finish in pass 1, want 2", len(finishes))
	}
	keys := slices.Sorted(maps.Keys(finishes))
	for name, tt := range map[string]struct {
		value []byte // of the second of the two; nil: deleted
		code  int
		words []string
	}{
		"a finish is gone":          {nil, cli.ExitFailed, []string{"pass 1: missing tasks: 1, counted twice: 0"}},
		"a finish for another task": {finishes[keys[0]], cli.ExitFailed, []string{"pass 1: missing tasks: 1, counted twice: 1"}},
		"damaged":                   {[]byte{1, 0xff}, cli.ExitFailed, []string{"damaged ledger", "commit "}},
	} {
		t.Run(name, func(t *testing.T) {
			defer put(t, l.store, keys[1], finishes[keys[1]])
			if put(t, l.store, keys[1], tt.value); tt.value == nil {
				if _, err := l.store.Client().Delete(t.Context(), l.store.Prefix()+keys[1]); err != nil {
					t.Fatal(err)
				}
			}
			runArgs(t, args...).wants(t, tt.code, tt.words...)
		})
	}
	runArgs(t, args...).wants(t, cli.ExitOK) // all is put back
}

func put(t *testing.T, store *etcdstore.Store, key string, value []byte) {
	t.Helper()
	if _, err := store.Client().Put(t.Context(), store.Prefix()+key, string(value)); err != nil {
		t.Fatal(err)
	}
}

// finishes finds what the ledger has of commits with one event, a finish in the first pass.
func (l *led) finishes() map[string][]byte {
	l.t.Helper()
	found, _, err := l.store.Prefixed(l.t.Context(), taskqueue.LedgerPrefix)
	if err != nil {
		l.t.Fatal(err)
	}
	maps.DeleteFunc(found, func(_ string, value []byte) bool {
		var events []taskqueue.LedgerEvent
		for ev, err := range taskqueue.LedgerEvents(value) {
			if err != nil {
				l.t.Fatal(err)
			}
			if ev.Kind != taskqueue.EventStamped {
				events = append(events, ev)
			}
		}
		return len(events) != 1 || events[0].Kind != taskqueue.EventFinished || events[0].Pass != 1
	})
	return found
}

func TestVerifyWhileTheJobRuns(t *testing.T) {
	l := lead(t, master.Config{Shuffle: true})
	l.report(2000)
	s := l.join("a")
	done, finished := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(finished)
		task, err := s.send(true)
		for err == nil {
			select {
			case <-done:
				return
			default:
				task, err = s.send(true, finish(task))
			}
		}
		t.Errorf("training: %v", err)
	}()
	for counted := 0; counted < 500; {
		r := runArgs(t, append([]string{"verify", "-o", "json"}, l.etcd...)...)
		r.wants(t, cli.ExitOK)
		if t.Failed() {
			break
		}
		counted = decode[[]taskqueue.PassReport](t, r.stdout)[0].CountedOnce
	}
	close(done)
	<-finished
}

func TestVerifyWithoutLedger(t *testing.T) {
	l := lead(t, master.Config{NoLedger: true})
	l.report(3)
	l.join("a").take()
	runArgs(t, append([]string{"verify"}, l.etcd...)...).wants(t, cli.ExitUsage, "no ledger of job", "--ledger=false")
	runArgs(t, "verify", "--endpoints", etcdtest.Endpoint(t), "--job", "unknown").wants(t, cli.ExitUsage, `no job "unknown"`, "name one of these with --job: ")
	runArgs(t, "verify", "--endpoints", closedPort(t), "--dial-timeout", "300ms").wants(t, cli.ExitStore, "etcd is unreachable")
}

func TestVerifyOfAnEmbeddedEtcd(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	etcd, err := etcdstore.StartEmbedded(t.Context(), etcdstore.EmbeddedConfig{Dir: dir, UnsafeNoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	runArgs(t, "verify", "--data-dir", dir).wants(t, cli.ExitUsage, "no job has run in the etcd at http://127.0.0.1:") // of the process that uses it
	etcd.Close()
	runArgs(t, "verify", "--data-dir", dir).wants(t, cli.ExitUsage, "no job has run in the embedded etcd in "+dir+" yet", "master --data-dir "+dir)
}

// F261: the process that uses the directory cannot be reached, as a master in another pod.
func TestVerifyOfADirectoryInUseElsewhere(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	etcd, err := etcdstore.StartEmbedded(t.Context(), etcdstore.EmbeddedConfig{Dir: dir, UnsafeNoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	etcd.Close()
	lock, err := os.OpenFile(filepath.Join(dir, "LOCK"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	runArgs(t, "verify", "--data-dir", dir, "--dial-timeout", "300ms").wants(t, cli.ExitStore,
		"in use by another process, whose etcd does not answer at http://127.0.0.1:", "it may be a master in another pod", "wait for its end", "etcd is unreachable")
}

// Sealed and unsealed entries are verified alike. The error names a damaged or missing file. Passes whose entries were deleted have
// no figures.
func TestVerifySealed(t *testing.T) {
	dir := t.TempDir()
	l := leadSealing(t, etcdtest.Store(t), master.Config{Shuffle: true, Queue: taskqueue.Options{Passes: 5, MaxFailures: 1}}, &ledger.Config{Dir: dir, Every: 16, Keep: ledger.Keep{All: true}})
	sealedFiles := func(enough func(n int) bool) []string {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) { // interval between checks
			files, err := filepath.Glob(filepath.Join(dir, l.job, "*.sealed"))
			if err == nil && enough(len(files)) {
				return files
			}
			if time.Now().After(deadline) {
				t.Fatalf("sealed files: %q, %v", files, err)
			}
		}
	}
	l.train(30)
	mastertest.Eventually(t, "8 sealed files", func() bool { return l.sealer.Status().Sealed >= 8*16 })
	l.stop()
	files := sealedFiles(func(n int) bool { return n >= 8 })
	args := append([]string{"verify", "-o", "json"}, l.etcd...)
	r := runArgs(t, args...)
	r.wants(t, cli.ExitOK)
	reports := decode[[]taskqueue.PassReport](t, r.stdout)
	if len(reports) != 5 {
		t.Fatalf("%+v", reports)
	}
	for i, r := range reports {
		if r.CountedOnce != 29 || r.SetAside != 1 || r.Unseen || r.Pass != taskqueue.Pass(i+1) {
			t.Errorf("%+v", r)
		}
	}
	runArgs(t, append(args, "--ledger-dir", dir)...).wants(t, cli.ExitOK)
	runArgs(t, append(args, "--ledger-dir", t.TempDir())...).wants(t, cli.ExitUsage, "sealed elsewhere", "--ledger-dir")

	whole, err := os.ReadFile(files[2])
	if err != nil {
		t.Fatal(err)
	}
	damaged := slices.Clone(whole)
	damaged[len(damaged)-9] ^= 1
	for _, bad := range [][]byte{damaged, nil} {
		if err := os.Remove(files[2]); err != nil {
			t.Fatal(err)
		}
		if bad != nil {
			if err := os.WriteFile(files[2], bad, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		runArgs(t, args...).wants(t, cli.ExitFailed, "damaged ledger", files[2]+": at byte ", "restore the file")
		if err := os.WriteFile(files[2], whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	runArgs(t, args...).wants(t, cli.ExitOK)

	lock, err := l.store.Campaign(t.Context(), etcdstore.CampaignConfig{Address: "here", TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	few := &ledger.Sealer{Store: l.store, Config: ledger.Config{Job: l.job, Dir: dir, Keep: ledger.Keep{Bytes: 1}}, Log: logrus.NewEntry(quiet)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- few.Run(ctx, lock, jobIDOf(t, l.store), func() ledger.Progress { return ledger.Progress{} })
	}()
	sealedFiles(func(n int) bool { return n <= 2 }) // the newest file, and the file that the stopped master was about to write
	cancel()
	<-done
	r = runArgs(t, args...)
	r.wants(t, cli.ExitOK)
	for i, r := range decode[[]taskqueue.PassReport](t, r.stdout) {
		if i < 4 && !r.Unseen || r.Unseen && r.CountedOnce+r.SetAside+r.Missing != 0 {
			t.Errorf("%+v", r)
		}
	}
	table := runArgs(t, append([]string{"verify"}, l.etcd...)...)
	table.wants(t, cli.ExitOK)
	if !strings.Contains(table.stdout, "nothing is known of them") || strings.Contains(table.stdout, "Nothing is missing") {
		t.Errorf("table:\n%s", table.stdout)
	}
	of := runArgs(t, append([]string{"tasks", "--of-record", "/data/a:0"}, l.etcd...)...)
	of.wants(t, cli.ExitOK)
	if !strings.Contains(of.stdout, "not kept") || !strings.Contains(of.stdout, "The ledger is kept from commit") {
		t.Errorf("of a record:\n%s", of.stdout)
	}
	other := &ledger.Sealer{Store: l.store, Config: ledger.Config{Job: l.job, Dir: t.TempDir()}, Log: logrus.NewEntry(quiet)}
	if err := other.Check(t.Context(), ""); !errors.Is(err, ledger.ErrElsewhere) {
		t.Errorf("a master with another directory: %v", err)
	}
}

func jobIDOf(t *testing.T, store *etcdstore.Store) string {
	t.Helper()
	stored, _, err := store.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var state taskqueue.Snapshot
	if err := etcdstore.Decode(stored, &state, committer.MaxStoredState); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(state.JobID)
}
