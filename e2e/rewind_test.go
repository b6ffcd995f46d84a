package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"trainmaster/etcdstore"
	"trainmaster/local"
	"trainmaster/master/mastertest"
	pb "trainmaster/proto/trainmaster/v1"
)

const rewindPasses = 3

// started starts a job with --on-shard-loss rewind, two servers and two counters.
func (c counters) started(passes int, flags ...string) (master func() *process, m *process, servers, trainers []*process) {
	master = func() *process {
		return c.master(append([]string{
			"--passes", fmt.Sprint(passes), "--ps", "2", "--update-mode", "sync", "--on-trainer-loss", "rewind", "--session-ttl", "5s", "--checkpoint-every", "200ms",
		}, flags...)...)
	}
	m = master()
	servers = []*process{c.server(shortLease...), c.server(shortLease...)}
	trainers = []*process{c.counter("a"), c.counter("b")}
	return master, m, servers, trainers
}

// awaitCut waits for a cut with a number above the given one, and returns its number. The cut may be aborted later.
func (c counters) awaitCut(number uint64) uint64 {
	c.t.Helper()
	var round uint64
	eventually(c.t, fmt.Sprintf("a cut after %d begins", number), func() (bool, string) {
		state, _, _ := mastertest.State(c.t, c.store)
		round = state.Exact.Round
		return round > number, fmt.Sprint(*state.Exact)
	})
	return round
}

// Any process, or all of them, is killed. Each record is trained once per pass.
func TestRewind(t *testing.T) {
	for _, victim := range []string{"none", "server", "trainer in a cut", "master in a cut", "everything"} {
		t.Run(victim, func(t *testing.T) {
			t.Parallel()
			c := newCounters(t)
			master, m, servers, trainers := c.started(rewindPasses)
			before := c.awaitSets(0, 2)
			switch victim {
			case "server":
				for range 3 { // each time with updates that are in no set
					servers[1].kill()
					servers[1] = c.server(shortLease...)
					before = c.awaitSets(before, 1)
				}
			case "trainer in a cut":
				trainers[1].signal(syscall.SIGSTOP) // the next cut waits for it
				c.awaitCut(before)
				trainers[1].kill()
				trainers[1] = c.counter("c")
			case "master in a cut":
				trainers[1].signal(syscall.SIGSTOP)
				c.awaitCut(before)
				m.kill()
				m = master()
				trainers[1].signal(syscall.SIGCONT)
			case "everything":
				for _, p := range append(append([]*process{m}, servers...), trainers...) {
					p.kill()
				}
				_, m, _, trainers = c.started(rewindPasses)
			}
			c.hurry()
			for _, p := range trainers {
				p.wantExit(0)
			}
			m.wantExit(0)
			c.wantVerified(rewindPasses, countedRecords/countedChunk)
			c.wantCounted(rewindPasses)
		})
	}
}

// awaitSets waits for least further sets of two servers, and returns the number of the newest set.
func (c counters) awaitSets(last uint64, least int) uint64 {
	c.t.Helper()
	for range least {
		set, _ := c.awaitSet(2, last)
		last = set.Number
	}
	return last
}

// A synchronous job gets another number of servers while it trains, by a rollback to a cut in the new placement. If a server is lost
// afterwards, or the leader in the middle of the change, the last set is loaded in the new placement.
func TestRewindWithMovedBlocks(t *testing.T) {
	t.Parallel()
	const passes = 8
	c := newCounters(t)
	master, m, servers, trainers := c.started(passes)
	c.awaitSets(0, 1)
	up := start(t, "scale", c.dir, c.in("scale", "ps=3")...)
	up.awaitLog("start one with: master pserver")
	servers = append(servers, c.server(shortLease...))
	up.wantExit(0)
	c.awaitSet(3, 0)
	rollbacks := func() int { return strings.Count(m.log(), "rolling back to last cut") }
	before := rollbacks()
	if before < 2 {
		t.Errorf("the job rolled back %d times, expected twice: when its servers started, and for the third server", before)
	}

	servers[2].kill()
	servers[2] = c.server(shortLease...)
	eventually(t, "the job goes back", func() (bool, string) { n := rollbacks(); return n > before, fmt.Sprint(n) })
	set, _ := c.awaitSet(3, c.latestSet().Number)

	c.requestScale(1)
	epoch := c.layout().Epoch
	eventually(t, "the rollback to one server", func() (bool, string) { return c.layout().Epoch > epoch, fmt.Sprint(c.layout()) })
	m.kill()
	m = master()
	eventually(t, "one server", func() (bool, string) { return c.layout().Shards == 1, fmt.Sprint(c.layout()) })
	c.awaitSet(1, set.Number)
	isLast := func(s *process) bool { return strings.Contains(s.log(), "shard=0") }
	for _, s := range servers {
		if !isLast(s) {
			s.wantExit(0) // the leader decommissions it when all servers run
		}
	}
	for _, s := range servers {
		if isLast(s) {
			s.kill()
		}
	}
	c.server(shortLease...).awaitLog("gone back")
	c.hurry()
	for _, p := range trainers {
		p.wantExit(0)
	}
	m.wantExit(0)
	c.wantVerified(passes, countedRecords/countedChunk)
	c.wantCounted(passes)
}

// A run resumes with its settings after all its processes were killed. Flags that select another run are refused.
func TestRunResumed(t *testing.T) {
	t.Parallel()
	passes := passesOf(25, 15)
	r := startRun(t, "--passes", fmt.Sprint(passes), "--update-mode", "sync", "--checkpoint-every", "50ms", "--journal", "-o", "json")
	pass := r.awaitStatus("pass 3", func(s *pb.StatusReply) bool { return len(s.Datasets) > 0 && s.Datasets[0].Pass >= 3 }).Datasets[0].Pass
	killed := r.awaitChildren()
	r.kill()
	for _, victim := range killed {
		eventually(t, victim.kind()+" has ended", func() (bool, string) { return victim.ended(), "" })
	}
	dir := filepath.Join(r.job.dir, "trainmaster-run", "001")
	run(t, r.job.dir, "run", "--resume", r.job.dir).wants(t, 2, "no run to resume", "run.json")
	run(t, r.job.dir, "run", "--resume", dir, "--model", "mlp").wants(t, 2, "--model cannot change on resume", `found "mlp"`)
	run(t, r.job.dir, "run", "--resume", dir, "--dir", "x").wants(t, 2, "--dir")
	o := run(t, r.job.dir, "run", "--resume", dir, "-o", "json")
	o.wants(t, 0)
	var result local.Result
	o.decode(t, &result)
	if *result.Accuracy < 0.9 || result.Dir != dir || result.Passes != passes {
		t.Errorf("found %+v, expected the end of the %d passes of the run in %s, which was killed in pass %d", result, passes, dir, pass)
	}
	logs, err := filepath.Glob(filepath.Join(dir, "logs", "pserver-*.log"))
	if err != nil || len(logs) != 2 {
		t.Fatalf("logs of parameter servers: %v, %v", logs, err)
	}
	for _, name := range logs {
		if log, err := os.ReadFile(name); err != nil || bytes.Contains(log, []byte("indices are taken")) {
			t.Errorf("%s, %v: expected a server that does not wait for the lease of a killed server:\n%s", name, err, log)
		}
	}
	etcd, err := etcdstore.StartEmbedded(t.Context(), etcdstore.EmbeddedConfig{Dir: filepath.Join(dir, "etcd")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	r.endpoint, r.job.dir = etcd.Endpoint(), dir
	r.open()
	r.wantVerified(passes, runTasks)
}

// By default a job does not roll back for a lost trainer: its task is trained again, and each record of each
// pass is in the model at least once.
func TestTrainerLossRetrainsItsTask(t *testing.T) {
	t.Parallel()
	c := newCounters(t)
	m := c.master("--passes", fmt.Sprint(rewindPasses), "--ps", "2", "--update-mode", "sync",
		"--session-ttl", "5s", "--checkpoint-every", "200ms")
	c.server(shortLease...)
	c.server(shortLease...)
	trainers := []*process{c.counter("a"), c.counter("b")}
	before := c.awaitSets(0, 2)
	for range 2 {
		trainers[1].kill()
		trainers[1] = c.counter("b")
		before = c.awaitSets(before, 2)
	}
	if n := strings.Count(m.log(), "rolling back to last cut"); n != 1 {
		t.Errorf("the job rolled back %d times, expected once, when its servers started", n)
	}
	c.hurry()
	for _, p := range trainers {
		p.wantExit(0)
	}
	m.wantExit(0)
	c.wantVerified(rewindPasses, countedRecords/countedChunk)
	c.wantCountedAtLeast(rewindPasses)

}

// startedUnsaved is a synchronous job at work whose two parameter servers keep no checkpoints.
func (c counters) startedUnsaved(passes int) (m *process, servers, trainers []*process) {
	c.t.Helper()
	m = c.master("--passes", fmt.Sprint(passes), "--ps", "2", "--update-mode", "sync", "--session-ttl", "5s", "--checkpoint-every", "200ms")
	flags := append([]string{"--checkpoint-dir", ""}, shortLease...)
	servers = []*process{c.server(flags...), c.server(flags...)}
	trainers = []*process{c.counter("a"), c.counter("b")}
	c.awaitSteps(5)
	return m, servers, trainers
}

// A synchronous job without checkpoints trains to its end.
func TestSynchronousJobWithoutCheckpoints(t *testing.T) {
	t.Parallel()
	c := newCounters(t)
	m, _, trainers := c.startedUnsaved(2)
	c.hurry()
	for _, p := range trainers {
		p.wantExit(0)
	}
	m.wantExit(0)
	c.wantVerified(2, countedRecords/countedChunk)
}

// A synchronous job without checkpoints that loses a parameter server fails, whether or not another server takes its place.
func TestSynchronousJobWithoutCheckpointsFailsOnServerLoss(t *testing.T) {
	for _, isReplaced := range []bool{false, true} {
		t.Run(fmt.Sprintf("replaced %t", isReplaced), func(t *testing.T) {
			t.Parallel()
			c := newCounters(t)
			m, servers, trainers := c.startedUnsaved(20)
			servers[1].kill()
			if isReplaced {
				c.server("--checkpoint-dir", "")
			}
			m.wantExit(1)
			if log := m.log(); !strings.Contains(log, "parameter server 0 was ") && !strings.Contains(log, "parameter server 1 was ") || !strings.Contains(log, "--checkpoint-dir for each parameter server") {
				t.Errorf("the log does not say which server was lost, and what to do:\n%s", log)
			}
			for _, p := range trainers {
				p.wantExit(1)
			}
		})
	}
}

// A synchronous job with a tensor, an embedding table, a backup worker and rollbacks is scaled up and down. Each kind of
// process is killed, alone and together with another, and a trainer is paused in the middle of a task. Each record is trained once
// per pass, in the tensor and in the table.
func TestSynchronousJobWithEverything(t *testing.T) {
	t.Parallel()
	const passes = 8
	c := newCounters(t)
	master, m, servers, trainers := c.started(passes, "--backup-workers", "1")
	trainers = append(trainers, c.counter("c"))
	set := c.awaitSets(0, 1)

	trainers[2].signal(syscall.SIGSTOP) // in a task: the other trainers make steps without it, until a cut waits for it
	up := start(t, "scale", c.dir, c.in("scale", "ps=3")...)
	up.awaitLog("start one with: master pserver")
	servers = append(servers, c.server(shortLease...))
	trainers[2].signal(syscall.SIGCONT)
	up.wantExit(0)
	s, _ := c.awaitSet(3, set)

	for range 3 { // each time with updates that are in no set
		trainers[1].kill()
		trainers[1] = c.counter("b")
		s, _ = c.awaitSet(3, s.Number)
	}

	servers[0].kill() // with a trainer, whose task is part of the same rollback or of the next rollback
	trainers[0].kill()
	servers[0], trainers[0] = c.server(shortLease...), c.counter("a")
	s, _ = c.awaitSet(3, s.Number)

	servers[2].kill() // with the leader, whose successor finds the loss
	m.kill()
	m, servers[2] = master(), c.server(shortLease...)
	s, _ = c.awaitSet(3, s.Number)

	c.requestScale(2)
	epoch := c.layout().Epoch
	eventually(t, "the rollback to two servers", func() (bool, string) { return c.layout().Epoch > epoch, fmt.Sprint(c.layout()) })
	m.kill()
	trainers[1].kill()
	m, trainers[1] = master(), c.counter("b")
	c.awaitSet(2, s.Number)

	c.hurry()
	for _, p := range trainers {
		p.wantExit(0)
	}
	m.wantExit(0)
	c.wantVerified(passes, countedRecords/countedChunk)
	c.wantCounted(passes)
}
