package e2e

import (
	"regexp"
	"syscall"
	"testing"
	"time"

	pb "trainmaster/proto/trainmaster/v1"
)

// member starts a trainer of the ring.
func (j *job) member(id string, args ...string) *process {
	j.t.Helper()
	return j.trainer(id, append([]string{"--model", "mlp", "--distribution-strategy", "allreduce"}, args...)...)
}

// finalModel is the line of a member at the end of the job: version and digest of its parameters.
var finalModel = regexp.MustCompile(`msg="job ended".* sha256=([0-9a-f]{64}) .*version=(\d+)`)

// wantSameModel fails the test unless all members have ended with the same version and the same parameters, bit by bit.
func wantSameModel(t *testing.T, members ...*process) {
	t.Helper()
	want := ""
	for _, p := range members {
		found := finalModel.FindStringSubmatch(p.log())
		if found == nil {
			t.Errorf("%s has not logged its model at the end: %s", p.name, tail(p.log(), 10))
			continue
		}
		model := found[2] + " " + found[1]
		if want == "" {
			want = model
		}
		if model != want {
			t.Errorf("%s ends with version and parameters %s, expected %s", p.name, model, want)
		}
	}
}

// awaitProgress waits until more tasks are counted.
func (j *job) awaitProgress(what string) {
	j.t.Helper()
	counted := func(s *pb.StatusReply) uint64 {
		if len(s.Datasets) == 0 {
			return 0
		}
		return uint64(s.Datasets[0].Pass)*tasksPerPass + s.Datasets[0].Done
	}
	before := counted(j.awaitStatus("a status", func(*pb.StatusReply) bool { return true }))
	j.awaitSlowStatus(60*time.Second, what, func(s *pb.StatusReply) bool { return counted(s) > before+2 })
}

// F333, F334: trainers without parameter servers add their gradients. One is killed and another starts, one hangs and returns, and the leader is killed. Each
// task is counted once, and all trainers end with the same parameters and the accuracy of a job with parameter servers.
func TestAllReduceTrainsThroughFaults(t *testing.T) {
	t.Parallel()
	const passes = 24
	j := newJob(t)
	flags := []string{"--passes", "24", "--ring", "2:4", "--ring-window", "500ms"}
	first := j.master(flags...)
	term := j.awaitLeader(0)
	second := j.master(flags...)
	a, b, c, d := j.member("a"), j.member("b"), j.member("c"), j.member("d")

	j.awaitMidPass(2)
	b.kill()
	e := j.member("e")
	j.awaitProgress("the ring continues without b")
	e.awaitLog("state agreed")

	j.awaitMidPass(6)
	c.signal(syscall.SIGSTOP)
	j.awaitProgress("the ring continues without c, which is silent")
	c.signal(syscall.SIGCONT)

	first.kill()
	j.awaitLeader(term)
	j.awaitProgress("the ring continues with another leader")

	for _, p := range []*process{a, c, d, e} {
		p.wantExit(0)
	}
	second.wantExit(0)
	wantSameModel(t, a, d, e)
	j.wantExactlyOnce(passes, tasksPerPass)
	j.wantAccuracy(0.95)
}

// F336: a trainer with another model or optimizer ends with an error that names both settings. The others continue.
func TestAllReduceRefusesOtherSettings(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	master := j.master("--passes", "3", "--ring", "1:3", "--ring-window", "100ms")
	a := j.member("a")
	j.awaitMidPass(1)
	other := j.member("other", "--learning-rate", "0.5")
	other.wantExit(1)
	other.awaitLog("settings of the training: expected the settings of member")
	a.wantExit(0)
	master.wantExit(0)
	j.wantExactlyOnce(3, tasksPerPass)
}
