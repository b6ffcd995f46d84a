package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"trainmaster/cmd/internal/cli"
	"trainmaster/cmd/internal/view"
	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/restore"
	"trainmaster/master/snapshot"
	"trainmaster/taskqueue"
)

// saved is a job in the middle of its first pass: tasks are counted, held, to be retried, set aside and dropped.
func saved(t *testing.T, config master.Config) (l *led, a *session, file string) {
	t.Helper()
	l = lead(t, config)
	l.report(40)
	a = l.join("a")
	a.take()
	for range 5 {
		a.take(finish(a.held[0]))
	}
	gone := l.join("gone")
	gone.take()
	if err := l.Leave(t.Context(), gone.req.Trainer, gone.req.Incarnation); err != nil {
		t.Fatal(err)
	}
	poison := a.held[0]
	for range 2 {
		if again := a.take(fail(poison, "torn")); again.Index == poison.Index {
			poison = again
		}
	}
	file = filepath.Join(t.TempDir(), "backup.tms")
	runArgs(t, append([]string{"snapshot", "save", file}, l.etcd...)...).says(t, "job "+l.job, "whole, with its ledger")
	return l, a, file
}

// work finishes tasks as one trainer until the job ends.
func (l *led) work(id string) {
	l.t.Helper()
	s := l.join(id)
	task, err := s.send(true)
	for err == nil && len(task.Chunks) > 0 {
		task, err = s.send(true, finish(task))
	}
	if !errors.Is(err, master.ErrJobFinished) {
		l.t.Fatalf("trainer %s ended with %v", id, err)
	}
}

// A job that continues after a snapshot is restored under another name, and in another etcd. Both jobs run independently, and
// each counts every task once.
func TestSnapshotRestore(t *testing.T) {
	config := master.Config{Shuffle: true, Seed: 3, Queue: taskqueue.Options{Passes: 2, MaxFailures: 1}}
	l, a, file := saved(t, config)
	info := decode[view.Snapshot](t, runArgs(t, "snapshot", "inspect", file, "-o", "json").stdout)
	d := info.Datasets[0]
	if info.Job != l.job || info.Status != "running" || !info.Ledger || d.Tasks != 40 || d.Done == 0 || d.Done+d.Pending+d.Retry+d.SetAside >= 40 || d.Pending == 0 {
		t.Fatalf("the snapshot is of %+v", info)
	}
	before := slices.Clone(a.held)
	for range 3 {
		a.take(finish(a.held[0])) // and on: commits, tasks and tokens that the snapshot does not know
	}

	for _, where := range []string{"another name", "another etcd"} {
		t.Run(where, func(t *testing.T) {
			endpoint, job := etcdtest.Endpoint(t), etcdtest.NewJob(t)
			if where == "another etcd" {
				endpoint, job = etcdtest.StartProcess(t, 0).Endpoint(), l.job
			}
			to := []string{"--endpoints", endpoint, "--job", job}
			r := runArgs(t, append([]string{"snapshot", "restore", file, "-o", "json"}, to...)...)
			r.says(t)
			restored := decode[restore.Result](t, r.stdout)
			if restored.Job != job || restored.JobID == info.JobID || restored.Restores != 1 || restored.Epoch != info.Epoch+1 || restored.Again != d.Pending+d.Retry {
				t.Errorf("restored: %+v", restored)
			}
			store := etcdtest.Open(t, endpoint, job)
			next := leadJob(t, store, config)
			if want, got := secretOf(t, etcdtest.Open(t, etcdtest.Endpoint(t), l.job)), secretOf(t, store); got == "" || got != want {
				t.Errorf("the restored job has the secret %q, expected %q", got, want)
			}
			v, err := next.Overview(t.Context())
			if err != nil || v.Sets[0].Done != d.Done || v.Sets[0].SetAside != d.SetAside || v.Sets[0].Retry != restored.Again || len(v.Trainers) != 0 {
				t.Errorf("restored state: %+v, %v", v, err)
			}
			// The request of a trainer of the former job is rejected.
			old := *a
			old.led = next
			old.req.SeenCommit, old.req.JobID = 1<<30, [16]byte{1}
			if _, err := old.send(true, finish(before[0])); !errors.Is(err, master.ErrRejoin) {
				t.Errorf("a trainer of the former job gets error %v", err)
			}
			next.work("b")
			verify := runArgs(t, append([]string{"verify", "-o", "json"}, to...)...)
			verify.says(t)
			for _, p := range decode[[]taskqueue.PassReport](t, verify.stdout) {
				if p.CountedOnce+p.SetAside != 40 {
					t.Errorf("pass %d: %+v", p.Pass, p)
				}
			}
			again := runArgs(t, append([]string{"snapshot", "restore", file}, to...)...)
			again.wants(t, cli.ExitUsage, "there is a job already", "choose another --job")
		})
	}
	if err := l.Leave(t.Context(), a.req.Trainer, a.req.Incarnation); err != nil {
		t.Fatal(err)
	}
	l.work("c")
	runArgs(t, append([]string{"verify"}, l.etcd...)...).says(t, "Nothing is missing")
}

func secretOf(t *testing.T, store *etcdstore.Store) string {
	t.Helper()
	value, _, err := store.Value(t.Context(), taskqueue.SecretKey)
	if err != nil {
		t.Fatal(err)
	}
	return string(value)
}

// Save and restore with directories: from an embedded etcd that no master uses, into a new embedded etcd.
func TestSnapshotOfDataDir(t *testing.T) {
	_, _, file := saved(t, master.Config{Queue: taskqueue.Options{MaxFailures: 1}})
	first, second, copied := filepath.Join(t.TempDir(), "first"), filepath.Join(t.TempDir(), "second"), filepath.Join(t.TempDir(), "copy.tms")
	runArgs(t, "snapshot", "restore", file, "--data-dir", first, "--job", "x").says(t, "job x is restored", "--data-dir "+first+" --job x")
	runArgs(t, "snapshot", "save", copied, "--data-dir", first, "--job", "x").says(t, "job x")
	runArgs(t, "snapshot", "restore", copied, "--data-dir", second).says(t, "job x is restored")
	r := runArgs(t, "queues", "--literal", "--data-dir", second, "--job", "x", "-o", "json")
	r.says(t)
	if q := decode[view.LiteralQueues](t, r.stdout); len(q.Datasets) != 1 || len(q.Datasets[0].Done) == 0 || len(q.Datasets[0].Pending) != 0 {
		t.Errorf("restored twice: %+v", q)
	}
	runArgs(t, "verify", "--data-dir", second, "--job", "x").says(t, "Nothing is missing")
}

// No process can use the job of an interrupted restore until the restore is repeated.
func TestInterruptedRestoreIsNoJob(t *testing.T) {
	config := master.Config{Queue: taskqueue.Options{Passes: 1, MaxFailures: 1}}
	_, _, file := saved(t, config)
	store := etcdtest.Store(t)
	job := strings.TrimPrefix(store.Prefix(), "/jobs/")
	s, err := openSnapshot(file)
	if err != nil {
		t.Fatal(err)
	}
	r := &restore.Plan{File: s, Ledger: true}
	_, settings, err := r.Queue()
	if err != nil {
		t.Fatal(err)
	}
	crash := errors.New("crash")
	err = store.ImportJob(t.Context(), etcdstore.Import{ID: s.Digest, Name: job, Settings: settings, State: []byte("x"), Keys: func(yield func(taskqueue.Write, error) bool) {
		n := 0
		for item, err := range r.Keys() {
			if n++; n == 150 || !yield(item, err) {
				break
			}
		}
		yield(taskqueue.Write{}, crash)
	}})
	if !errors.Is(err, crash) {
		t.Fatal(err)
	}
	to := []string{"--endpoints", etcdtest.Endpoint(t), "--job", job}
	runArgs(t, append([]string{"queues", "--literal"}, to...)...).wants(t, cli.ExitUsage, "no job")
	_, _, other := saved(t, config)
	runArgs(t, append([]string{"snapshot", "restore", other}, to...)...).wants(t, cli.ExitUsage, "another file was begun here")
	runArgs(t, append([]string{"snapshot", "restore", file}, to...)...).says(t, "is restored")
	leadJob(t, store, config).work("a")
	runArgs(t, append([]string{"verify"}, to...)...).says(t, "Nothing is missing")
}

// Any byte that is changed or gone is noticed, and nothing is restored.
func TestDamagedSnapshot(t *testing.T) {
	_, _, file := saved(t, master.Config{Queue: taskqueue.Options{MaxFailures: 1}})
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(t.TempDir(), "bad.tms")
	check := func(what string, content []byte, words string) {
		t.Helper()
		if err := os.WriteFile(bad, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := openSnapshot(bad); !errors.Is(err, snapshot.ErrDamaged) || !strings.Contains(err.Error(), words) {
			t.Fatalf("%s: expected an error with %q, found %v", what, words, err)
		}
	}
	for at := 0; at < len(whole); at += max(1, len(whole)/150) {
		flipped := slices.Clone(whole)
		flipped[at] ^= 1
		check(fmt.Sprint("a bit of byte ", at), flipped, "no whole snapshot")
		check(fmt.Sprint("cut at ", at), whole[:at], "no whole snapshot")
	}
	runArgs(t, "snapshot", "inspect", bad).wants(t, cli.ExitFailed, "no whole snapshot")
	other := slices.Clone(whole)
	other[len("TMBACKUP")] = 9
	check("a newer version", other, "expected version 3 or 4, found 9")
	other[len("TMBACKUP")] = 1 // with the ledger under other keys
	check("an earlier version", other, "expected version 3 or 4, found 1")
	store := etcdtest.Store(t)
	job := strings.TrimPrefix(store.Prefix(), "/jobs/")
	runArgs(t, "snapshot", "restore", bad, "--endpoints", etcdtest.Endpoint(t), "--job", job).wants(t, cli.ExitFailed, "no whole snapshot")
	if keys, _, err := store.Prefixed(t.Context(), "/"); err != nil || len(keys) > 0 {
		t.Errorf("restored: %v, %v", keys, err)
	}
	runArgs(t, "snapshot", "inspect", filepath.Join(t.TempDir(), "nothing")).wants(t, cli.ExitUsage, "no such file")
}

// If a snapshot cannot be written, the former file remains, without temporary files.
func TestSnapshotThatCannotBeWritten(t *testing.T) {
	l, _, file := saved(t, master.Config{Queue: taskqueue.Options{MaxFailures: 1}})
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("etcd went away")
	err = snapshot.Write(file, snapshot.Content{Items: func(yield func(taskqueue.Write, error) bool) {
		_ = yield(taskqueue.Write{Key: "/a", Value: make([]byte, 1<<20)}, nil) && yield(taskqueue.Write{}, broken)
	}})
	if !errors.Is(err, broken) {
		t.Errorf("found %v", err)
	}
	after, err := os.ReadFile(file)
	entries, listErr := os.ReadDir(filepath.Dir(file))
	if err != nil || listErr != nil || !slices.Equal(before, after) || len(entries) != 1 {
		t.Errorf("the file has %d bytes, had %d; the directory has %v", len(after), len(before), entries)
	}
	runArgs(t, append([]string{"snapshot", "save", file}, l.etcd...)...).wants(t, cli.ExitUsage, "expected a new name, found a file: name another one, or give --force to replace it")
	if after, err := os.ReadFile(file); err != nil || !slices.Equal(before, after) {
		t.Errorf("a file that exists was not kept: %v", err)
	}
	runArgs(t, append([]string{"snapshot", "save", file, "--force"}, l.etcd...)...).says(t, "whole, with its ledger")
	runArgs(t, append([]string{"snapshot", "save", filepath.Dir(file)}, l.etcd...)...).wants(t, cli.ExitUsage, "expected the name of a file, found a directory")
	missing := filepath.Join(t.TempDir(), "no", "folder")
	r := runArgs(t, append([]string{"snapshot", "save", missing}, l.etcd...)...)
	r.wants(t, cli.ExitFailed, fmt.Sprintf("write snapshot %q: create a file in %q: no such file or directory", missing, filepath.Dir(missing)))
	if strings.Contains(r.stderr, ".tmp") {
		t.Errorf("found the name of a temporary file: %s", r.stderr)
	}
	runArgs(t, "snapshot", "inspect", filepath.Dir(file)).wants(t, cli.ExitUsage, "expected a regular file, found a directory")
}

func TestSnapshotWithoutLedger(t *testing.T) {
	l := lead(t, master.Config{NoLedger: true})
	l.report(3)
	l.join("a").take()
	file := filepath.Join(t.TempDir(), "backup.tms")
	runArgs(t, append([]string{"snapshot", "save", file}, l.etcd...)...).says(t, "without its ledger")
	runArgs(t, "snapshot", "restore", file, "--endpoints", etcdtest.Endpoint(t), "--job", etcdtest.NewJob(t)).says(t, "--ledger=false")
	runArgs(t, "snapshot", "save", file, "--force", "--endpoints", etcdtest.Endpoint(t), "--job", "unknown").wants(t, cli.ExitUsage, `no job "unknown"`)
}

var keyRow = regexp.MustCompile("^\\| `(/[^`]*)`")

// Each key of docs/keys.md is saved, or there is a reason why not: a new key cannot be forgotten.
func TestSnapshotKnowsEveryKey(t *testing.T) {
	text, err := os.ReadFile("../../docs/keys.md")
	if err != nil {
		t.Fatal(err)
	}
	const process, session, saved, read, other = "a process's own", "sessions end", "saved", "saved by the reader", "it is about files: saved with the files of the set only; each file has its own placement"
	known := map[string]string{
		"/master/": process, "/ps/": process, "/trainers/": session,
		"/master/secret": saved, "/job": saved, "/task_queues": saved, "/task_queues/tasks/": saved, "/task_queues/aside/": saved, "/ps_desired": saved, "/evaluation": saved, "/evaluation/": saved, "/strategy": saved, "/strategy/": saved, "/ps_step": saved,
		"/ledger/begin": "made of the state", "/ledger/": read, "/checkpoints/": other, "/ps_blocks": other, "/pods": "about the pods of a cluster: a restored job creates its own", "/ring": "about running members: a restored job forms its own", "/ring_values/": "about running members",
	}
	rows := 0
	for line := range strings.Lines(string(text)) {
		m := keyRow.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		rows++
		key, _, _ := strings.Cut(m[1], "<")
		found := false
		for prefix := range known {
			found = found || key == prefix || strings.HasSuffix(prefix, "/") && strings.HasPrefix(key, prefix)
		}
		if !found {
			t.Errorf("docs/keys.md names %s: is it part of a snapshot?", m[1])
		}
	}
	if rows < 10 {
		t.Errorf("docs/keys.md names %d keys", rows)
	}
}
