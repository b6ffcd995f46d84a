package rounds_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/component"
	"trainmaster/master/evaluation"
	"trainmaster/master/evaluation/metric"
	"trainmaster/master/mastertest"
	"trainmaster/master/rounds"
	"trainmaster/master/strategy"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

// heldOut writes a file of n chunks with one record each.
func heldOut(t testing.TB, n int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "held-out")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := recordio.NewWriter(file, recordio.WriterOptions{RecordsPerChunk: 1})
	for range n {
		err = errors.Join(err, w.Write([]byte("record")))
	}
	if err = errors.Join(err, w.Close(), file.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

// job is a master that evaluates, and a trainer.
type job struct {
	t        testing.TB
	store    *etcdstore.Store
	data     string
	config   evaluation.Config
	models   rounds.Models
	strategy string // file; "": none
	metrics  io.Writer
	figures  map[string]string // of a strategy
	log      *logrus.Entry
	failures int          // of a task before it is set aside; 0: the default
	failed   atomic.Int32 // reads of records that are still to fail

	*mastertest.Running
	rounds  *rounds.Rounds
	trainer *mastertest.Trainer
	done    []taskqueue.Result // for the next request
	refused func(err error, known bool) error
}

// lossy is a store that fails some reads of records.
type lossy struct {
	*etcdstore.Store
	failed *atomic.Int32
}

func (l lossy) Value(ctx context.Context, key string) ([]byte, int64, error) {
	if strings.HasPrefix(key, rounds.RecordPrefix) && l.failed.Add(-1) >= 0 {
		return nil, 0, errors.New("etcd does not answer")
	}
	return l.Store.Value(ctx, key)
}

// newJob is a job of two passes over 4 tasks, with tasks of evaluation data.
func newJob(t testing.TB, config evaluation.Config, models rounds.Models, tasks int) *job {
	j := &job{t: t, store: etcdtest.Store(t), data: heldOut(t, tasks), config: config, models: models}
	j.startWith(4)
	return j
}

// startWith starts a master with training tasks, and a trainer.
func (j *job) startWith(tasks int) {
	j.start()
	j.Register(tasks)
	mastertest.Eventually(j.t, "the evaluation data is registered", func() bool {
		v, err := j.Overview(j.t.Context())
		return err == nil && len(v.Sets) == 2
	})
	j.trainer = j.Join("trainer")
}

// start starts a master.
func (j *job) start() {
	started := make(chan *master.Master, 1)
	leader := sync.OnceValue(func() *master.Master { return <-started })
	j.rounds = rounds.New(rounds.Config{Evaluation: j.config, Store: lossy{j.store, &j.failed}, Models: j.models, Figures: j.figures, Metrics: j.metrics, Log: j.log, Refused: j.refused, Register: func(ctx context.Context) error {
		return leader().ReportSet(ctx, taskqueue.SetSpec{Kind: taskqueue.Evaluation}, []string{j.data})
	}})
	config := master.Config{Components: []component.Component{j.rounds}, Evaluate: j.rounds.Evaluate, ChunksPerTask: 1}
	config.Queue.Passes, config.Queue.HoldEnd, config.Queue.MaxFailures = 2, true, j.failures
	if j.strategy != "" {
		parsed, err := strategy.Parse([]byte(j.strategy))
		if err != nil {
			j.t.Fatal(err)
		}
		config.Queue.Strategy = parsed.OfJob([]byte(j.strategy), false)
	}
	j.Running = mastertest.Start(j.t, j.store, config)
	started <- j.Master
	mastertest.Eventually(j.t, "the rounds of the leader", func() bool { // the component starts a moment after the term
		return j.rounds.Leads() || j.Ended()
	})
	if j.trainer != nil {
		j.trainer = j.trainer.At(j.Running)
	}
}

// take reports what is done and takes the next task.
func (j *job) take() (master.Reply, error) {
	r := j.trainer.Request(nil, nil)
	r.Finished, r.Accepts = j.done, taskqueue.KindsOf(taskqueue.Training, taskqueue.Evaluation)
	j.done = nil
	return j.Next(j.t.Context(), r)
}

// train takes and finishes n training tasks, with the models that follow.
func (j *job) train(n int, path string) {
	j.t.Helper()
	for i := range n {
		a := j.want(taskqueue.Training)
		j.done = []taskqueue.Result{{Token: a.Task.Token}}
		if i == n-1 {
			j.done[0].Model = taskqueue.Model{Path: path, Version: uint64(len(path))}
		}
	}
}

func (j *job) want(kind taskqueue.Kind) *master.Assignment {
	j.t.Helper()
	reply, err := j.take()
	if err != nil || reply.Assignment == nil || reply.Assignment.Task.Token.Kind != kind {
		j.t.Fatalf("expected a task for %v, found %+v, %v", kind, reply.Assignment, err)
	}
	return reply.Assignment
}

// measured finishes an evaluation task with its loss.
func (j *job) measured(a *master.Assignment, loss float64) {
	var set metric.Set
	if err := set.AddMean("loss", loss, 1); err != nil {
		j.t.Fatal(err)
	}
	j.done = []taskqueue.Result{{Token: a.Task.Token, Metrics: set.Encode()}}
}

// records returns the records of the rounds, as "number model figures".
func (j *job) records() (list []string) {
	j.t.Helper()
	values, _, err := j.store.Prefixed(context.Background(), rounds.RecordPrefix)
	if err != nil {
		j.t.Fatal(err)
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		var r rounds.Record
		if err := json.Unmarshal(values[key], &r); err != nil {
			j.t.Fatal(err)
		}
		if r.Trainer != "" {
			r.Model = "of " + r.Trainer
		}
		text := fmt.Sprintf("%d %s@%d after pass %d (%s)", r.Round, r.Model, r.Version, r.Passes, r.Reason)
		if r.Ended != nil {
			text += fmt.Sprintf(": %d results, loss %v", r.Results, r.Figures["loss"])
			if r.Trainer != "" && len(r.Figures) == 0 || r.SetAside > 0 {
				text += ", " + r.Outcome
			}
		}
		list = append(list, text)
	}
	return list
}

func (j *job) wantRecords(want ...string) {
	j.t.Helper()
	var found []string
	mastertest.Eventually(j.t, strings.Join(want, "; "), func() bool {
		found = j.records()
		return slices.Equal(found, want) || len(found) > len(want)
	})
	if !slices.Equal(found, want) {
		j.t.Fatalf("expected %q, found %q", want, found)
	}
}

func (j *job) wantEnd(err error, words string) {
	j.t.Helper()
	mastertest.Eventually(j.t, "the end of the job", func() bool {
		_, found := j.take()
		return errors.Is(found, err) && strings.Contains(found.Error(), words)
	})
}

func TestJobIsEvaluatedWithoutParameterServers(t *testing.T) {
	j := newJob(t, evaluation.Config{Every: evaluation.Every{Passes: 1}}, nil, 2)
	j.train(4, "models/1")
	j.train(1, "models/2") // the second pass begins, and trains on
	j.wantRecords("1 models/1@8 after pass 1 (every 1 pass (version 8, 1 pass))")
	first := j.want(taskqueue.Evaluation)
	if want := (taskqueue.Round{Number: 1, Set: 1, Pass: 1, Version: 8, Model: "models/1"}); fmt.Sprint(*first.Round) != fmt.Sprint(want) {
		t.Errorf("round %+v: expected %+v", *first.Round, want)
	}
	j.measured(first, 0.5)
	second := j.want(taskqueue.Evaluation)
	j.measured(second, 0.25)
	j.train(3, "models/3")
	j.wantRecords("1 models/1@8 after pass 1 (every 1 pass (version 8, 1 pass)): 2 results, loss 0.375")
	j.done = append(j.done, taskqueue.Result{Token: first.Task.Token, Metrics: []byte("damaged")}) // a repetition
	last := j.want(taskqueue.Evaluation)
	j.measured(last, 0.125)
	last = j.want(taskqueue.Evaluation)
	j.measured(last, 0.125)
	j.wantEnd(master.ErrJobFinished, "")
	j.wantRecords("1 models/1@8 after pass 1 (every 1 pass (version 8, 1 pass)): 2 results, loss 0.375",
		"2 models/3@8 after pass 2 (every 1 pass, end of the job (version 8, 2 passes)): 2 results, loss 0.125")
}

// A round ends with its record: the end waits until the record can be read, and the record keeps its begin.
func TestRecordSurvivesAFailedRead(t *testing.T) {
	j := newJob(t, evaluation.Config{Every: evaluation.Every{Passes: 1}}, nil, 1)
	j.train(4, "models/1")
	j.train(1, "models/2") // the second pass begins
	j.wantRecords("1 models/1@8 after pass 1 (every 1 pass (version 8, 1 pass))")
	j.failed.Store(1)
	j.measured(j.want(taskqueue.Evaluation), 0.5)
	j.want(taskqueue.Training)
	j.wantRecords("1 models/1@8 after pass 1 (every 1 pass (version 8, 1 pass)): 1 results, loss 0.5")
}

func TestNextLeaderContinuesRound(t *testing.T) {
	j := newJob(t, evaluation.Config{Every: evaluation.Every{Passes: 1}}, nil, 2)
	j.train(4, "models/1")
	a := j.want(taskqueue.Training)
	j.wantRecords("1 models/1@8 after pass 1 (every 1 pass (version 8, 1 pass))")
	j.done = []taskqueue.Result{{Token: a.Task.Token}}
	j.measured(j.want(taskqueue.Evaluation), 0.5)
	j.want(taskqueue.Evaluation)
	if err := j.Stop(); err != nil {
		t.Fatal(err)
	}
	j.start()
	mastertest.Eventually(t, "the task of the round again", func() bool {
		v, err := j.PendingTasks(t.Context())
		return err == nil && len(v) > 0
	})
	tasks, err := j.PendingTasks(t.Context())
	if err != nil || tasks[0].Token.Kind != taskqueue.Evaluation {
		t.Fatalf("pending %+v, %v", tasks, err)
	}
	j.measured(&master.Assignment{Task: taskqueue.Task{Token: tasks[0].Token}}, 1.5)
	j.train(1, "models/2")
	j.wantRecords("1 models/1@8 after pass 1 (every 1 pass (version 8, 1 pass)): 2 results, loss 1")
}

func TestRoundByCommand(t *testing.T) {
	j := newJob(t, evaluation.Config{}, nil, 1)
	if err := j.Evaluate(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	j.train(1, "models/1")
	j.train(1, "models/2") // reports the first finish
	j.wantRecords("1 models/1@8 after pass 0 (command (version 8, 0 passes))")
	if err := j.Evaluate(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	j.measured(j.want(taskqueue.Evaluation), 0.5)
	j.take() //nolint:errcheck // reports it
	j.wantRecords("1 models/1@8 after pass 0 (command (version 8, 0 passes)): 1 results, loss 0.5", "2 models/2@8 after pass 0 (command (version 8, 0 passes))")
	if err := j.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := j.Evaluate(t.Context(), ""); !errors.Is(err, master.ErrNotLeader) {
		t.Errorf("after the end: %v", err)
	}
}

func TestRoundEndsJob(t *testing.T) {
	for name, c := range map[string]struct {
		config evaluation.Config
		losses []float64
		err    error
		words  string
	}{
		"target":      {evaluation.Config{Target: new(0.5)}, []float64{0.5}, master.ErrJobFinished, ""},
		"divergence":  {evaluation.Config{Diverged: 2}, []float64{1, 3}, master.ErrJobFailed, "diverged: loss is 3, more than 2 times the lowest, 1"},
		"no progress": {evaluation.Config{Patience: 1}, []float64{1, 1}, master.ErrJobFinished, ""},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t, c.config, nil, 1)
			j.train(1, "models/1")
			j.take() //nolint:errcheck // reports it
			for i, loss := range c.losses {
				if err := j.Evaluate(t.Context(), ""); err != nil {
					t.Fatal(err)
				}
				mastertest.Eventually(t, "the round", func() bool { return len(j.records()) == i+1 })
				var a *master.Assignment
				mastertest.Eventually(t, "its task", func() bool {
					reply, err := j.take()
					a = reply.Assignment
					return err == nil && a != nil && a.Task.Token.Kind == taskqueue.Evaluation
				})
				j.measured(a, loss)
				j.take() //nolint:errcheck // reports it
			}
			j.wantEnd(c.err, c.words)
		})
	}
}

// A round of a trainer gives its tasks to this trainer alone. Its figures end no job, and are not written for programs that compare figures. The
// next leader continues it.
func TestRoundOfATrainer(t *testing.T) {
	target := 1.0
	var written strings.Builder
	j := &job{t: t, store: etcdtest.Store(t), data: heldOut(t, 2), config: evaluation.Config{Target: &target}, metrics: &written}
	j.startWith(4)
	other := j.Join("other")
	if err := j.Evaluate(t.Context(), "unknown"); !errors.Is(err, taskqueue.ErrNoTrainer) {
		t.Errorf("a trainer that has not joined: %v", err)
	}
	if err := j.Evaluate(t.Context(), "trainer"); err != nil {
		t.Fatal(err)
	}
	j.wantRecords("1 of trainer@0 after pass 0 (command (version 0, 0 passes))")
	if err := j.Evaluate(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	if err := j.Evaluate(t.Context(), "trainer"); !errors.Is(err, evaluation.ErrRequested) {
		t.Errorf("while another round is requested: %v", err)
	}
	r := other.Request(nil, nil)
	r.Accepts = taskqueue.KindsOf(taskqueue.Training, taskqueue.Evaluation)
	if reply, err := j.Next(t.Context(), r); err != nil || reply.Assignment.Task.Token.Kind != taskqueue.Training {
		t.Fatalf("another trainer: %+v, %v", reply.Assignment, err)
	}
	a := j.want(taskqueue.Evaluation)
	if a.Round.Model != "" || a.Round.Name != "trainer" {
		t.Errorf("round %+v", a.Round)
	}
	j.measured(a, 0.5)
	j.measured(j.want(taskqueue.Evaluation), 0.25)
	if err := j.Stop(); err != nil {
		t.Fatal(err)
	}
	j.start()
	mastertest.Eventually(t, "the result counts at the next leader", func() bool {
		_, err := j.take()
		return err == nil
	})
	j.wantRecords("1 of trainer@0 after pass 0 (command (version 0, 0 passes)): 2 results, loss 0.375",
		"2 of other@0 after pass 0 (command (version 0, 0 passes))")
	other = other.At(j.Running)
	if err := j.Leave(t.Context(), other.Ordinal, other.Incarnation); err != nil {
		t.Fatal(err)
	}
	j.wantRecords("1 of trainer@0 after pass 0 (command (version 0, 0 passes)): 2 results, loss 0.375",
		"2 of other@0 after pass 0 (command (version 0, 0 passes)): 0 results, loss 0, trainer other: it has left")
	if written.Len() > 0 {
		t.Errorf("written figures: %q", written.String())
	}
	if v, err := j.Overview(t.Context()); err != nil || v.Status != taskqueue.Running {
		t.Errorf("status %v, %v", v.Status, err)
	}
}

// F255: a generation evaluates the trainers of a population, one after the other. The next leader continues it. The job ends after the generation that
// follows the last pass.
func TestPopulationIsEvaluated(t *testing.T) {
	j := &job{t: t, store: etcdtest.Store(t), data: heldOut(t, 1), strategy: "population: {every: 1pass, figure: \"loss:min\", hyper-parameters: {rate: {min: 1, max: 2}}}"}
	j.startWith(4)
	other := j.Join("other")
	if err := j.Evaluate(t.Context(), ""); !errors.Is(err, taskqueue.ErrOwnModels) {
		t.Errorf("a round of the model of the job: %v", err)
	}
	evaluate := func(loss float64) { // by the other trainer
		t.Helper()
		r := other.Request(nil, nil)
		r.Accepts = taskqueue.KindsOf(taskqueue.Evaluation)
		reply, err := j.Next(t.Context(), r)
		if err != nil || reply.Assignment == nil {
			t.Fatalf("expected a task, found %+v, %v", reply.Assignment, err)
		}
		own := j.done
		j.measured(reply.Assignment, loss)
		r = other.Request(nil, nil)
		r.Finished, r.Want = j.done, false
		if _, err := j.Next(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		j.done = own
	}
	j.train(4, "models/trainer")
	j.train(1, "models/trainer") // the second pass begins
	const first = "1 of other@0 after pass 1 (population (generation 1, 1 pass))"
	j.wantRecords(first)
	evaluate(0.75)
	const second = "2 of trainer@0 after pass 1 (population (generation 1, 1 pass))"
	j.wantRecords(first+": 1 results, loss 0.75", second)
	if err := j.Stop(); err != nil {
		t.Fatal(err)
	}
	j.start()
	other = other.At(j.Running)
	j.measured(j.want(taskqueue.Evaluation), 0.5)
	j.report()
	mastertest.Eventually(t, "the decision", func() bool {
		v, err := j.Overview(t.Context())
		return err == nil && v.Population.Members[0].Next == "trainer"
	})
	reply, err := j.Next(t.Context(), other.Request(nil, nil))
	if err != nil || reply.Assignment == nil || reply.Assignment.From != (taskqueue.ModelSource{Path: "models/trainer"}) {
		t.Fatalf("expected a task with the stored model, found %+v, %v", reply.Assignment, err)
	}
	r := other.Request(nil, nil)
	r.Finished, r.Want = []taskqueue.Result{{Token: reply.Assignment.Task.Token}}, false
	if _, err := j.Next(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	j.train(2, "models/trainer")
	j.report()
	v, err := j.Overview(t.Context())
	if err != nil || v.Status != taskqueue.Running {
		t.Fatalf("before the last generation: status %v, %v", v.Status, err)
	}
	mastertest.Eventually(t, "the last generation", func() bool { return len(j.records()) == 3 })
	evaluate(0.25)
	mastertest.Eventually(t, "the last round", func() bool { return len(j.records()) == 4 })
	j.measured(j.want(taskqueue.Evaluation), 0.5)
	j.wantEnd(master.ErrJobFinished, "")
	if v, err := j.Overview(context.Background()); err == nil && fmt.Sprint(v.Population.Members[0].Figure != nil, v.Population.Generation) != "true 2" {
		t.Errorf("found %+v", v.Population)
	}
}

// report reports what is done.
func (j *job) report() {
	j.t.Helper()
	r := j.trainer.Request(nil, nil)
	r.Finished, r.Want, j.done = j.done, false, nil
	if _, err := j.Next(j.t.Context(), r); err != nil {
		j.t.Fatal(err)
	}
}

// failing has no model at first.
type failing struct {
	mu   sync.Mutex
	left int
	err  error
}

func (f *failing) Pin(_ context.Context, use func(model string, version uint64) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.left--; f.left >= 0 {
		return f.err
	}
	return use("set-9", 70)
}

func TestRoundWaitsForSet(t *testing.T) {
	j := newJob(t, evaluation.Config{}, &failing{left: 2, err: rounds.ErrNoModel}, 1)
	if err := j.Evaluate(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	j.wantRecords("1 set-9@70 after pass 0 (command (version 0, 0 passes))")
}

func TestJobWithoutModelEnds(t *testing.T) {
	j := newJob(t, evaluation.Config{}, &failing{left: 1 << 30, err: rounds.ErrNoModel}, 1)
	j.train(8, "")
	j.wantEnd(master.ErrJobFinished, "")
	if found := j.records(); len(found) > 0 {
		t.Errorf("found %q", found)
	}
}

func TestMetricThatIsNotFiniteFailsJob(t *testing.T) {
	j := newJob(t, evaluation.Config{}, nil, 1)
	j.train(1, "models/1")
	j.take() //nolint:errcheck // reports it
	if err := j.Evaluate(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	mastertest.Eventually(t, "the round", func() bool { return len(j.records()) == 1 })
	for {
		reply, err := j.take()
		if err != nil || reply.Assignment == nil {
			break
		}
		if a := reply.Assignment; a.Task.Token.Kind == taskqueue.Evaluation {
			j.done = []taskqueue.Result{{Token: a.Task.Token, Error: "loss is NaN", NotFinite: "loss"}}
		}
	}
	j.wantEnd(master.ErrJobFailed, "diverged: loss is not a finite number")
}

// F227: a round of a trainer that ends before its last task has no figures of the tasks before.
func TestRoundThatEndsEarlyHasNoFigures(t *testing.T) {
	j := &job{t: t, store: etcdtest.Store(t), data: heldOut(t, 2)}
	j.startWith(4)
	if err := j.Evaluate(t.Context(), "trainer"); err != nil {
		t.Fatal(err)
	}
	j.measured(j.want(taskqueue.Evaluation), 0.5)
	if _, err := j.take(); err != nil { // the result of the first task, and the second task
		t.Fatal(err)
	}
	j.trainer.Leave(t)
	j.wantRecords("1 of trainer@0 after pass 0 (command (version 0, 0 passes)): 0 results, loss 0, trainer trainer: it has left")
}

// F227: rules and plateaus of a strategy do not see the figures of a round of a trainer.
func TestRoundOfATrainerEndsNoJobByItsStrategy(t *testing.T) {
	j := &job{t: t, store: etcdtest.Store(t), data: heldOut(t, 1), strategy: "stop: [{when: loss < 1}]\n"}
	j.startWith(4)
	if err := j.Evaluate(t.Context(), "trainer"); err != nil {
		t.Fatal(err)
	}
	j.measured(j.want(taskqueue.Evaluation), 0.25)
	if _, err := j.take(); err != nil {
		t.Fatal(err)
	}
	j.wantRecords("1 of trainer@0 after pass 0 (command (version 0, 0 passes)): 1 results, loss 0.25")
	if v, err := j.Overview(t.Context()); err != nil || v.Status != taskqueue.Running {
		t.Errorf("round of a trainer: expected a running job, found %v (%s), %v", v.Status, v.Reason, err)
	}
}

// A misspelled figure is a warning. It has the figures of the round.
func TestMisspelledFiguresAreNamed(t *testing.T) {
	s, err := strategy.Parse([]byte("hyper-parameters: {dropout: {schedule: plateau, value: 0.2, figure: \"los:min\", factor: 0.5, patience: 2}}\n" +
		"stop: [{when: accurcy > 0.9}, {when: loss < 0.1}, {when: job.passes > 9}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	logger, hook := logtest.NewNullLogger()
	j := &job{t: t, store: etcdtest.Store(t), data: heldOut(t, 1), config: evaluation.Config{Best: evaluation.Goal{Figure: "f1"}},
		figures: s.Figures(), log: logrus.NewEntry(logger)}
	j.startWith(4)
	j.train(1, "model-1")
	j.take() //nolint:errcheck // reports it
	if err := j.Evaluate(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	mastertest.Eventually(t, "the round", func() bool { return len(j.records()) == 1 })
	j.measured(j.want(taskqueue.Evaluation), 0.5)
	j.take() //nolint:errcheck // reports it
	var found []string
	mastertest.Eventually(t, "three warnings", func() bool {
		found = nil
		for _, e := range hook.AllEntries() {
			if e.Level == logrus.WarnLevel {
				found = append(found, fmt.Sprintf("%v|%v|%v|%v", e.Message, e.Data["from"], e.Data["expected"], e.Data["found"]))
			}
		}
		return len(found) >= 3
	})
	want := []string{
		"figure missing in a round|--best-metric|f1|loss",
		"figure missing in a round|accurcy > 0.9|accurcy|loss",
		"figure missing in a round|dropout|los|loss",
	}
	if !slices.Equal(found, want) {
		t.Errorf("expected %q, found %q", want, found)
	}
}

// F259: a round without a task that was set aside has figures of a part of the data. They are stored with the number of missing tasks, reach no
// target and do not count for the strategy. The next round has all tasks.
func TestRoundWithoutATaskIsNotRanked(t *testing.T) {
	target := 1.0
	var figures bytes.Buffer
	j := &job{t: t, store: etcdtest.Store(t), data: heldOut(t, 2), strategy: "stop: [{when: loss < 0.3}]\n", metrics: &figures,
		config: evaluation.Config{Best: evaluation.Goal{Figure: "loss"}, Target: &target, KeepBest: 1}, failures: 1}
	j.startWith(4)
	j.train(1, "model-1")
	if _, err := j.take(); err != nil {
		t.Fatal(err)
	}
	if err := j.Evaluate(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	mastertest.Eventually(t, "the round", func() bool { return len(j.records()) == 1 })
	for range 3 { // one task fails twice
		a := j.want(taskqueue.Evaluation)
		if j.measured(a, 0.25); a.Task.Token.Position == 0 {
			j.done = []taskqueue.Result{{Token: a.Task.Token, Error: "record 3 is torn"}}
		}
	}
	if _, err := j.take(); err != nil {
		t.Fatal(err)
	}
	first := "1 model-1@7 after pass 0 (command (version 7, 0 passes)): 1 results, loss 0.25, not ranked: 1 task was set aside"
	j.wantRecords(first)
	if v, err := j.Overview(t.Context()); err != nil || v.Status != taskqueue.Running || figures.Len() > 0 {
		t.Fatalf("round of a part of the data: expected a running job, found %v (%s), %v, figures %q", v.Status, v.Reason, err, &figures)
	}
	if err := j.Evaluate(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	mastertest.Eventually(t, "the second round", func() bool { return len(j.records()) == 2 })
	for range 2 {
		j.measured(j.want(taskqueue.Evaluation), 0.5)
	}
	if _, err := j.take(); err != nil {
		t.Fatal(err)
	}
	j.wantRecords(first, "2 model-1@7 after pass 0 (command (version 7, 0 passes)): 2 results, loss 0.5")
	if v, err := j.Overview(t.Context()); err != nil || v.Status != taskqueue.Ended {
		t.Errorf("round of all tasks: expected a job that has reached its target, found %v (%s), %v", v.Status, v.Reason, err)
	}
	if err := j.Stop(); err != nil { // the figures are written after the commit
		t.Error(err)
	}
	if figures.String() != "loss=0.5\n" {
		t.Errorf("found figures %q", &figures)
	}
}
