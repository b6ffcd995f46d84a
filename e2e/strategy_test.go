package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"trainmaster/internal/tcpproxy"
	"trainmaster/local"
	"trainmaster/master/evaluation/metric"
	"trainmaster/master/rounds"
	"trainmaster/master/strategy"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

// strategyFile writes a strategy file and returns its path.
func strategyFile(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "strategy.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func parseStrategy(t testing.TB, text string) *strategy.Strategy {
	t.Helper()
	s, err := strategy.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// wantHistory replays the transactions of the job: after each of them, etcd has the history that an uninterrupted Decide gives for its steps and
// rounds, and each step has the learning rate of the history. own is the rate of the servers. It returns the number of decisions.
func (j *job) wantHistory(s *strategy.Strategy, own float32) (decisions int) {
	j.t.Helper()
	ctx, cancel := context.WithTimeout(j.t.Context(), time.Minute)
	defer cancel()
	mark, err := j.store.Client().Put(ctx, j.store.Prefix()+"/replayed", "") // the last event of the watch, also if other jobs write later
	if err != nil {
		j.t.Fatal(err)
	}
	last, at := mark.Header.Revision, int64(0)
	var history strategy.History
	var stored []byte
	var step taskqueue.Step
	var ended *strategy.Stats
	next := step
	decide := func(stats strategy.Stats) {
		found, list := s.Decide(1, history, stats)
		history, decisions = found, decisions+len(list)
	}
	end := func() { // of a transaction
		if at == 0 {
			return
		}
		if ended != nil {
			ended.Step = step.Version
			decide(*ended)
		}
		decide(strategy.Stats{Step: step.Version})
		if v, steers := history.Parameters[strategy.LearningRate]; steers && len(next.Contributors) > 0 && next.Version != step.Version {
			if want := float32(v.Value / float64(own)); next.Scale != want {
				j.t.Errorf("version %d: expected the factor %v, found %v", next.Version, want, next.Scale)
			}
		}
		decide(strategy.Stats{Step: next.Version})
		step, ended = next, nil
		if found, _, _ := bytes.Cut(stored, []byte("\n")); !bytes.Equal(found, history.Encode()) {
			j.t.Fatalf("revision %d, step %d: expected the history %s, found %s", at, step.Version, history.Encode(), found)
		}
	}
	for change := range j.store.Client().Watch(ctx, j.store.Prefix()+"/", clientv3.WithPrefix(), clientv3.WithRev(1)) {
		if err := change.Err(); err != nil {
			j.t.Fatal(err)
		}
		for _, event := range change.Events {
			key := strings.TrimPrefix(string(event.Kv.Key), j.store.Prefix())
			if event.Kv.ModRevision == last {
				end()
				return decisions
			}
			if key != taskqueue.StateKey && key != taskqueue.StrategyKey && key != taskqueue.StepKey && !strings.HasPrefix(key, rounds.RecordPrefix) {
				continue
			}
			if event.Kv.ModRevision != at {
				end()
				at = event.Kv.ModRevision
			}
			var rec rounds.Record
			switch {
			case key == taskqueue.StrategyKey:
				stored = event.Kv.Value
			case key == taskqueue.StepKey:
				if next, err = taskqueue.DecodeStep(event.Kv.Value); err != nil {
					j.t.Fatal(err)
				}
			case key != taskqueue.StateKey && event.Type == clientv3.EventTypePut:
				if err := json.Unmarshal(event.Kv.Value, &rec); err != nil {
					j.t.Fatal(err)
				}
				if rec.Ended != nil {
					ended = &strategy.Stats{Round: rec.Round}
					for _, name := range slices.Sorted(maps.Keys(rec.Figures)) {
						ended.Figures = append(ended.Figures, metric.Figure{Name: name, Value: rec.Figures[name]})
					}
				}
			}
		}
	}
	j.t.Fatal("the watch has ended")
	return 0
}

// F219, F220, F221: masters are killed and a server is lost while a strategy runs. The history in etcd equals the history of an uninterrupted Decide,
// and each version is made with its rate.
func TestStrategyOfKilledMasters(t *testing.T) {
	t.Parallel()
	const text = `
hyper-parameters:
  learning-rate: {schedule: cosine, value: 0.1, end: 0.001, steps: 60, warm-up: 10, every: 2}
  dropout: {schedule: plateau, value: 0.5, figure: "loss:max", factor: 0.5, patience: 1}
stop:
  - when: job.step >= 150
`
	j := newJob(t)
	flags := []string{"--passes", "0", "--ps", "2", "--update-mode", "sync", "--checkpoint-every", "300ms", "--strategy", strategyFile(t, text),
		"--evaluation-data", j.data.Test.Paths[0], "--evaluate-every", "20steps"}
	m := j.master(flags...)
	servers := []*process{j.server(shortLease...), j.server(shortLease...)}
	trainers := []*process{j.trainer("a"), j.trainer("b")}
	term := uint64(0)
	for kill := range 3 {
		term = j.awaitLeader(term)
		j.awaitSteps(25)
		if kill == 1 {
			j.awaitSet(2, 0)
			servers[1].kill()
			j.server(shortLease...)
		}
		m.kill()
		m = j.master(flags...)
	}
	for _, p := range append(trainers, m) {
		p.wantExit(0)
	}
	d := j.awaitServer(0, "has parameters", func(d *pb.DescribeReply) bool { return d.LearningRate > 0 })
	if n := j.wantHistory(parseStrategy(t, text), d.LearningRate); n < 30 {
		t.Errorf("expected at least 30 decisions, found %d", n)
	}
	j.says("ended: stopped: job.step >= 150:", "status")
}

// F219: the leader is killed after it has committed a decision, and before a server has received it. The next leader sends it, and decides
// nothing again.
func TestDecisionOfAKilledLeader(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	first := j.master("--ps", "2")
	j.server(shortLease...).awaitLog("parameter server started")
	addr := closedAddr(t)
	proxy, err := tcpproxy.New(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	j.server("--listen", addr, "--advertise", proxy.Addr()).awaitLog("parameter server started")
	j.load(1)
	j.awaitSet(2, 0)
	term := j.awaitLeader(0)
	first.kill()
	proxy.Refuse(true)
	proxy.Cut()
	path := strategyFile(t, "hyper-parameters: {learning-rate: {schedule: constant, value: 0.125}}")
	leader := j.master("--ps", "2", "--strategy", path) // a job without a strategy accepts one
	term = j.awaitLeader(term)
	hasRate := func(d *pb.DescribeReply) bool { return d.LearningRateNumber == 1 && d.LearningRateScale == 0.125 }
	j.awaitServer(0, "has the learning rate", hasRate)
	leader.kill()
	j.master("--ps", "2", "--strategy", path)
	j.awaitLeader(term)
	proxy.Refuse(false)
	j.awaitServer(1, "has the learning rate", hasRate)
	j.awaitServer(0, "has the same change", hasRate)
	j.says("learning-rate 0.125 at step 0, pass 0: constant", "status")
	o := run(t, j.dir, j.in("job", "set", "learning-rate=0.5")...)
	o.wants(t, 1)
	if !strings.Contains(o.stderr, "the strategy of the job has it") {
		t.Errorf("found %s", o.stderr)
	}
}

// A run follows its strategy, and is resumed with the copy in its directory. -o json has the decisions.
func TestStrategyOfARun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "strategy.yaml")
	if err := os.WriteFile(path, []byte("hyper-parameters: {dropout: {schedule: constant, value: 0.5}}\nstop: [{when: accuracy >= 0.9}, {when: job.records > 5e6}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := run(t, dir, "run", "--passes", "200", "--strategy", "strategy.yaml", "-o", "json")
	o.wants(t, 0)
	var r local.Result
	o.decode(t, &r)
	if !strings.HasPrefix(r.Reason, "stopped: accuracy >= 0.9: accuracy is 0.9") || r.Passes >= 200 {
		t.Errorf("found %+v", r)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	run(t, dir, "run", "--resume", r.Dir, "-o", "json").wants(t, 0)
	status := run(t, dir, "status", "--dir", r.Dir, "-o", "json")
	status.wants(t, 0)
	var found struct {
		Strategy struct {
			Parameters []struct{ Name, Reason string }
			Decisions  []struct{ Parameter, Reason string }
		}
	}
	if err := json.Unmarshal([]byte(status.stdout), &found); err != nil {
		t.Fatal(err)
	}
	if s := found.Strategy; fmt.Sprint(s.Parameters) != "[{dropout constant}]" || len(s.Decisions) != 2 || !strings.HasPrefix(s.Decisions[1].Reason, "accuracy >= 0.9: ") {
		t.Errorf("found %+v", s)
	}
}

// F220: the models of two deterministic runs with a schedule of the learning rate are equal. In the second run, the master is killed.
func TestDeterministicRunFollowsItsStrategy(t *testing.T) {
	t.Parallel()
	path := strategyFile(t, "hyper-parameters: {learning-rate: {schedule: cosine, value: 0.1, end: 0.01, steps: 300, warm-up: 30, every: 3}}")
	flags := []string{"--update-mode", "sync", "--deterministic", "--passes", "15", "--strategy", path, "-o", "json"}
	model := func(r local.Result) []byte {
		b, err := os.ReadFile(r.ModelPath)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	o := run(t, t.TempDir(), append([]string{"run"}, flags...)...)
	o.wants(t, 0)
	var one local.Result
	o.decode(t, &one)
	r := startRun(t, flags...)
	for _, c := range r.awaitChildren() {
		if c.kind() == "master" {
			if err := syscall.Kill(c.pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
	other := r.result(0)
	if other.Restarts == 0 || !bytes.Equal(model(one), model(other)) {
		t.Errorf("expected the model of a run without faults, found another one after %d restarts", other.Restarts)
	}
}

// The example of the documentation: a synchronous run with a schedule of the learning rate ends by a rule.
func TestStrategyExample(t *testing.T) {
	t.Parallel()
	path, err := filepath.Abs("../examples/strategy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	o := run(t, t.TempDir(), "run", "--update-mode", "sync", "--passes", "50", "--strategy", path, "-o", "json")
	o.wants(t, 0)
	var r local.Result
	o.decode(t, &r)
	if !strings.HasPrefix(r.Reason, "stopped: ") || r.Passes >= 50 || *r.Accuracy < 0.9 {
		t.Errorf("found %+v", r)
	}
}

// F224: a master with a strategy that the job cannot follow, or with another strategy than the job began with, ends immediately and changes
// nothing.
func TestStrategyThatTheJobCannotFollow(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	for name, c := range map[string]struct {
		file  string
		flags []string
		words string
	}{
		"no YAML":            {"a: [", nil, "strategy.yaml\": invalid strategy: line 1"},
		"steps":              {"hyper-parameters:\n  lr: {schedule: cosine, value: 1, steps: 5}", []string{"--ps", "1"}, "lr: expected no steps and no warm-up with asynchronous parameter servers"},
		"plateau":            {`hyper-parameters: {lr: {schedule: plateau, value: 1, figure: "loss:min", factor: 0.5, patience: 1}}`, nil, "lr: expected --evaluation-data"},
		"figure":             {"stop: [{when: loss < 1}]", nil, "loss < 1: expected --evaluation-data"},
		"negative rate":      {"hyper-parameters:\n  learning-rate: {schedule: constant, value: -1}", nil, "line 2: learning-rate: expected a value above 0"},
		"deterministic":      {`hyper-parameters: {lr: {schedule: plateau, value: 1, figure: "loss:min", factor: 0.5, patience: 1}}`, []string{"--deterministic", "--update-mode", "sync", "--ps", "1", "--evaluation-data", j.data.Test.Paths[0]}, "lr: expected no plateau with --deterministic"},
		"no file":            {"", nil, "no such file"},
		"unknown comparison": {"stop:\n- when: job.step = 1", nil, `line 2: when: expected ">", ">=", "<" or "<=", found "="`},
	} {
		path := strategyFile(t, c.file)
		if c.file == "" {
			path += "-absent"
		}
		o := run(t, j.dir, append(j.in("--listen", "127.0.0.1:0", "--http", "", "--strategy", path), c.flags...)...)
		o.wants(t, 2)
		if !strings.Contains(o.stderr, c.words) {
			t.Errorf("%s: expected %q, found %s", name, c.words, o.stderr)
		}
	}
	path := strategyFile(t, "stop:\n- when: job.step > 10\n- when: job.passes > 10\n")
	j.master("--strategy", path)
	j.awaitLeader(0)
	for words, flags := range map[string][]string{
		"--strategy: expected the strategy file of the job, found none":                                       nil,
		"--strategy: expected the strategy file with which the job began, found another one (line 3 differs)": {"--strategy", strategyFile(t, "stop:\n- when: job.step > 10\n- when: job.passes > 20\n")},
	} {
		o := run(t, j.dir, append(j.in("--listen", "127.0.0.1:0", "--http", "", "--chunks-per-task", "1"), flags...)...)
		o.wants(t, 2)
		if !strings.Contains(o.stderr, words) || !strings.Contains(o.stderr, taskqueue.StrategyFileKey) {
			t.Errorf("expected %q, found %s", words, o.stderr)
		}
	}
}
