package trainer_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"trainmaster/dataset"
	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/component"
	"trainmaster/master/evaluation/metric"
	"trainmaster/master/mastertest"
	"trainmaster/master/rounds"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
	"trainmaster/trainer"
)

// evaluatedJob starts a job of 4 training tasks in one pass, and of 3 evaluation tasks, and returns its trainer.
func evaluatedJob(t *testing.T) (*trainer.Client, *etcdstore.Store) {
	t.Helper()
	c, store, _ := evaluatedJobOf(t, trainer.Config{})
	return c, store
}

// evaluatedJobOf is evaluatedJob with settings of the trainer. It also returns the component that evaluates the job.
func evaluatedJobOf(t *testing.T, of trainer.Config) (*trainer.Client, *etcdstore.Store, *rounds.Rounds) {
	t.Helper()
	heldOut := filepath.Join(t.TempDir(), "held-out")
	file, err := os.Create(heldOut)
	if err != nil {
		t.Fatal(err)
	}
	w := recordio.NewWriter(file, recordio.WriterOptions{RecordsPerChunk: 1})
	for range 3 {
		err = errors.Join(err, w.Write([]byte("record")))
	}
	if err = errors.Join(err, w.Close(), file.Close()); err != nil {
		t.Fatal(err)
	}
	store := etcdtest.Store(t)
	started := make(chan *master.Master, 1)
	leader := sync.OnceValue(func() *master.Master { return <-started })
	evaluating := rounds.New(rounds.Config{Store: store, Register: func(ctx context.Context) error {
		return leader().ReportSet(ctx, taskqueue.SetSpec{Kind: taskqueue.Evaluation}, []string{heldOut})
	}})
	config := master.Config{Components: []component.Component{evaluating}, ChunksPerTask: 1}
	config.Queue.Passes, config.Queue.MaxFailures, config.Queue.HoldEnd = 1, 1, true
	r := mastertest.Start(t, store, config)
	started <- r.Master
	r.Register(4)
	mastertest.Eventually(t, "the evaluation data is registered", func() bool {
		v, err := r.Overview(t.Context())
		return err == nil && len(v.Sets) == 2
	})
	logger, _ := logtest.NewNullLogger()
	of.ID, of.Locate, of.Heartbeat, of.Log, of.Protocol = "a", trainer.At(r.Addr), cmp.Or(of.Heartbeat, 50*time.Millisecond), logrus.NewEntry(logger), protocol
	of.Accepts = taskqueue.KindsOf(taskqueue.Training, taskqueue.Evaluation)
	c, err := trainer.Join(within(t), of)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, store, evaluating
}

// A client without a port evaluates its own model on command: over gRPC during a training task, because its heartbeats bring the tasks, and over
// net/rpc between two tasks. It evaluates each task once.
func TestClientEvaluatesItsOwnModel(t *testing.T) {
	overBoth(t, func(t *testing.T) {
		loss := func(records int) []byte {
			var set metric.Set
			if err := set.AddMean("loss", 0.5*float64(records), int64(records)); err != nil {
				t.Error(err)
			}
			return set.Encode()
		}
		var evaluated atomic.Int32
		c, store, evaluating := evaluatedJobOf(t, trainer.Config{Evaluate: func(_ context.Context, task *taskqueue.Task, records iter.Seq2[[]byte, error]) ([]byte, error) {
			n := 0
			for record, err := range records {
				if n++; err != nil || string(record) != "record" {
					return nil, fmt.Errorf("found %q, %w", record, err)
				}
			}
			evaluated.Add(1)
			return loss(n), nil
		}})
		training := next(t, c, nil)
		if err := evaluating.Evaluate(within(t), "a"); err != nil {
			t.Fatal(err)
		}
		if protocol == trainer.NetRPC {
			mastertest.Eventually(t, "the round begins", func() bool { return len(recordsOf(t, store)) == 1 })
			for found := 0; found < 3; {
				task := next(t, c, training)
				if training = task; task.Token.Kind == taskqueue.Evaluation {
					if round := c.Round(task); round.Model != "" || round.Name != "a" {
						t.Errorf("round %+v", round)
					}
					found++
					c.Measured(task, loss(1))
				}
			}
			training = next(t, c, training)
		}
		mastertest.Eventually(t, "the round ends", func() bool { list := recordsOf(t, store); return len(list) == 1 && list[0].Ended != nil })
		if r := recordsOf(t, store)[0]; r.Trainer != "a" || r.Model != "" || r.Results != 3 || r.Figures["loss"] != 0.5 {
			t.Errorf("record %+v", r)
		}
		if n := evaluated.Load(); protocol == trainer.GRPC && n != 3 {
			t.Errorf("evaluated %d times, expected 3", n)
		}
		if err := c.Fail(within(t), training, errors.New("the end of the test")); err != nil {
			t.Error(err)
		}
	})
}

// A round that begins before the client says that it evaluates waits for it: no heartbeat is due, and the next request for a task does not end the round.
func TestRoundWaitsForAClientThatIsAboutToEvaluate(t *testing.T) {
	c, store, evaluating := evaluatedJobOf(t, trainer.Config{Heartbeat: time.Hour})
	if err := evaluating.Evaluate(within(t), "a"); err != nil {
		t.Fatal(err)
	}
	mastertest.Eventually(t, "the round begins", func() bool { return len(recordsOf(t, store)) == 1 })
	select {
	case <-c.EvaluateBy(func(context.Context, *taskqueue.Task, []dataset.Stamp) ([]byte, error) {
		var set metric.Set
		err := set.AddMean("loss", 0.5, 1)
		return set.Encode(), err
	}):
	case <-within(t).Done():
		t.Fatal("expected a heartbeat, found none")
	}
	next(t, c, nil)
	mastertest.Eventually(t, "the round ends", func() bool { return recordsOf(t, store)[0].Ended != nil })
	if r := recordsOf(t, store)[0]; r.Outcome != "of trainer a" || r.Results != 3 || r.Figures["loss"] != 0.5 {
		t.Errorf("record %+v", r)
	}
}

// An evaluation that fails ends the round with the error.
func TestRoundEndsWithTheErrorOfItsTrainer(t *testing.T) {
	c, store, evaluating := evaluatedJobOf(t, trainer.Config{Evaluate: func(context.Context, *taskqueue.Task, iter.Seq2[[]byte, error]) ([]byte, error) {
		return nil, trainer.ErrNoModel
	}})
	next(t, c, nil)
	if err := evaluating.Evaluate(within(t), "a"); err != nil {
		t.Fatal(err)
	}
	mastertest.Eventually(t, "the round ends", func() bool { list := recordsOf(t, store); return len(list) == 1 && list[0].Ended != nil })
	if r := recordsOf(t, store)[0]; r.Outcome != "trainer a: task failed: "+trainer.ErrNoModel.Error() || len(r.Figures) > 0 {
		t.Errorf("record %+v", r)
	}
}

// untilEvaluation trains the training tasks, and returns the first evaluation task. The model of the last training task is models/4.
func untilEvaluation(t *testing.T, c *trainer.Client) *taskqueue.Task {
	t.Helper()
	task := next(t, c, nil)
	for n := uint64(1); task.Token.Kind == taskqueue.Training; n++ {
		c.Stored(task, taskqueue.Model{Path: "models/" + string('0'+rune(n)), Version: n})
		task = next(t, c, task)
	}
	return task
}

// A client evaluates the model of the round, and the figures are the same over each protocol, of sums that were not rounded. Over gRPC the
// confusion matrix is larger than a request on the stream; net/rpc has no larger requests.
func TestJobIsEvaluatedByClients(t *testing.T) {
	figures := map[trainer.Protocol]map[string]float64{}
	overBoth(t, func(t *testing.T) {
		c, store := evaluatedJob(t)
		count := int64(1)
		if protocol == trainer.GRPC {
			count <<= 38
		}
		matrix := make([][]int64, metric.MaxClasses)
		for label := range matrix {
			matrix[label] = make([]int64, metric.MaxClasses)
			for prediction := range matrix[label] {
				matrix[label][prediction] = count
			}
		}
		want := taskqueue.Round{Number: 1, Set: 1, Pass: 1, Version: 4, Model: "models/4"}
		for task, tasks := untilEvaluation(t, c), 1; ; tasks++ {
			if found := c.Round(task); found.Number != want.Number || found.Set != want.Set || found.Pass != want.Pass || found.Version != want.Version || found.Model != want.Model {
				t.Errorf("task %d: found %+v, expected %+v", tasks, found, want)
			}
			var set metric.Set
			if err := errors.Join(set.AddWeighted("loss", 0.1, 3), set.AddWeighted("loss", 0.7, int64(tasks)), set.AddConfusion("digits", matrix)); err != nil {
				t.Fatal(err)
			}
			c.Measured(task, set.Encode())
			var err error
			if task, err = c.Next(within(t), task); errors.Is(err, io.EOF) && tasks == 3 {
				break
			} else if err != nil {
				t.Fatalf("task %d: %v", tasks, err)
			}
		}
		list := recordsOf(t, store)
		if len(list) != 1 || list[0].Ended == nil || list[0].Results != 3 || list[0].Model != "models/4" {
			t.Fatalf("found %+v, expected one round of models/4 with 3 results", list)
		}
		figures[protocol] = list[0].Figures
	})
	if over := figures[trainer.GRPC]; math.Abs(over["loss"]-0.34) > 1e-12 || over["digits.accuracy"] != 0.01 || !reflect.DeepEqual(over, figures[trainer.NetRPC]) {
		t.Errorf("found %v over gRPC and %v over net/rpc, expected the same figures with loss 0.34 and digits.accuracy 0.01", over, figures[trainer.NetRPC])
	}
}

// recordsOf returns the records of the rounds.
func recordsOf(t *testing.T, store *etcdstore.Store) (list []rounds.Record) {
	t.Helper()
	values, _, err := store.Prefixed(t.Context(), rounds.RecordPrefix)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		var r rounds.Record
		if err := json.Unmarshal(values[key], &r); err != nil {
			t.Fatal(err)
		}
		list = append(list, r)
	}
	return list
}

// A client whose loss is NaN fails its tasks, and the job fails with the name of the metric.
func TestJobFailsByAMetricThatIsNotFinite(t *testing.T) {
	overBoth(t, func(t *testing.T) {
		c, _ := evaluatedJob(t)
		task := untilEvaluation(t, c)
		for tasks := 1; ; tasks++ {
			err := c.Fail(within(t), task, &trainer.NotFiniteError{Metric: "loss", Value: math.NaN()})
			if err == nil {
				task, err = c.Next(within(t), nil)
			}
			if err != nil {
				if !errors.Is(err, trainer.ErrJobFailed) || !strings.Contains(err.Error(), "diverged: loss is not a finite number") || tasks != 6 {
					t.Errorf("after %d tasks: found %v, expected %v by the loss after 3 tasks with 2 attempts each", tasks, err, trainer.ErrJobFailed)
				}
				return
			}
		}
	})
}
