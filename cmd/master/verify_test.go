package main

import (
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
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
	r.wants(t, exitOK)
	if found := decode[[]taskqueue.PassReport](t, r.stdout); !slices.Equal(found, want) {
		t.Errorf("found %+v, want %+v", found, want)
	}
	if n := strings.Count(r.stdout, `"set": 0,`); n != len(want) {
		t.Errorf("the dataset is named %d times, want once for each pass:\n%s", n, r.stdout)
	}
	table := runArgs(t, append([]string{"verify"}, l.etcd...)...)
	table.wants(t, exitOK)
	if !strings.Contains(table.stdout, "COUNTED TWICE") || !strings.Contains(table.stdout, "Nothing is missing") {
		t.Errorf("table:\n%s", table.stdout)
	}
	l.stop()
	runArgs(t, args...).wants(t, exitOK)

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
		"a finish is gone":          {nil, exitFailed, []string{"pass 1: 1 tasks are missing and 0 were counted twice"}},
		"a finish for another task": {finishes[keys[0]], exitFailed, []string{"pass 1: 1 tasks are missing and 1 were counted twice"}},
		"damaged":                   {[]byte{1, 0xff}, exitFailed, []string{"damaged record", "commit "}},
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
	runArgs(t, args...).wants(t, exitOK) // all is put back
}

func put(t *testing.T, store *etcdstore.Store, key string, value []byte) {
	t.Helper()
	if _, err := store.Client().Put(t.Context(), store.Prefix()+key, string(value)); err != nil {
		t.Fatal(err)
	}
}

// finishes finds what the record has of commits with one event, a finish in the first pass.
func (l *led) finishes() map[string][]byte {
	l.t.Helper()
	found, _, err := l.store.Prefixed(l.t.Context(), recordKeys)
	if err != nil {
		l.t.Fatal(err)
	}
	maps.DeleteFunc(found, func(_ string, value []byte) bool {
		var events []taskqueue.RecordEvent
		for ev, err := range taskqueue.RecordEvents(value) {
			if err != nil {
				l.t.Fatal(err)
			}
			events = append(events, ev)
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
		r.wants(t, exitOK)
		if t.Failed() {
			break
		}
		counted = decode[[]taskqueue.PassReport](t, r.stdout)[0].CountedOnce
	}
	close(done)
	<-finished
}

func TestVerifyWithoutARecord(t *testing.T) {
	l := lead(t, master.Config{NoRecord: true})
	l.report(3)
	l.join("a").take()
	runArgs(t, append([]string{"verify"}, l.etcd...)...).wants(t, exitUsage, "no record of job", "--record=false")
	runArgs(t, "verify", "--endpoints", etcdtest.Endpoint(t), "--job", "nobody").wants(t, exitUsage, `no job "nobody"`, "name one of these with --job: ")
	runArgs(t, "verify", "--endpoints", closedPort(t), "--dial-timeout", "300ms").wants(t, exitStore, "etcd is unreachable")
}

// The record of many pages is read in its order.
func TestRecordIsReadInOrder(t *testing.T) {
	store := etcdtest.Store(t)
	want := []uint64{1, 2, 4095, 4096, 4097, 9000, 12288}
	for _, commit := range append(slices.Clone(want), 12289, 70000) {
		put(t, store, taskqueue.RecordKey(commit), []byte{byte(commit)})
	}
	put(t, store, "/record/id", []byte("x"))
	var found []uint64
	for r, err := range record(t.Context(), store, 12288) {
		if err != nil || r.events[0] != byte(r.commit) {
			t.Fatal(r, err)
		}
		found = append(found, r.commit)
	}
	if !slices.Equal(found, want) {
		t.Errorf("found %v, want %v", found, want)
	}
}

func TestVerifyOfAnEmbeddedEtcd(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	etcd, err := etcdstore.StartEmbedded(t.Context(), etcdstore.EmbeddedConfig{Dir: dir, UnsafeNoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	runArgs(t, "verify", "--data-dir", dir).wants(t, exitFailed, "in use by another process", "--endpoints")
	etcd.Close()
	runArgs(t, "verify", "--data-dir", dir).wants(t, exitUsage, "no job has run in the embedded etcd in "+dir+" yet", "master --data-dir "+dir)
}
