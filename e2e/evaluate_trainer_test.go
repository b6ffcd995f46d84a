package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"trainmaster/internal/freeport"
)

// evaluate begins a round of a trainer by the command.
func (j *job) evaluate(trainer string) {
	j.t.Helper()
	o := run(j.t, j.dir, j.in("trainers", "evaluate", trainer)...)
	o.wants(j.t, 0)
	if !strings.Contains(o.stdout, "an evaluation round of trainer "+trainer+" is requested") {
		j.t.Errorf("evaluate %s: %s", trainer, o.stdout)
	}
}

// awaitRound waits for a round of a trainer, and for its end.
func (j *job) awaitRound(number int, trainer string, ended bool) (e evaluated) {
	j.t.Helper()
	eventually(j.t, fmt.Sprintf("round %d of %q, ended %v", number, trainer, ended), func() (bool, string) {
		var list []evaluated
		o := run(j.t, j.dir, j.in("evaluations", "-o", "json")...)
		o.decode(j.t, &list)
		if len(list) < number {
			return false, o.stdout
		}
		e = list[number-1]
		return e.Trainer == trainer && (e.Ended != nil) == ended, o.stdout
	})
	return e
}

// F227: an operator evaluates the model of one trainer, which serves TrainerControl, takes tasks with its heartbeats, or requests them. The
// leader is killed during a round, and the next leader continues it: each result counts once. A trainer is killed during a round: the round
// ends with the reason, and other rounds follow.
func TestTrainerIsEvaluatedOnCommand(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	flags := []string{"--passes", "100000", "--ps", "1", "--session-ttl", "1h", "--evaluation-data", filepath.Join(j.dir, "data", "digits-0*"), "--evaluate-every", ""}
	master := j.master(flags...)
	j.server()
	addr, err := freeport.Addr("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	a := j.trainer("a", "--record-delay", "10ms", "--control-listen", addr)
	b := j.trainer("b", "--record-delay", "10ms")
	j.trainer("c", "--record-delay", "10ms", "--protocol", "netrpc")
	j.awaitMidPass(1)
	for i, trainer := range []string{"a", "b", "c"} {
		j.evaluate(trainer)
		e := j.awaitRound(i+1, trainer, true)
		if e.Results != tasksPerPass || e.Figures["loss"] <= 0 || e.Figures["accuracy"] <= 0 || e.Model != "" || e.Best {
			t.Errorf("round of %s: %+v", trainer, e)
		}
	}
	for i, trainer := range []struct {
		name    string
		process *process
	}{{"a", a}, {"b", b}} {
		trainer.process.signal(syscall.SIGSTOP)
		j.evaluate(trainer.name)
		j.awaitRound(4+i, trainer.name, false)
		master.kill()
		master = j.master(flags...)
		j.awaitLeader(0)
		trainer.process.signal(syscall.SIGCONT)
		if e := j.awaitRound(4+i, trainer.name, true); e.Results != tasksPerPass || e.Figures["loss"] <= 0 {
			t.Errorf("round of %s at the next leader: %+v", trainer.name, e)
		}
	}
	a.signal(syscall.SIGSTOP)
	j.evaluate("a")
	j.awaitRound(6, "a", false)
	a.kill()
	if e := j.awaitRound(6, "a", true); e.Outcome != "trainer a: it was lost" || len(e.Figures) > 0 {
		t.Errorf("round of a killed trainer: %+v", e)
	}
	if o := run(t, j.dir, j.in("trainers", "evaluate", "a")...); o.code == 0 || !strings.Contains(o.stderr, "no such trainer") {
		t.Errorf("round of a trainer that has gone: exit code %d, %s", o.code, o.stderr)
	}
	run(t, j.dir, j.in("evaluate")...).wants(t, 0)
	if e := j.awaitRound(7, "", true); e.Results != tasksPerPass || !e.Best {
		t.Errorf("round of the job: %+v", e)
	}
	o := run(t, j.dir, j.in("verify")...)
	o.wants(t, 0)
	if !strings.Contains(o.stdout, "Rounds that evaluate one trainer have ended early") {
		t.Errorf("verify: %s", o.stdout)
	}
}

// F227: three trainers in Python evaluate their own models, from the .proto files alone: by TrainerControl, by a command of a heartbeat, and by a
// request. The first two do it during a training task.
func TestPythonTrainersEvaluateTheirModels(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	data := filepath.Join(j.dir, "data", "digits-0*")
	master := j.master("--passes", "3", "--evaluation-data", data, "--evaluate-every", "")
	j.awaitLeader(0)
	if _, err := j.leader(); err != nil {
		t.Fatal(err)
	}
	script, err := filepath.Abs("testdata/evaluating_trainer.py")
	if err != nil {
		t.Fatal(err)
	}
	var out output
	process := pythonCommand(t.Context(), t, script, j.connTo, data)
	process.Stdout, process.Stderr = &out, &out
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all trainers train", func() (bool, string) {
		text := out.String()
		if strings.Contains(text, "Traceback") {
			t.Fatal(text)
		}
		return strings.Contains(text, "trains port") && strings.Contains(text, "trains heartbeat") && strings.Contains(text, "trains request"), text
	})
	for i, trainer := range []string{"request", "heartbeat", "port"} {
		j.evaluate(trainer)
		if e := j.awaitRound(i+1, trainer, true); e.Results != tasksPerPass || e.Figures["loss"] != float64(3-i) {
			t.Errorf("round of %s: %+v", trainer, e)
		}
	}
	if err := process.Wait(); err != nil || strings.Count(out.String(), "REASON_PASSES_DONE") != 3 || strings.Contains(out.String(), "wrong status") {
		t.Fatalf("trainers: %v\n%s", err, out.String())
	}
	for _, trainer := range []string{"port", "heartbeat", "request"} {
		if n := strings.Count(out.String(), "evaluated "+trainer+" "); n != tasksPerPass || strings.Contains(out.String(), " True\n") {
			t.Errorf("%s: expected %d evaluations without a model, found %d\n%s", trainer, tasksPerPass, n, out.String())
		}
	}
	master.wantExit(0)
	run(t, j.dir, j.in("verify")...).wants(t, 0)
}
