package sim

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"trainmaster/master/evaluation/metric"
	"trainmaster/master/rounds"
	"trainmaster/master/strategy"
	"trainmaster/taskqueue"
)

// Histories with a strategy: half of the histories of synchronous steps, and of evaluation. After each commit, etcd has the history that
// [strategy.Strategy.Decide] gives for the committed steps and rounds, as if no process had died.

const (
	stepStrategy = `
hyper-parameters:
  learning-rate: {schedule: step, value: 0.4, steps: 3, factor: 0.5, every: 2, warm-up: 4, least: 0.01}
  dropout: {schedule: cosine, value: 0.5, steps: 9, every: 3}
`
	roundStrategy = `
hyper-parameters:
  dropout: {schedule: plateau, value: 0.5, figure: "tasks:max", factor: 0.5, patience: 1}
`
	serverRate = 0.8 // with which the servers were started
)

// follow selects a strategy, if the history has steps or rounds to follow. It draws no random number: the faults of a seed stay the same.
func (p *plan) follow() {
	file := roundStrategy
	switch {
	case p.sync:
		file = stepStrategy
	case p.heldOut == 0 || p.population != nil:
		return
	}
	parsed, err := strategy.Parse([]byte(file))
	if err != nil {
		panic(err)
	}
	p.strategy, p.options.Strategy = parsed, parsed.OfJob([]byte(file), p.sync)
}

// ownRate returns the learning rate of a server. It is not known before the server has parameters.
func (p *plan) ownRate(isReady bool) float32 {
	if !isReady {
		return 0
	}
	return serverRate
}

// strategyBook has the history of the strategy that the commits must have.
type strategyBook struct {
	history   strategy.History
	step      uint64                      // before the commit
	ended     map[uint64]bool             // rounds that have ended
	values    map[string]map[float64]bool // that were committed
	decisions int
	inherited int // decisions by rounds or steps of an earlier term
	term      int64
}

// before notes the step before a commit.
func (b *strategyBook) before(w *world) { b.step = w.check.stepBook.last.version }

// written checks the history that a commit leaves, and the learning rate of its step.
func (b *strategyBook) written(w *world, req *pb.TxnRequest, clock taskqueue.Clock) {
	if w.plan.strategy == nil || w.check.over() { // after the end of the job, nothing is decided
		return
	}
	if b.ended == nil {
		b.ended, b.values = map[uint64]bool{}, map[string]map[float64]bool{}
	}
	decide := func(stats strategy.Stats) {
		next, decisions := w.plan.strategy.Decide(clock, b.history, stats)
		b.history = next
		b.decisions += len(decisions)
		if len(decisions) > 0 && b.term != 0 && b.term != w.check.last {
			b.inherited++
		}
		for name, v := range next.Parameters {
			if b.values[name] == nil {
				b.values[name] = map[float64]bool{}
			}
			b.values[name][v.Value] = true
		}
	}
	for _, op := range req.Success[1:] {
		p := op.GetRequestPut()
		var rec rounds.Record
		if p == nil || !strings.HasPrefix(string(p.Key), rounds.RecordPrefix) || json.Unmarshal(p.Value, &rec) != nil || rec.Ended == nil || b.ended[rec.Round] {
			continue
		}
		b.ended[rec.Round] = true
		if rec.SetAside > 0 { // figures of a part of the data
			continue
		}
		stats := strategy.Stats{Round: rec.Round, Step: b.step}
		for _, name := range slices.Sorted(maps.Keys(rec.Figures)) {
			stats.Figures = append(stats.Figures, metric.Figure{Name: name, Value: rec.Figures[name]})
		}
		decide(stats)
	}
	decide(strategy.Stats{Step: b.step})
	decide(strategy.Stats{Step: w.check.stepBook.last.version})
	b.term = w.check.last
	if found, _, _ := bytes.Cut(w.etcd.keys[taskqueue.StrategyKey].GetValue(), []byte("\n")); !bytes.Equal(found, b.history.Encode()) {
		w.breaks("etcd has the history of the strategy", "expected %s, found %s", b.history.Encode(), found)
	}
	b.rated(w, req)
}

// rated checks that a step has the learning rate of the strategy.
func (b *strategyBook) rated(w *world, req *pb.TxnRequest) {
	schedule, ok := w.plan.strategy.Schedules[strategy.LearningRate]
	if !ok {
		return
	}
	alone := strategy.Strategy{Schedules: map[string]strategy.Schedule{strategy.LearningRate: schedule}}
	for _, op := range req.Success[1:] {
		if p := op.GetRequestPut(); string(p.GetKey()) == taskqueue.StepKey {
			step, err := taskqueue.DecodeStep(p.Value)
			if err != nil || len(step.Contributors) == 0 {
				continue
			}
			_, decisions := alone.Decide(1, strategy.History{}, strategy.Stats{Step: step.Version - 1})
			if want := float32(decisions[0].Value / float64(float32(serverRate))); step.Scale != want {
				w.breaks("a version has the learning rate of the strategy", "version %d: expected the factor %v, found %v", step.Version, want, step.Scale)
			}
		}
	}
}

// answered checks the hyper-parameters of a task: the trainer has no value that was not committed.
func (b *strategyBook) answered(w *world, a taskqueue.Answer) {
	if w.plan.strategy == nil || a.Token.Kind != taskqueue.Training {
		return
	}
	if len(a.HyperParameters) != 1 {
		w.breaks("a task has the hyper-parameters of the strategy", "found %v", a.HyperParameters)
	}
	for name, v := range a.HyperParameters {
		if !b.values[name][v] {
			w.breaks("no effect before its commit", "a trainer receives %s %v, etcd had %v", name, v, b.values[name])
		}
	}
}
