package e2e

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
)

// The exit codes with --exit-codes pod. A panic of Go has exitPanic, which is none of them.
const (
	exitPodUsage   = 64
	exitPodFailed  = 65
	exitPodAway    = 75
	exitPodStopped = 143
	exitPanic      = 2
)

var inPod = []string{"--exit-codes", "pod"}

// F260: a master, a server and a trainer that are evicted end with 143. The Job of the master is not complete then: the next master
// continues the job, and ends with 0 when all passes are trained.
func TestEvictedMasterDoesNotCompleteTheJob(t *testing.T) {
	t.Parallel()
	const passes = 4
	j := newJob(t)
	flags := []string{"--passes", "4", "--ps", "1", "--exit-codes=pod"}
	first := j.master(flags...)
	term := j.awaitLeader(0)
	server := j.server(inPod...)
	evicted := j.trainer("a", inPod...)
	remains := j.trainer("b", inPod...)
	j.awaitMidPass(2)
	evicted.signal(syscall.SIGTERM)
	evicted.wantExit(exitPodStopped)
	first.signal(syscall.SIGTERM)
	first.wantExit(exitPodStopped)
	second := j.master(flags...)
	j.awaitLeader(term)
	remains.wantExit(0)
	second.wantExit(0)
	server.signal(syscall.SIGTERM)
	server.wantExit(exitPodStopped)
	j.wantExactlyOnce(passes, tasksPerPass)
	j.master(flags...).wantExit(0) // a pod of a job that has ended
}

// A stopped standby has not completed the job. The same applies to processes that are stopped while they wait for etcd.
func TestStoppedStandbyInAPodDoesNotCompleteTheJob(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	j.master(inPod...)
	j.awaitLeader(0)
	standby := j.master(inPod...)
	standby.awaitLog("waiting for the lock")
	standby.signal(syscall.SIGTERM)
	standby.wantExit(exitPodStopped)
	for _, args := range [][]string{{"--listen", "127.0.0.1:0"}, {"pserver"}, {"trainer", "--data", "none"}} {
		p := start(t, "early", j.dir, append(args, "--endpoints", "127.0.0.1:1", "--exit-codes", "pod")...)
		p.awaitLog("etcd does not answer")
		p.signal(syscall.SIGTERM)
		p.wantExit(exitPodStopped)
	}
}

// A failed or incomplete job ends the Job of the master: another pod would end in the same way.
func TestFailedAndIncompleteJobsInAPod(t *testing.T) {
	t.Parallel()
	for name, removed := range map[string]int{"failed": shards, "incomplete": 1} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t)
			flags := []string{"--passes", "2", "--ps", "1", "--task-max-failures", "1", "--exit-codes=pod"}
			m := j.master(flags...)
			j.server()
			trainer := j.trainer("a", inPod...)
			j.awaitMidPass(1)
			for _, path := range j.data.Train.Paths[:removed] {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			}
			want := 0
			if removed == shards {
				want = exitPodFailed
			}
			m.wantExit(exitPodFailed)
			trainer.wantExit(want)
			j.master(flags...).wantExit(exitPodFailed) // the next pod, if there was one
		})
	}
}

// Wrong usage has its own code, also if the command line cannot be read. The environment selects the codes as the flag does.
func TestUsageErrorsInAPod(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, args := range [][]string{
		{"--exit-codes", "pod", "--pases", "3"},
		{"--pases", "3", "--exit-codes=pod"},
		{"--exit-codes=pod", "--ps", "-1"},
		{"pserver", "--exit-codes=pod"},
		{"trainer", "--exit-codes=pod", "--id", "?"},
		{"run", "--exit-codes=pod", "--trainers", "0"},
		{"--exit-codes=pod", "nothing"},
	} {
		run(t, dir, args...).wants(t, exitPodUsage)
	}
	for value, want := range map[string]int{"pod": exitPodUsage, "default": 2, "": 2, "pods": 2} {
		for _, args := range [][]string{{"--pases", "3"}, {"--ps", "-1"}} {
			cmd := command(context.Background(), t, dir, args...)
			cmd.Env = append(cmd.Env, "TRAINMASTER_EXIT_CODES="+value)
			if got := exitCode(cmd.Run()); got != want {
				t.Errorf("TRAINMASTER_EXIT_CODES=%s master %v: exit code %d, expected %d", value, args, got, want)
			}
		}
	}
	run(t, dir, "--exit-codes=default", "--ps", "-1").wants(t, 2)
}

// F285: each process of a job that cannot reach its etcd has the code of a pod that starts again without a charge.
func TestUnreachableEtcdInAPodHasACodeOfItsOwn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, args := range [][]string{
		{"--listen", "127.0.0.1:0", "--http", ""},
		{"pserver"},
		{"trainer", "--data", "none"},
		{"worker", "--", "true"},
	} {
		away := []string{"--endpoints", "127.0.0.1:1", "--store-timeout", "300ms", "--dial-timeout", "100ms"}
		if args[0] == "worker" {
			args = slices.Concat(args[:1], away, []string{"--exit-codes", "pod"}, args[1:])
		} else {
			args = slices.Concat(args, away, inPod)
		}
		run(t, dir, args...).wants(t, exitPodAway)
	}
}

// F359: a master with wrong usage does not fail the Job of another master. Alone, it does. An etcd that does not answer may have another master.
func TestWrongUsageBesideAnotherMaster(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	wrong := func(want int, args ...string) {
		t.Helper()
		run(t, j.dir, append(args, "--exit-codes=pod", "--http", "", "--listen", "127.0.0.1:0")...).wants(t, want)
	}
	other := j.in("--ps", "-1")
	wrong(exitPodUsage, other...)
	wrong(exitPodAway, "--ps", "-1", "--endpoints", "127.0.0.1:1", "--dial-timeout", "100ms")
	leader := j.master("--ps", "2", "--exit-codes=pod")
	j.awaitLeader(0)
	wrong(exitPodAway, other...)
	wrong(exitPodAway, j.in("--ps", "3")...) // found with the state of the job
	wrong(exitPodAway, append(j.in(), "--pases", "3")...)
	wrong(exitPodUsage, "pserver", "--endpoints", j.endpoint, "--ps-ttl", "1ms")
	leader.signal(syscall.SIGTERM)
	leader.wantExit(exitPodStopped)
	wrong(exitPodUsage, other...)
	wrong(exitPodUsage, j.in("--ps", "3")...)
}

// F358: a trainer, a parameter server and an agent of a ring end when no master has led for --leader-timeout, as in a pod whose Job has failed. With the
// next master, they complete the job.
func TestProcessesEndWithoutAMaster(t *testing.T) {
	t.Parallel()
	const passes = 3
	j := newJob(t)
	limit := []string{"--leader-timeout", "15s", "--exit-codes=pod"}
	flags := []string{"--passes", "3", "--ps", "1", "--ring", "1"}
	first := j.master(flags...)
	term := j.awaitLeader(0)
	agent := func() *process {
		return start(t, "agent", j.dir, slices.Concat(j.in("worker", "--id", "agent"), limit, []string{"--", "sleep", "1000"})...)
	}
	server, trainer, worker := j.server(limit...), j.trainer("a", limit...), agent()
	j.awaitMidPass(1)
	first.kill()
	second := j.master(flags...)
	term = j.awaitLeader(term)
	j.awaitMidPass(2)
	second.kill()
	for _, p := range []*process{trainer, server, worker} {
		p.awaitLog("no master leads: expected a leader in etcd within 15s (--leader-timeout)")
		p.wantExit(exitPodAway)
	}
	third := j.master(flags...)
	j.awaitLeader(term)
	server, trainer = j.server(limit...), j.trainer("a", limit...)
	trainer.wantExit(0)
	third.wantExit(0)
	server.signal(syscall.SIGTERM)
	server.wantExit(exitPodStopped)
	j.wantExactlyOnce(passes, tasksPerPass)
}

// A panic of Go ends a process with 2, which is no code of --exit-codes pod. SIGQUIT ends it in the same way.
func TestPanicInAPodHasACodeOfItsOwn(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	m := j.master(inPod...)
	j.awaitLeader(0)
	m.signal(syscall.SIGQUIT)
	m.wantExit(exitPanic)
}

// A run in a pod is stopped, and ends with the code of a stop. A run whose trainers cannot run has failed.
func TestRunInAPod(t *testing.T) {
	t.Parallel()
	r := startRun(t, "--passes", "500", "--exit-codes=pod")
	r.signal(syscall.SIGTERM)
	r.wantExit(exitPodStopped)
	failing, err := exec.LookPath("false")
	if err != nil {
		t.Fatal(err)
	}
	j := newJob(t)
	run(t, t.TempDir(), "run", "--exit-codes=pod", "--data", j.data.Train.Paths[0], "--", failing).wants(t, exitPodFailed)
	run(t, t.TempDir(), "run", "--data", j.data.Train.Paths[0], "--", failing).wants(t, 1)
}
