package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"trainmaster/internal/safetensors"
	"trainmaster/local"
	"trainmaster/master/mastertest"
	pb "trainmaster/proto/trainmaster/v1"
)

// counted starts a job of counters with an update mode and a value of --on-shard-loss.
func (c counters) counted(mode string, flags ...string) (m *process, all []*process) {
	m = c.master(append([]string{
		"--passes", fmt.Sprint(rewindPasses), "--ps", "2", "--update-mode", mode, "--session-ttl", "5s", "--checkpoint-every", "200ms",
	}, flags...)...)
	return m, []*process{m, c.server(), c.server(), c.counter("a"), c.counter("b")}
}

// loseEtcd kills the processes and deletes all keys of the job in etcd.
func (c counters) loseEtcd(all []*process) {
	c.t.Helper()
	for _, p := range all {
		p.kill()
	}
	if _, err := c.store.Client().Delete(c.t.Context(), c.store.Prefix()+"/", clientv3.WithPrefix()); err != nil {
		c.t.Fatal(err)
	}
}

// wantEnd makes the trainers fast and waits for the end of the job.
func (c counters) wantEnd(m *process, all []*process) {
	c.t.Helper()
	c.hurry()
	for _, p := range all[3:] {
		p.wantExit(0)
	}
	m.wantExit(0)
}

// wantAtLeast fails the test unless each record was trained at least once per pass.
func (c counters) wantAtLeast(passes int) {
	c.t.Helper()
	path := filepath.Join(c.t.TempDir(), "model.safetensors")
	run(c.t, c.dir, "model", "export", c.checkpoints(), "--file", path).wants(c.t, 0)
	tensors, _, err := safetensors.ReadFile(path)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, tensor := range tensors {
		if tensor.DType == safetensors.I64 {
			continue // ids of a table
		}
		values, err := tensor.Float32()
		if err != nil || slices.Min(values) < float32(passes) {
			c.t.Errorf("%s: a record was trained %v times, expected at least %d: %v", tensor.Name, slices.Min(values), passes, err)
		}
	}
}

// After the loss of etcd and all processes, the job resumes from the data and parameters of its newest checkpoint set. Each
// record is trained once per pass with --on-shard-loss rewind, and at least once with continue.
func TestResumeWithoutEtcd(t *testing.T) {
	for _, mode := range []string{"async", "sync"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newCounters(t)
			_, all := c.counted(mode)
			c.awaitSets(0, 3)
			c.loseEtcd(all)
			m, all := c.counted(mode, "--resume", c.checkpoints())
			c.wantEnd(m, all)
			c.wantOutput(c.in("verify"), "nothing was counted twice", "lost before the job was resumed")
			if mode == "sync" {
				c.wantCounted(rewindPasses)
			}
			c.wantAtLeast(rewindPasses)
		})
	}
}

// A resume with another job, other data or a nonempty etcd is refused without a write. A correct resume succeeds afterwards.
func TestResumeRefuses(t *testing.T) {
	t.Parallel()
	c := newCounters(t)
	_, all := c.counted("sync")
	c.awaitSets(0, 3)
	master := func(dir string, flags ...string) []string {
		return append(c.in("--listen", "127.0.0.1:0", "--http", "", "--ps", "2", "--update-mode", "sync", "--resume", dir), flags...)
	}
	empty := t.TempDir()
	for _, p := range all {
		p.kill()
	}
	other := filepath.Join(t.TempDir(), "other")
	if err := os.CopyFS(other, os.DirFS(c.checkpoints())); err != nil {
		t.Fatal(err)
	}
	newest := c.newestSet(other)
	if err := os.Rename(newest, filepath.Join(filepath.Dir(newest), "99999999.json")); err != nil {
		t.Fatal(err)
	}
	run(t, c.dir, master(other)...).wants(t, 2, "expected an etcd without job", "omit the flag")
	c.loseEtcd(nil)
	run(t, c.dir, master(empty)...).wants(t, 2, "found no set in it")
	run(t, c.dir, append(master(c.checkpoints()), "--job", "another")...).wants(t, 2, `expected checkpoints of job "another"`, "add --job "+c.name)
	c.wantUntouched(func() {
		data, err := os.ReadFile(c.file)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := os.WriteFile(c.file, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}()
		if err := os.WriteFile(c.file, append(slices.Clone(data), data...), 0o600); err != nil {
			t.Fatal(err)
		}
		run(t, c.dir, master(c.checkpoints())...).wants(t, 2, "the data has changed", "another size")
		if err := os.Remove(c.file); err != nil {
			t.Fatal(err)
		}
		run(t, c.dir, master(c.checkpoints())...).wants(t, 2, "no such file")
	})
	c.wantUntouched(func() {
		state := c.newestSet(c.checkpoints())[:len(c.newestSet(c.checkpoints()))-len("json")] + "job"
		text, err := os.ReadFile(state)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(state, text[:len(text)-1], 0o600); err != nil {
			t.Fatal(err)
		}
		run(t, c.dir, master(c.checkpoints())...).wants(t, 2, "the manifest says", "to restore the older set")
		if err := os.WriteFile(state, text, 0o600); err != nil {
			t.Fatal(err)
		}
	})
	m, all := c.counted("sync", "--resume", c.checkpoints())
	c.wantEnd(m, all)
	c.wantCounted(rewindPasses)
}

// wantOutput runs a command and fails the test unless it succeeds and prints all words.
func (c counters) wantOutput(args []string, words ...string) {
	c.t.Helper()
	o := run(c.t, c.dir, args...)
	o.wants(c.t, 0)
	for _, w := range words {
		if !strings.Contains(o.stdout, w) {
			c.t.Errorf("%v: expected %q, found: %s", args, w, o.stdout)
		}
	}
}

// newestSet returns the file of the newest set in a directory.
func (c counters) newestSet(dir string) string {
	c.t.Helper()
	sets, err := filepath.Glob(filepath.Join(dir, "sets", "*.json"))
	if err != nil || len(sets) == 0 {
		c.t.Fatalf("no set in %s: %v", dir, err)
	}
	return slices.Max(sets)
}

// wantUntouched fails the test if etcd has a key of the job after do.
func (c counters) wantUntouched(do func()) {
	c.t.Helper()
	do()
	if keys, _, err := c.store.Prefixed(c.t.Context(), "/"); err != nil || len(keys) > 0 {
		c.t.Errorf("etcd has %v, %v; expected nothing", keys, err)
	}
}

// An asynchronous job that starts over the checkpoints of an earlier instance, without its tasks, continues from their parameters. A
// synchronous job starts from initial parameters. The trainers are not confused with trainers of the earlier
// instance.
func TestRecreatedJobUsesExistingCheckpoints(t *testing.T) {
	for _, mode := range []string{"async", "sync"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newCounters(t)
			_, all := c.counted(mode)
			c.awaitSets(0, 3)
			before := c.latestSet()
			c.loseEtcd(all)
			m, all := c.counted(mode)
			c.wantEnd(m, all)
			c.wantVerified(rewindPasses, countedRecords/countedChunk)
			c.wantAtLeast(rewindPasses)
			if after := c.latestSet(); after.Number <= before.Number {
				t.Errorf("set %d after set %d", after.Number, before.Number)
			}
			if mode == "sync" {
				c.wantCounted(rewindPasses)
			}
		})
	}
}

// A job is restored from a snapshot with parameters, after the loss of etcd and all checkpoints.
func TestSnapshotWithModel(t *testing.T) {
	for _, mode := range []string{"async", "sync"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newCounters(t)
			_, all := c.counted(mode)
			c.awaitSets(0, 2)
			file := filepath.Join(t.TempDir(), "job.tms")
			c.wantOutput(c.in("snapshot", "save", file, "--checkpoint-dir", c.checkpoints()), "with its parameters", "with its ledger")
			c.loseEtcd(all)
			if err := os.RemoveAll(c.checkpoints()); err != nil {
				t.Fatal(err)
			}
			run(t, c.dir, c.in("snapshot", "restore", file)...).wants(t, 2, "--checkpoint-dir")
			if err := os.MkdirAll(filepath.Join(c.checkpoints(), "something"), 0o755); err != nil {
				t.Fatal(err)
			}
			run(t, c.dir, c.in("snapshot", "restore", file, "--checkpoint-dir", c.checkpoints())...).wants(t, 2, "directory is not empty")
			if err := os.RemoveAll(c.checkpoints()); err != nil {
				t.Fatal(err)
			}
			c.wantOutput(c.in("snapshot", "restore", file, "--checkpoint-dir", c.checkpoints()), "its parameters are from set")
			mastertest.State(t, c.store)
			m, all := c.counted(mode)
			c.wantEnd(m, all)
			c.wantVerified(rewindPasses, countedRecords/countedChunk)
			if mode == "sync" {
				c.wantCounted(rewindPasses)
			}
			c.wantAtLeast(rewindPasses)
		})
	}
}

// A run resumes from its checkpoints after its processes were killed and its etcd was deleted.
func TestRunResumedWithoutEtcd(t *testing.T) {
	t.Parallel()
	passes := passesOf(25, 15)
	r := startRun(t, "--passes", fmt.Sprint(passes), "--update-mode", "sync", "--checkpoint-every", "50ms", "-o", "json")
	r.awaitStatus("pass 3", func(s *pb.StatusReply) bool { return len(s.Datasets) > 0 && s.Datasets[0].Pass >= 3 })
	killed := r.awaitChildren()
	r.kill()
	for _, victim := range killed {
		eventually(t, victim.kind()+" has ended", func() (bool, string) { return victim.ended(), "" })
	}
	dir := filepath.Join(r.job.dir, "trainmaster-run", "001")
	if err := os.RemoveAll(filepath.Join(dir, "etcd")); err != nil {
		t.Fatal(err)
	}
	o := run(t, r.job.dir, "run", "--resume", dir, "-o", "json")
	o.wants(t, 0)
	var result local.Result
	o.decode(t, &result)
	if *result.Accuracy < 0.9 || result.Passes != passes {
		t.Errorf("found %+v, expected the end of the %d passes", result, passes)
	}
	if log, err := os.ReadFile(filepath.Join(dir, "logs", "master.log")); err != nil || !strings.Contains(string(log), "job restored from its newest checkpoints") {
		t.Errorf("the log of the master lacks the restore: %v", err)
	}
	if o := run(t, r.job.dir, "verify", "--data-dir", filepath.Join(dir, "etcd")); o.code != 0 {
		t.Errorf("verify: %s%s", o.stdout, o.stderr)
	}
}

// A run resumes with the number of parameter servers that `master scale` has set.
func TestRunResumedWithMoreServers(t *testing.T) {
	t.Parallel()
	r := startRun(t, "--passes", "1000000", "--update-mode", "sync")
	dir := filepath.Join(r.job.dir, "trainmaster-run", "001")
	third := start(t, "pserver", r.job.dir, "pserver", "--listen", "127.0.0.1:0", "--endpoints", r.endpoint, "--checkpoint-dir", filepath.Join(dir, "checkpoints"))
	run(t, r.job.dir, "scale", "ps=3", "--endpoints", r.endpoint).wants(t, 0)
	third.awaitLog("shard=2")
	r.signal(syscall.SIGINT)
	r.wantExit(exitInterrupted)
	third.kill()

	again := runJob{job: r.job, process: start(t, "run", r.job.dir, "run", "--resume", dir)}
	again.awaitLog("the job was scaled to 3 parameter servers")
	said := regexp.MustCompile(`pass ([0-9]+)/1000000 .* records/s  loss`)
	first := ""
	eventually(t, "the run continues", func() (bool, string) {
		all := said.FindAllStringSubmatch(again.log(), -1)
		if len(all) == 0 {
			return false, again.log()
		}
		if first == "" {
			first = all[0][1]
		}
		return all[len(all)-1][1] != first, "pass " + first
	})
	again.signal(syscall.SIGINT)
	again.wantExit(exitInterrupted)
}
