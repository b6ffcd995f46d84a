package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
	"trainmaster/cmd/internal/view"
	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/local/drill"
	"trainmaster/master"
)

// leadEmbedded is a job in the embedded etcd of a directory. stop ends its master and that etcd.
func leadEmbedded(t *testing.T, dir string) (l *led, stop func()) {
	t.Helper()
	etcd, err := etcdstore.StartEmbedded(t.Context(), etcdstore.EmbeddedConfig{Dir: dir, UnsafeNoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	store, err := etcdstore.Open(t.Context(), etcdstore.Config{Endpoints: []string{etcd.Endpoint()}})
	if err != nil {
		t.Fatal(err)
	}
	l = leadJob(t, store, master.Config{Job: "default"})
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			l.stop()
			_ = store.Close() // only ever closed already
			etcd.Close()
		}
	}
	t.Cleanup(stop)
	return l, stop
}

// --data-dir leads to the job of a directory, while a master uses it and afterwards.
func TestDataDirLeadsToJob(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	l, stop := leadEmbedded(t, dir)
	l.report(4)
	l.join("a").take()
	for _, command := range []string{"status", "queues", "trainers", "tasks"} {
		r := runArgs(t, command, "--data-dir", dir, "-o", "json")
		r.wants(t, cli.ExitOK)
		if !strings.Contains(r.stdout, map[string]string{"status": `"pending": 1`, "queues": `"pending": 1`, "trainers": `"id": "a"`, "tasks": `"state": "pending"`}[command]) {
			t.Errorf("%s: found %s", command, r.stdout)
		}
	}
	runArgs(t, "queues", "--literal", "--data-dir", dir).wants(t, cli.ExitStore, "in use by another process", "--endpoints http://127.0.0.1:")
	stop()
	runArgs(t, "queues", "--data-dir", dir).wants(t, cli.ExitFailed, "no master leads job", "master queues --literal --data-dir "+dir)
	runArgs(t, "queues", "--literal", "--data-dir", dir).wants(t, cli.ExitOK)
	stored := runArgs(t, "status", "--data-dir", dir)
	if stored.wants(t, cli.ExitOK); !strings.Contains(stored.stdout, "job       default, stopped\n") || !strings.Contains(stored.stdout, "continue  master --data-dir") {
		t.Errorf("of a directory that no process uses, status found %s", stored.stdout)
	}

	empty := t.TempDir()
	runArgs(t, "queues", "--data-dir", empty).wants(t, cli.ExitUsage, "expected the embedded etcd of a master, found none")
	file := filepath.Join(empty, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{{"status"}, {"queues", "--literal"}, {"verify"}} {
		runArgs(t, append(command, "--data-dir", file)...).wants(t, cli.ExitUsage, "expected a directory, found a file")
	}
	if os.Getuid() != 0 { // root may read anywhere
		if err := os.Chmod(dir, 0); err != nil {
			t.Fatal(err)
		}
		defer os.Chmod(dir, 0o700) //nolint:errcheck // the directory is removed
		runArgs(t, "queues", "--literal", "--data-dir", dir).wants(t, cli.ExitUsage, "permission denied")
	}
}

// The directory of a run that was killed leads to the stored state, and to the command that continues the run.
func TestFolderOfAStoppedRunLeadsToItsState(t *testing.T) {
	run := t.TempDir()
	l, stop := leadEmbedded(t, filepath.Join(run, "etcd"))
	l.report(4)
	l.join("a").take()
	l.stop()
	if _, err := l.store.Client().Put(t.Context(), l.store.Prefix()+"/master/addr", `{"addr":"127.0.0.1:1","term":1}`); err != nil { // as kill -9 leaves it
		t.Fatal(err)
	}
	stop()
	if err := os.WriteFile(filepath.Join(run, "run.json"), []byte(`{"settings": {}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, where := range [][]string{{"--data-dir", filepath.Join(run, "etcd")}, {"--data-dir", run}, {"--dir", run}} {
		r := runArgs(t, append([]string{"status"}, where...)...)
		if r.wants(t, cli.ExitOK); !strings.Contains(r.stdout, "default, stopped\n") || !strings.Contains(strings.Join(strings.Fields(r.stdout), " "), "continue master run --resume "+run+" ") {
			t.Errorf("%q: found %s", where, r.stdout)
		}
		s := decode[view.Status](t, runArgs(t, append([]string{"status", "-o", "json"}, where...)...).stdout)
		if s.Status != "stopped" || s.Leader.Address != "" || len(s.Datasets) != 1 || s.Datasets[0].Todo+s.Datasets[0].Pending+s.Datasets[0].Retry != 4 {
			t.Errorf("%q: found %+v", where, s)
		}
		runArgs(t, append([]string{"pause"}, where...)...).wants(t, cli.ExitFailed, "no master leads job", "continue with: master run --resume "+run)
	}
}

// Without an address, and without a run under way, the error names the newest run that no process uses.
func TestNoRunUnderWayNamesNewestStoppedRun(t *testing.T) {
	parent := t.TempDir()
	t.Chdir(parent)
	ask := func() string {
		_, open := admin.AddLeaderFlags(&cobra.Command{Use: "status"})
		l, err := open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if l.Addr != admin.DefaultAddr {
			t.Errorf("address %q without flags, expected %s", l.Addr, admin.DefaultAddr)
		}
		l.Addr = closedPort(t) // another process may listen at the default address
		_, err = admin.AskStatus(t.Context(), l)
		return err.Error()
	}
	if err := ask(); strings.Contains(err, "run --resume") {
		t.Errorf("without a run: %s", err)
	}
	for _, name := range []string{"001", "002", "003"} {
		run := filepath.Join(admin.RunsDir, name)
		if err := os.MkdirAll(run, 0o700); err != nil {
			t.Fatal(err)
		}
		if name != "003" { // which failed before it had an etcd
			if err := os.WriteFile(filepath.Join(run, "run.json"), []byte(`{"settings": {}}`), 0o600); err != nil {
				t.Fatal(err)
			}
			_, stop := leadEmbedded(t, filepath.Join(run, admin.EtcdDir))
			stop()
		}
	}
	newest := filepath.Join(admin.RunsDir, "002")
	for _, command := range []string{"the newest run here, " + newest + ":", "master status --dir " + newest, "master run --resume " + newest} {
		if err := ask(); !strings.Contains(err, "no master answers at 127.0.0.1:") || !strings.Contains(err, command) {
			t.Errorf("found %s, expected %q", err, command)
		}
		runArgs(t, "status", "--dir", admin.RunsDir).wants(t, cli.ExitUsage, "no run in progress", command)
	}
	// It needs no leader, and the masters above have had no trainer.
	runArgs(t, "verify").wants(t, cli.ExitUsage, "the run in "+newest+", which no process uses", "no ledger of job")
}

// Without an address a run under way in this directory is meant; --dir names another one.
func TestLeaderOfRunUnderWay(t *testing.T) {
	l := lead(t, master.Config{})
	l.report(4)
	parent := t.TempDir()
	t.Chdir(parent)
	runs := filepath.Join(parent, admin.RunsDir)
	if err := os.MkdirAll(filepath.Join(runs, "001"), 0o700); err != nil {
		t.Fatal(err)
	}
	scene, err := drill.NewRegister(filepath.Join(runs, "001"), drill.Scene{Endpoint: etcdtest.Endpoint(t)})
	if err != nil {
		t.Fatal(err)
	}
	if err := scene.Started("master", os.Getpid()); err != nil {
		t.Fatal(err)
	}
	r := runArgs(t, "status", "--job", l.job, "-o", "json")
	if r.wants(t, cli.ExitOK, "the run in trainmaster-run/001", "--addr"); !strings.Contains(r.stdout, `"todo": 4`) {
		t.Errorf("found %s", r.stdout)
	}
	if r := runArgs(t, "status", "--job", l.job, "--dir", filepath.Join(runs, "001")); r.code != cli.ExitOK || r.stderr != "" {
		t.Errorf("with --dir: %d, %s", r.code, r.stderr)
	}
	if err := scene.Close(); err != nil {
		t.Fatal(err)
	}
	runArgs(t, "status", "--dir", runs).wants(t, cli.ExitUsage, "no run in progress")
	runArgs(t, "status", "--addr", "127.0.0.1:1").wants(t, cli.ExitFailed, "no master answers at 127.0.0.1:1")
}

func TestJobNamesAreChecked(t *testing.T) {
	for _, name := range []string{"", "a/b", "-a", strings.Repeat("a", 129)} {
		for _, command := range [][]string{{}, {"status"}, {"trainer"}, {"pserver"}, {"verify"}} {
			runArgs(t, append(command, "--job="+name)...).wants(t, cli.ExitUsage, "for --job from the command line: expected a name of up to 128 letters")
		}
	}
}
