package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"trainmaster/internal/freeport"
	"trainmaster/local"
	"trainmaster/master/strategy"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

const populationFile = `
population:
  every: 1pass
  figure: "loss:min"
  hyper-parameters:
    learning-rate: {min: 0.0001, max: 0.5}
`

// members returns the population of a status by trainer.
func members(s *pb.StatusReply) map[string]*pb.PopulationMember {
	byName := map[string]*pb.PopulationMember{}
	for _, m := range s.GetPopulation().GetMembers() {
		byName[m.Trainer] = m
	}
	return byName
}

// awaitOrder waits for a trainer that must receive a model, and has no task with it yet. It returns the trainer and the order.
func (j *job) awaitOrder(after uint64) (id string, order strategy.Order) {
	j.t.Helper()
	ctx, cancel := context.WithTimeout(j.t.Context(), time.Minute)
	defer cancel()
	for change := range j.store.Client().Watch(ctx, j.store.Prefix()+taskqueue.PopulationKey, clientv3.WithRev(1)) {
		if err := change.Err(); err != nil {
			j.t.Fatal(err)
		}
		if id, order = pendingOrder(j.t, change.Events[len(change.Events)-1].Kv.Value); order.Generation > after {
			return id, order
		}
	}
	j.t.Fatalf("expected a decision after generation %d within a minute", after)
	return "", order
}

// pendingOrder returns the newest order of a population that came with no task yet.
func pendingOrder(t testing.TB, value []byte) (id string, order strategy.Order) {
	t.Helper()
	s, err := strategy.DecodePopulation(value)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range s.Members {
		if m.Order != nil && m.Order.Task == nil && m.Order.Generation > order.Generation {
			id, order = m.ID, *m.Order
		}
	}
	return id, order
}

// awaitReplaced waits for a decision of the population after a number of generations, and returns it.
func (j *job) awaitReplaced(after uint64) (last *pb.PopulationDecision) {
	j.t.Helper()
	j.awaitStatus(fmt.Sprintf("a trainer is replaced after generation %d", after), func(s *pb.StatusReply) bool {
		list := s.GetPopulation().GetDecisions()
		if len(list) == 0 {
			return false
		}
		last = list[len(list)-1]
		return last.Generation > after
	})
	return last
}

var (
	sentModel     = regexp.MustCompile(`sending the model to another trainer.*sha256=([0-9a-f]{64})`)
	receivedModel = regexp.MustCompile(`continuing with the model of another trainer.*sha256=([0-9a-f]{64})`)
)

// digests returns the digests of models in the log of a trainer.
func digests(p *process, pattern *regexp.Regexp) (list []string) {
	for _, m := range pattern.FindAllStringSubmatch(p.log(), -1) {
		list = append(list, m[1])
	}
	return list
}

// F253, F254, F255: the leader is killed after each decision of a population and before the receiver has a task with the model. Trainers are killed and
// started again. Each decision takes effect once: the receiver has the bytes that the source has sent, and its values are within the limits.
func TestPopulationOfKilledProcesses(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	flags := []string{"--passes", "0", "--strategy", strategyFile(t, strings.Replace(populationFile, "1pass", "3s", 1)), "--evaluation-data", j.data.Test.Paths[0], "--session-ttl", "5s"}
	m := j.master(flags...)
	trainers := map[string]*process{}
	begin := func(id string) {
		trainers[id] = j.trainer(id, "--own-model", "--control-listen", "127.0.0.1:0", "--record-delay", "15ms")
	}
	for _, id := range []string{"a", "b", "c", "d"} {
		begin(id)
	}
	generation, sent, received, between := uint64(0), map[string]int{}, 0, 0
	collect := func(p *process) {
		for _, d := range digests(p, sentModel) {
			sent[d]++
		}
		received += len(digests(p, receivedModel))
	}
	for range 3 {
		id, d := j.awaitOrder(generation)
		generation = d.Generation
		m.kill() // the receiver trains a task that it had before
		value, _, err := j.store.Value(t.Context(), taskqueue.PopulationKey)
		if err != nil {
			t.Fatal(err)
		}
		if pending, _ := pendingOrder(t, value); pending == id {
			between++
		}
		m = j.master(flags...)
		j.awaitLeader(0)
		s := j.awaitStatus(id+" continues with the model of "+d.From, func(s *pb.StatusReply) bool {
			return members(s)[id].GetFromGeneration() >= generation || members(s)[id].GetNote() != ""
		})
		if got := members(s)[id]; got.From != d.From || got.FromGeneration != generation {
			t.Fatalf("generation %d: expected the model of %s, found %v", generation, d.From, got)
		}
		if !slices.Contains(digests(trainers[d.From], sentModel), last(digests(trainers[id], receivedModel))) {
			t.Errorf("generation %d: %s has received another model than %s has sent", generation, id, d.From)
		}
		for _, m := range s.Population.Members {
			if v := m.Values["learning-rate"]; v < 0.0001 || v > 0.5 {
				t.Errorf("%s has the learning rate %v", m.Trainer, v)
			}
		}
		other := ""
		for _, name := range slices.Sorted(maps.Keys(trainers)) {
			if name != id && name != d.From {
				other = name
			}
		}
		collect(trainers[other])
		trainers[other].kill()
		begin(other)
	}
	for _, p := range trainers {
		collect(p)
	}
	total := 0
	for _, n := range sent {
		total += n
	}
	if received < 3 || received > total || between == 0 {
		t.Errorf("%d models were sent, and %d received; %d of 3 leaders were killed between a decision and its effect", total, received, between)
	}
	run(t, j.dir, j.in("verify")...).wants(t, 0)
}

func last(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[len(list)-1]
}

// F254: the source of a model is killed, or is started again at the same address, after the decision. The receiver keeps its model, and its task does
// not fail. After the end of its session, the task comes without the model.
func TestSourceOfAModelIsKilled(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	j.master("--passes", "0", "--strategy", strategyFile(t, populationFile), "--evaluation-data", j.data.Test.Paths[0], "--session-ttl", "1h")
	trainers, addrs := map[string]*process{}, map[string]string{}
	begin := func(id string) {
		trainers[id] = j.trainer(id, "--own-model", "--control-listen", addrs[id], "--record-delay", "5ms")
	}
	for _, id := range []string{"a", "b"} {
		var err error
		if addrs[id], err = freeport.Addr("127.0.0.1"); err != nil {
			t.Fatal(err)
		}
		begin(id)
	}
	d := j.awaitReplaced(0)
	trainers[d.From].kill()
	// The leader dispatches the model within the grace of the connection, or drops it after the grace.
	s := j.awaitStatus(d.Trainer+" keeps its model", func(s *pb.StatusReply) bool {
		return members(s)[d.Trainer].GetNote() != "" || members(s)[d.Trainer].GetFrom() != ""
	})
	if got := members(s)[d.Trainer]; got.From != "" || !strings.HasPrefix(got.Note, "keeps its model: ") || got.Next != "" {
		t.Errorf("found %v", got)
	}
	begin(d.From)
	second := j.awaitReplaced(d.Generation)
	j.awaitStatus("the next model is received", func(s *pb.StatusReply) bool {
		return slices.ContainsFunc(s.GetPopulation().GetMembers(), func(m *pb.PopulationMember) bool { return m.GetFromGeneration() >= second.Generation })
	})
	for _, p := range trainers {
		if strings.Contains(p.log(), "task failed") {
			t.Errorf("a task has failed:\n%s", p.log())
		}
	}
	o := run(t, j.dir, j.in("verify")...)
	o.wants(t, 0)
}

// A run with a population: the trainers have models of their own, the best trainer saves the model, and the status has the population. A
// resumed run continues.
func TestPopulationOfARun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, err := filepath.Abs("../examples/population.yaml")
	if err != nil {
		t.Fatal(err)
	}
	o := run(t, dir, "run", "--passes", "150", "--trainers", "4", "--strategy", path, "-o", "json")
	o.wants(t, 0)
	var r local.Result
	o.decode(t, &r)
	if *r.Accuracy < 0.9 {
		t.Errorf("found %+v", r)
	}
	status := run(t, dir, "status", "--dir", r.Dir, "-o", "json")
	status.wants(t, 0)
	var found struct {
		Population struct {
			Generation uint64
			Members    []struct {
				Trainer string
				Values  map[string]float64
				Figure  *float64
				Next    string
			}
			Decisions []struct{ Trainer, From, Reason string }
		}
	}
	if err := json.Unmarshal([]byte(status.stdout), &found); err != nil {
		t.Fatal(err)
	}
	p := found.Population
	if len(p.Members) != 4 || len(p.Decisions) == 0 || p.Generation < 2 {
		t.Fatalf("found %+v", p)
	}
	best := 0.0
	for _, m := range p.Members {
		if m.Figure == nil || m.Next != "" || len(m.Values) != 1 {
			t.Errorf("found %+v", m)
			continue
		}
		best = max(best, *m.Figure)
	}
	if best != *r.Accuracy {
		t.Errorf("expected the saved model with the accuracy %v, found %v", best, *r.Accuracy)
	}
	text := run(t, dir, "status", "--dir", r.Dir)
	text.wants(t, 0)
	if !strings.Contains(text.stdout, "by accuracy:max") || !strings.Contains(text.stdout, "learning-rate") {
		t.Errorf("found %s", text.stdout)
	}
	run(t, dir, "run", "--resume", r.Dir, "-o", "json").wants(t, 0)
	run(t, dir, "verify", "--data-dir", r.Dir).wants(t, 0)
}

// F257: a job that cannot have a population is refused at the start, with the setting.
func TestPopulationThatTheJobCannotHave(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	path := strategyFile(t, populationFile)
	data := []string{"--evaluation-data", j.data.Test.Paths[0]}
	for words, flags := range map[string][]string{
		"expected no parameter servers (--ps)":                                     append(data, "--ps", "1"),
		"expected no --update-mode sync":                                           append(data, "--update-mode", "sync"),
		"population: expected --evaluation-data,":                                  nil,
		"--evaluate-every from the command line: expected none with a population":  append(data, "--evaluate-every", "2passes"),
		`--target from the command line: expected none with a population`:          append(data, "--target", "0.5"),
		`--explicit-commit from the command line: expected none`:                   append(data, "--explicit-commit"),
		"--prediction-data from the command line: expected none with a population": append(data, "--prediction-data", j.data.Test.Paths[0]),
	} {
		o := run(t, j.dir, append(j.in("--listen", "127.0.0.1:0", "--http", "", "--strategy", path), flags...)...)
		o.wants(t, 2)
		if !strings.Contains(o.stderr, words) {
			t.Errorf("expected %q, found %s", words, o.stderr)
		}
	}
	for words, args := range map[string][]string{
		"expected no parameter servers (--ps)":                                    {"run", "--ps", "2", "--strategy", path},
		`--best-metric from the command line: expected none with a population`:    {"run", "--best-metric", "accuracy:max", "--strategy", path},
		"--model fm: expected softmax or mlp with a population":                   {"run", "--dataset", "flights", "--strategy", path},
		"--ps, --trainers: expected at least 1 of each":                           {"run", "--ps", "0"},
		`--model from the command line: expected softmax or mlp with --own-model`: {"trainer", "--own-model", "--model", "fm", "--addr", "127.0.0.1:1"},
		"--servers: expected none with --own-model":                               {"trainer", "--own-model", "--servers", "127.0.0.1:1", "--addr", "127.0.0.1:1"},
	} {
		o := run(t, j.dir, args...)
		o.wants(t, 2)
		if !strings.Contains(o.stderr, words) {
			t.Errorf("%v: expected %q, found %s", args, words, o.stderr)
		}
	}
	j.master(append(data, "--strategy", path, "--passes", "0")...)
	j.awaitLeader(0)
	if value, _, err := j.store.Value(t.Context(), taskqueue.StrategyFileKey); err != nil || len(value) == 0 {
		t.Errorf("stored file %q, %v", value, err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

// Trainers in Python take part in a population with the code of docs/population.md. They receive models by both ways, and keep their own model when a
// copy is damaged.
func TestPythonTrainersOfAPopulation(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	file := strings.Replace(populationFile, "1pass", "2s", 1) + "stop: [{when: loss < 0.1}]\n"
	m := j.master("--passes", "0", "--strategy", strategyFile(t, file), "--evaluation-data", j.data.Test.Paths[0])
	j.awaitLeader(0)
	trainers := pythonCommand(t.Context(), t, "testdata/population_trainer.py", j.connTo, filepath.Join(j.dir, "data", "digits-0*"), "../docs/population.md", t.TempDir())
	out, err := trainers.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, line := range []string{
		"receiver kept its model: expected the complete model of the trainer\n", "receiver received the model of port as bytes\n", " received the model of path as str\n",
	} {
		if !strings.Contains(string(out), line) {
			t.Errorf("expected %q, found\n%s", line, out)
		}
	}
	if n := strings.Count(string(out), "ended job finished: stopped: loss < 0.1: loss is 0.05"); n != 3 {
		t.Errorf("expected the end by the rule for each trainer, found\n%s", out)
	}
	m.wantExit(0)
	run(t, j.dir, j.in("verify")...).wants(t, 0)
}
