package strategy_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"trainmaster/master/evaluation/metric"
	"trainmaster/master/strategy"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

// job is the queue of a job with a strategy, and a trainer.
type job struct {
	t       testing.TB
	opt     taskqueue.Options
	table   *taskqueue.Table
	q       *taskqueue.Queue
	seq     uint64
	trainer taskqueue.Answer
	held    []taskqueue.Token

	last   taskqueue.Ready
	stored map[string][]byte // by key
	state  *taskqueue.Snapshot
}

// newJob begins a job. Its dataset has 4 tasks of 10 records each, and 100 passes.
func newJob(t testing.TB, file string, servers bool, opt taskqueue.Options) *job {
	t.Helper()
	j := newJobOf(t, 4, file, servers, opt)
	j.trainer = j.apply(&taskqueue.Join{ID: "a"})
	return j
}

// newJobOf begins a job of a number of tasks, without trainers.
func newJobOf(t testing.TB, tasks int, file string, servers bool, opt taskqueue.Options) *job {
	t.Helper()
	if file != "" {
		parsed, err := strategy.Parse([]byte(file))
		if err != nil {
			t.Fatal(err)
		}
		opt.Strategy = parsed.OfJob([]byte(file), servers)
	}
	opt.Passes = 100
	j := &job{t: t, opt: opt, q: taskqueue.New("job", [16]byte{1}, 1, opt), stored: map[string][]byte{}}
	j.must(j.q.RestoreStep(nil))
	j.must(errors.Join(j.q.RestoreStrategy(nil, nil), j.q.RestorePopulation(nil)))
	j.commit()
	j.table = taskqueue.NewTable(tasks)
	chunks := make([]recordio.Index, tasks)
	offset := int64(0)
	for i := range chunks {
		chunks[i] = recordio.Index{Offset: offset, Size: 100, Records: 10, Layout: recordio.First}
		offset = chunks[i].End()
	}
	j.must(j.table.Add(taskqueue.File{Path: "/data/a", Size: offset}, chunks))
	j.table.Group(1)
	j.apply(&taskqueue.Report{Digest: [32]byte{1}, ReportID: "r", Parts: 1, Table: j.table})
	return j
}

func (j *job) must(err error) {
	j.t.Helper()
	if err != nil {
		j.t.Fatal(err)
	}
}

// commit ends a batch and stores it.
func (j *job) commit() {
	j.last = j.q.Ready()
	for _, w := range j.last.Writes {
		j.stored[w.Key] = w.Value
	}
	if j.last.MustCommit {
		j.state = j.q.Snapshot(1, 1)
	}
}

// try applies an event and commits it.
func (j *job) try(ev taskqueue.Event) taskqueue.Answer {
	a := j.q.Apply(j.q.Clock()+10, ev)
	j.commit()
	return a
}

func (j *job) apply(ev taskqueue.Event) taskqueue.Answer {
	j.t.Helper()
	a := j.try(ev)
	j.must(a.Err)
	return a
}

// restart continues from the stored state.
func (j *job) restart() {
	j.t.Helper()
	roster := map[string][]byte{}
	for key, value := range j.stored {
		if id, ok := strings.CutPrefix(key, taskqueue.RosterPrefix); ok {
			roster[id] = value
		}
	}
	q, err := taskqueue.Restore(j.state, roster, []*taskqueue.Table{j.table}, j.opt)
	j.must(err)
	j.must(errors.Join(q.RestoreStep(j.stored[taskqueue.StepKey]), q.RestoreStrategy(j.stored[taskqueue.StrategyKey], j.stored[taskqueue.StatisticsKey])))
	j.must(q.RestorePopulation(j.stored[taskqueue.PopulationKey]))
	j.q = q
}

// ask reports results and takes a task.
func (j *job) ask(finished ...taskqueue.Result) taskqueue.Answer {
	j.seq++
	for _, r := range finished {
		j.held = slices.DeleteFunc(j.held, func(t taskqueue.Token) bool { return t == r.Token })
	}
	a := j.try(&taskqueue.Request{
		Trainer: j.trainer.Ordinal, Incarnation: j.trainer.Incarnation, Seq: j.seq, Ack: j.seq, Held: j.held, Finished: finished, Want: true, Epoch: 1,
	})
	if a.Kind == taskqueue.AnswerTask {
		j.held = append(j.held, a.Token)
	}
	return a
}

// step makes a synchronous step, and returns the last step.
func (j *job) step() taskqueue.Step {
	j.t.Helper()
	last, _ := j.q.SyncStep()
	j.apply(&taskqueue.StageGradients{By: taskqueue.Contributor{Ordinal: j.trainer.Ordinal, Incarnation: j.trainer.Incarnation, Records: 1}, Version: last.Version, Epoch: 1})
	last, _ = j.q.SyncStep()
	return last
}

// history returns the stored history.
func (j *job) history() strategy.History {
	j.t.Helper()
	s, err := strategy.DecodeState(j.stored[taskqueue.StrategyKey])
	j.must(err)
	return s.History
}

const rates = `
hyper-parameters:
  learning-rate: {schedule: step, value: 0.4, steps: 10, factor: 0.8, every: 10, warm-up: 20, least: 0.0001}
  dropout: {schedule: cosine, value: 0.5, steps: 40, every: 10}
`

// F220: each version is made with the rate of the schedule, also after restarts and when it is made again. No version is made before the own
// rate of the servers is known.
func TestVersionHasTheRateOfItsStep(t *testing.T) {
	j := newJob(t, rates, true, taskqueue.Options{Sync: true})
	j.ask()
	if s := j.step(); s.Version != 0 || !j.q.AwaitsRate() {
		t.Fatalf("expected no step without the rate of the servers, found %+v", s)
	}
	if a := j.try(&taskqueue.OwnRate{Rate: 0}); !errors.Is(a.Err, taskqueue.ErrBadSetting) {
		t.Errorf("expected %v, found %v", taskqueue.ErrBadSetting, a.Err)
	}
	j.apply(&taskqueue.OwnRate{Rate: 0.8}) // the gradients of the first step are staged
	parsed, err := strategy.Parse([]byte(rates))
	j.must(err)
	made := map[uint64]float32{}
	for i := range 120 {
		if i == 60 { // a rollback
			j.must(j.q.RestoreStep(taskqueue.Step{Version: 15, Epoch: 1}.Encode()))
		}
		if i%7 == 3 {
			j.restart()
		}
		s, _ := j.q.SyncStep()
		if s.Version != 15 || s.Scale != 0 {
			_, decisions := parsed.Decide(1, strategy.History{}, strategy.Stats{Step: s.Version - 1})
			if want := float32(decisions[1].Value / float64(float32(0.8))); s.Scale != want {
				t.Fatalf("version %d: expected the factor %v, found %v", s.Version, want, s.Scale)
			}
			if before, again := made[s.Version]; again && before != s.Scale {
				t.Errorf("version %d: made with the factor %v, and again with %v", s.Version, before, s.Scale)
			}
			made[s.Version] = s.Scale
		}
		j.step()
	}
	if len(j.state.Rates) != 1 {
		t.Errorf("expected one rate in the state, found %d", len(j.state.Rates))
	}
}

// F219: a decision is in the transaction of the step that it follows, with its reason and its effect.
func TestDecisionIsStoredWithItsStep(t *testing.T) {
	j := newJob(t, rates, true, taskqueue.Options{Sync: true})
	if file := j.stored[taskqueue.StrategyFileKey]; string(file) != rates {
		t.Errorf("stored file %q", file)
	}
	j.apply(&taskqueue.OwnRate{Rate: 1})
	j.ask()
	for range 9 {
		j.step()
	}
	before := j.stored[taskqueue.StrategyKey]
	if s := j.step(); s.Version != 10 {
		t.Fatalf("found %+v", s)
	}
	keys := map[string]bool{}
	for _, w := range j.last.Writes {
		keys[w.Key] = true
	}
	if !keys[taskqueue.StepKey] || !keys[taskqueue.StrategyKey] || len(j.state.Rates) != 1 || j.state.Rates[0].From != 11 {
		t.Errorf("expected step 10 with the rate of version 11, found the keys %v and the rates %+v", keys, j.state.Rates)
	}
	after, err := strategy.DecodeState(j.stored[taskqueue.StrategyKey])
	j.must(err)
	if len(after.Notes.Decisions) == 0 {
		t.Fatal("expected decisions, found none")
	}
	d := after.Notes.Decisions[len(after.Notes.Decisions)-1]
	if d.Parameter != strategy.LearningRate || d.Step != 10 || d.Reason != "warm-up: step 10 of 20" || bytes.Equal(before, j.stored[taskqueue.StrategyKey]) {
		t.Errorf("found %+v", d)
	}
	for range 400 {
		j.step()
	}
	if s, err := strategy.DecodeState(j.stored[taskqueue.StrategyKey]); err != nil || len(s.Notes.Decisions) != strategy.KeptDecisions {
		t.Errorf("expected %d decisions, found %d, %v", strategy.KeptDecisions, len(s.Notes.Decisions), err)
	}
	o := j.q.Overview().Strategy
	if len(o.Parameters) != 2 || o.Parameters[0] != (taskqueue.HyperParameter{Name: "dropout", Value: 0, Reason: "cosine: step 40 of 40"}) {
		t.Errorf("found %+v", o)
	}
}

// F221: each round counts once, also if the leader is replaced. The stored history is that of Decide without a master.
func TestRoundCountsOnceInTheHistory(t *testing.T) {
	const file = `
hyper-parameters:
  dropout: {schedule: plateau, value: 0.5, figure: "loss:min", factor: 0.5, patience: 2}
stop: [{when: "accuracy > 0.9"}]
`
	j := newJob(t, file, false, taskqueue.Options{})
	parsed, err := strategy.Parse([]byte(file))
	j.must(err)
	want, _ := parsed.Decide(1, strategy.History{}, strategy.Stats{})
	for i, loss := range []float64{1, 0.5, 0.6, 0.7, 0.8, 0.9, 0.4, math.Inf(1)} {
		ended := &taskqueue.EndedRound{Number: uint64(i + 1), Figures: map[string]float64{"loss": loss, "accuracy": 0.5}}
		stats := strategy.Stats{Round: ended.Number, Figures: []metric.Figure{{Name: "loss", Value: loss}}}
		if math.IsInf(loss, 1) { // no figures
			ended.Figures, stats.Figures = nil, nil
		}
		ev := &taskqueue.StoreKeys{Writes: []taskqueue.Write{{Key: "/evaluation", Value: []byte{1}}}, Ended: ended}
		j.q.Apply(2, ev) // the store refuses this one
		j.restart()
		j.apply(ev)
		j.restart()
		j.ask()
		want, _ = parsed.Decide(1, want, stats)
		if found := j.history(); !bytes.Equal(found.Encode(), want.Encode()) {
			t.Fatalf("round %d: expected %s, found %s", ended.Number, want.Encode(), found.Encode())
		}
	}
	if v := want.Parameters["dropout"]; v.Value != 0.125 || v.Reductions != 2 {
		t.Errorf("found %+v", v)
	}
	j.apply(&taskqueue.StoreKeys{Ended: &taskqueue.EndedRound{Number: 9, Figures: map[string]float64{"accuracy": 0.95}}})
	if status, reason := j.q.Status(); status != taskqueue.Ended || reason != "stopped: accuracy > 0.9: accuracy is 0.95" {
		t.Errorf("found %v, %q", status, reason)
	}
}

func TestRuleEndsTheJobOnce(t *testing.T) {
	j := newJob(t, `stop: [{when: "job.passes >= 2"}, {when: "job.records >= 30"}]`, false, taskqueue.Options{})
	a := j.ask()
	for range 3 {
		a = j.ask(taskqueue.Result{Token: a.Token})
	}
	if a.Kind != taskqueue.AnswerEnded || a.Reason != "stopped: job.records >= 30: job.records is 30" {
		t.Errorf("found %+v", a)
	}
	found := j.stored[taskqueue.StrategyKey]
	j.restart()
	j.try(&taskqueue.Tick{})
	if !bytes.Equal(found, j.stored[taskqueue.StrategyKey]) {
		t.Errorf("expected no decision after the end, found %s", j.stored[taskqueue.StrategyKey])
	}
}

// F223: statistics are of counted finishes, once each.
func TestStatisticsOfCountedFinishes(t *testing.T) {
	j := newJob(t, `stop: [{when: "job.records > 1e9"}]`, false, taskqueue.Options{})
	first := j.ask()
	stats := taskqueue.RunStats{Records: 8, Seconds: 2, PeakMemory: 100, GPUUtilization: 0.5}
	second := j.ask(taskqueue.Result{Token: first.Token, Stats: stats})
	want := `{"records":8,"timed":8,"seconds":2,"peak_memory":100,"gpu_seconds":2,"gpu_busy_s":1}`
	if found := string(j.stored[taskqueue.StatisticsKey]); found != want {
		t.Errorf("expected %s, found %s", want, found)
	}
	j.ask(taskqueue.Result{Token: first.Token, Stats: stats})  // a repetition
	j.ask(taskqueue.Result{Token: second.Token, Error: "bad"}) // no finish
	if found := string(j.stored[taskqueue.StatisticsKey]); found != want {
		t.Errorf("expected %s, found %s", want, found)
	}
	j.restart()
	j.ask(taskqueue.Result{Token: j.held[0], Stats: taskqueue.RunStats{Records: -1, Seconds: math.MaxFloat64, PeakMemory: 50, GPUUtilization: 60}})
	want = `{"records":18,"timed":8,"seconds":1000000002,"peak_memory":100,"gpu_seconds":1000000002,"gpu_busy_s":1000000001}`
	if found := string(j.stored[taskqueue.StatisticsKey]); found != want {
		t.Errorf("expected %s, found %s", want, found)
	}
	// Without a rule about them, no bytes are stored.
	j = newJob(t, `stop: [{when: "job.step > 1e9"}]`, false, taskqueue.Options{})
	task := j.ask()
	j.ask(taskqueue.Result{Token: task.Token, Stats: stats})
	if found := j.stored[taskqueue.StatisticsKey]; found != nil {
		t.Errorf("found %s", found)
	}
}

// A statistic that no trainer has reported fulfills no condition.
func TestStatisticWithoutAValueEndsNothing(t *testing.T) {
	j := newJob(t, `stop: [{when: "job.records-per-second < 1e9"}, {when: "job.gpu-utilization <= 1"}, {when: "job.peak-memory-bytes < 1e18"}]`, false, taskqueue.Options{})
	task := j.ask()
	task = j.ask(taskqueue.Result{Token: task.Token, Stats: taskqueue.RunStats{Records: 4}})
	if status, reason := j.q.Status(); status != taskqueue.Running {
		t.Fatalf("found %v, %s", status, reason)
	}
	j.ask(taskqueue.Result{Token: task.Token, Stats: taskqueue.RunStats{Records: 4, Seconds: 8}})
	if _, reason := j.q.Status(); reason != "stopped: job.records-per-second < 1e+09: job.records-per-second is 0.5" {
		t.Errorf("found %q", reason)
	}
}

// A rule about the job clock holds without any other change.
func TestRuleAboutTheClock(t *testing.T) {
	j := newJob(t, `stop: [{when: "job.seconds >= 2"}]`, false, taskqueue.Options{})
	for _, now := range []taskqueue.Clock{1500, 1990, 2000} {
		if status, reason := j.q.Status(); status != taskqueue.Running {
			t.Fatalf("before %d: found %v, %s", now, status, reason)
		}
		j.q.Apply(now, &taskqueue.Tick{})
		j.commit()
	}
	if _, reason := j.q.Status(); reason != "stopped: job.seconds >= 2: job.seconds is 2" || !j.last.MustCommit {
		t.Errorf("found %q", reason)
	}
}

// F222: the servers have the learning rate, or the trainers, and a command does not change it.
func TestLearningRateHasOneOwner(t *testing.T) {
	for _, servers := range []bool{true, false} {
		j := newJob(t, rates, servers, taskqueue.Options{})
		want := map[string]float64{"dropout": 0.5}
		if !servers {
			want[strategy.LearningRate] = 0.2
		}
		if a := j.ask(); a.Kind != taskqueue.AnswerTask || !maps.Equal(a.HyperParameters, want) {
			t.Errorf("servers %v: expected %v, found %v", servers, want, a.HyperParameters)
		}
		a := j.try(&taskqueue.SetJob{Scale: 0.5, Rate: 0.5})
		if refused := errors.Is(a.Err, taskqueue.ErrBadSetting) && strings.Contains(a.Err.Error(), "the strategy of the job has it"); refused != servers {
			t.Errorf("servers %v: found %v", servers, a.Err)
		}
		if !servers {
			continue
		}
		j.apply(&taskqueue.OwnRate{Rate: 0.4})
		rate := taskqueue.RateChange{Number: 1, Scale: 0.5, Rate: 0.2}
		if !slices.Contains(j.last.Effects, taskqueue.Effect(taskqueue.RateChanged{RateChange: rate})) {
			t.Errorf("expected the effect of %+v, found %+v", rate, j.last.Effects)
		}
		j.apply(&taskqueue.OwnRate{Rate: 4}) // of an earlier question
		if found := j.q.LearningRate(); found != rate {
			t.Errorf("expected %+v, found %+v", rate, found)
		}
		j.restart()
		if !slices.Contains(j.q.Outstanding(), taskqueue.Effect(taskqueue.RateChanged{RateChange: rate})) {
			t.Errorf("next term: expected the effect of %+v", rate)
		}
	}
}

// A learning rate of 0 is nearly 0 at the servers: a factor of 0 means that there is none.
func TestLearningRateOfZero(t *testing.T) {
	j := newJob(t, `hyper-parameters: {learning-rate: {schedule: cosine, value: 1, steps: 1, every: 1}}`, true, taskqueue.Options{Sync: true})
	j.apply(&taskqueue.OwnRate{Rate: 1})
	j.ask()
	j.step()
	if s := j.step(); s.Version != 2 || !(s.Scale > 0) || s.Scale > 1e-19 {
		t.Errorf("found %+v", s)
	}
}

// Without a strategy, nothing is stored and trainers receive nothing.
func TestJobWithoutStrategy(t *testing.T) {
	j := newJob(t, "", true, taskqueue.Options{})
	a := j.ask()
	j.ask(taskqueue.Result{Token: a.Token, Stats: taskqueue.RunStats{Records: 3}})
	for key := range j.stored {
		if strings.HasPrefix(key, taskqueue.StrategyKey) {
			t.Errorf("stored %s", key)
		}
	}
	if a.HyperParameters != nil || j.q.Overview().Strategy != nil || j.q.AwaitsRate() {
		t.Errorf("found %+v", a)
	}
}

func TestDecodeStateRefusesOtherBytes(t *testing.T) {
	for text, words := range map[string]string{
		`{"format":1}`: "a line feed", "x\n{}": "invalid", "{\"format\":1}\nx": "notes", "{\"format\":1}\n{\"own_rate\":-1}": "above 0", "{\"format\":2}\n{}": "at most 1",
	} {
		if _, err := strategy.DecodeState([]byte(text)); !errors.Is(err, strategy.ErrDamaged) || !strings.Contains(err.Error(), words) {
			t.Errorf("%q: expected %q, found %v", text, words, err)
		}
	}
	parsed, err := strategy.Parse([]byte(rates))
	if err != nil {
		t.Fatal(err)
	}
	q := taskqueue.New("job", [16]byte{1}, 1, taskqueue.Options{Strategy: parsed.OfJob(nil, true)})
	if err := q.RestoreStrategy([]byte("x"), nil); !errors.Is(err, taskqueue.ErrDamaged) || !strings.Contains(err.Error(), taskqueue.StrategyKey) {
		t.Errorf("found %v", err)
	}
	if err := q.RestoreStrategy(nil, []byte("x")); !errors.Is(err, taskqueue.ErrDamaged) || !strings.Contains(err.Error(), taskqueue.StatisticsKey) {
		t.Errorf("found %v", err)
	}
}

func FuzzDecodeState(f *testing.F) {
	f.Add([]byte("{\"format\":1,\"round\":3,\"parameters\":{\"a\":{\"value\":0.5}}}\n{\"own_rate\":0.5,\"reasons\":{\"a\":\"constant\"}}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := strategy.DecodeState(b)
		if err != nil {
			return
		}
		again, err := strategy.DecodeState(s.Encode())
		if err != nil || fmt.Sprint(again.History) != fmt.Sprint(s.History) {
			t.Fatalf("%v, %v", again, err)
		}
	})
}

func BenchmarkObserve(b *testing.B) {
	parsed, err := strategy.Parse([]byte(rates + "stop: [{when: 'job.step > 1e9'}, {when: 'accuracy > 0.9'}]"))
	if err != nil {
		b.Fatal(err)
	}
	s, err := parsed.OfJob(nil, true).Begin(nil)
	if err != nil {
		b.Fatal(err)
	}
	s, _, _ = s.Observe(taskqueue.Observation{})
	b.ReportAllocs()
	for b.Loop() {
		s, _, _ = s.Observe(taskqueue.Observation{Step: 3})
	}
}

func TestLearningRateIsAboveZero(t *testing.T) {
	for _, text := range []string{"constant, value: -1", "cosine, value: 1, steps: 5, end: -1", "step, value: 1e7, steps: 5, factor: 0.5"} {
		_, err := strategy.Parse([]byte("hyper-parameters:\n  learning-rate: {schedule: " + text + "}"))
		if !errors.Is(err, strategy.ErrBadFile) || !strings.Contains(err.Error(), "line 2: learning-rate: expected a value above 0") {
			t.Errorf("%s: found %v", text, err)
		}
	}
}
