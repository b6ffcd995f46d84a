package reference_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/mastertest"
	"trainmaster/master/strategy"
	"trainmaster/taskqueue"
	"trainmaster/trainer"
	"trainmaster/trainer/model"
	"trainmaster/trainer/params"
	"trainmaster/trainer/reference"
)

// A worker with a model of its own learns without parameter servers, by the learning rate of its tasks.
func TestWorkerTrainsItsOwnModel(t *testing.T) {
	for _, c := range []struct {
		rate   string
		passes int
		learns bool
	}{{"0.5", 20, true}, {"1e-9", 2, false}} {
		train, heldOut := digits(t)
		table := writeTable(t, train, len(train)/2+1)
		r := ownJob(t, c.rate, c.passes)
		w := ownWorker(t, r, table)
		if err := w.Run(within(t)); err != nil {
			t.Fatal(err)
		}
		saved, err := reference.ReadSaved(w.SavePath)
		if err != nil {
			t.Fatal(err)
		}
		m, err := saved.Model()
		if err != nil {
			t.Fatal(err)
		}
		e, err := reference.Evaluate(m, saved.Tensors, nil, sequence(heldOut))
		if err != nil || (e.Accuracy() > 0.9) != c.learns || saved.Version == 0 {
			t.Errorf("learning rate %s: accuracy %v, version %d, %v", c.rate, e.Accuracy(), saved.Version, err)
		}
	}
}

// F255: a model that has diverged does not end its trainer: the tasks are finished until another model replaces it.
func TestDivergedModelFinishesItsTasks(t *testing.T) {
	train, _ := digits(t)
	table := writeTable(t, train[:200], 50, 50, 50, 50)
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{ChunksPerTask: 1, Linger: time.Minute, Queue: taskqueue.Options{Passes: 3}})
	w := ownWorker(t, r, table)
	logger, hook := logtest.NewNullLogger()
	w.Log = logrus.NewEntry(logger)
	w.Recipe.Optimizer = params.Optimizer{Kind: params.SGD, LearningRate: 3e38}
	if err := w.Run(within(t)); err != nil {
		t.Fatal(err)
	}
	diverged := 0
	for _, entry := range hook.AllEntries() {
		if strings.HasPrefix(entry.Message, "model diverged") {
			diverged++
		}
	}
	if diverged == 0 {
		t.Error("expected a model that diverges")
	}
}

// ownJob starts a job that gives trainers a learning rate.
func ownJob(t *testing.T, rate string, passes int) *mastertest.Running {
	t.Helper()
	file := []byte("hyper-parameters: {learning-rate: {schedule: constant, value: " + rate + "}}")
	parsed, err := strategy.Parse(file)
	if err != nil {
		t.Fatal(err)
	}
	return mastertest.Start(t, etcdtest.Store(t), master.Config{ChunksPerTask: 1, Linger: time.Minute, Queue: taskqueue.Options{Passes: passes, Strategy: parsed.OfJob(file, false)}})
}

func ownWorker(t *testing.T, r *mastertest.Running, table *taskqueue.Table) *reference.Worker {
	t.Helper()
	return &reference.Worker{
		Trainer: trainer.Config{ID: "a", Locate: trainer.At(r.Addr), Log: quiet()}, Own: true,
		Data: []string{table.TaskChunks(0)[0].Path}, Kind: model.Softmax, Classes: 10, Log: quiet(), SavePath: filepath.Join(t.TempDir(), "model"),
	}
}
