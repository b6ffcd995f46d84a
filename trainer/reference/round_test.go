package reference_test

import (
	"context"
	"errors"
	"io"
	"iter"
	"math"
	"strings"
	"testing"

	"trainmaster/master/evaluation/metric"
	"trainmaster/taskqueue"
	"trainmaster/trainer/model"
	"trainmaster/trainer/reference"
)

// oneEvaluation is a job that ends after one task of a round.
type oneEvaluation struct {
	model   string
	task    *taskqueue.Task // nil: it was dispatched
	failed  []error
	metrics []byte
}

func (j *oneEvaluation) Next(context.Context, *taskqueue.Task) (task *taskqueue.Task, err error) {
	if j.task == nil {
		return nil, io.EOF
	}
	task, j.task = j.task, nil
	return task, nil
}

func (j *oneEvaluation) Fail(_ context.Context, _ *taskqueue.Task, reason error) error {
	j.failed = append(j.failed, reason)
	return nil
}

func (*oneEvaluation) Records(*taskqueue.Task) iter.Seq2[[]byte, error] {
	return func(func([]byte, error) bool) {}
}

func (j *oneEvaluation) Round(*taskqueue.Task) taskqueue.Round {
	return taskqueue.Round{Number: 3, Model: j.model}
}

func (j *oneEvaluation) Measured(_ *taskqueue.Task, metrics []byte) { j.metrics = metrics }

// The model of a round that has ended may be deleted, and a stored model may be of another shape. The trainer returns the task, and
// continues.
func TestTaskWithADeletedModelIsReturned(t *testing.T) {
	for want, stored := range map[string]func() (*reference.StoredModel, error){
		"no such file":    func() (*reference.StoredModel, error) { return nil, errors.New("no such file") },
		"values, found 0": func() (*reference.StoredModel, error) { return &reference.StoredModel{}, nil },
	} {
		j := &oneEvaluation{model: "set-2", task: &taskqueue.Task{Token: taskqueue.Token{Kind: taskqueue.Evaluation}}}
		trainer := &reference.Trainer{
			ID: "trainer-0", Model: newModel(t, model.Softmax, 0), BatchSize: 8, Tasks: j, Parameters: &shelf{rate: 0.1}, Rounds: j,
			Stored: func(context.Context, taskqueue.Round) (*reference.StoredModel, error) { return stored() },
		}
		if err := trainer.Run(within(t)); err != nil {
			t.Errorf("%s: the trainer ended: %v", want, err)
		}
		if len(j.failed) != 1 || !strings.Contains(j.failed[0].Error(), want) || !strings.Contains(j.failed[0].Error(), `model "set-2" of round 3`) {
			t.Errorf("found the reasons %v, expected %q with the model and the round", j.failed, want)
		}
	}
}

// A round without a model is of the own model of the trainer: no stored model is read.
func TestRoundOfTheOwnModelReadsNoStoredModel(t *testing.T) {
	j := &oneEvaluation{task: &taskqueue.Task{Token: taskqueue.Token{Kind: taskqueue.Evaluation}}}
	trainer := &reference.Trainer{
		ID: "trainer-0", Model: newModel(t, model.Softmax, 0), BatchSize: 8, Tasks: j, Parameters: &shelf{rate: 0.1}, Rounds: j,
		Stored: func(_ context.Context, round taskqueue.Round) (*reference.StoredModel, error) {
			t.Errorf("read the model of %+v", round)
			return nil, nil
		},
	}
	if err := trainer.Run(within(t)); err != nil || len(j.failed) > 0 || j.metrics == nil {
		t.Errorf("found %v, reasons %v, metrics %q", err, j.failed, j.metrics)
	}
}

// The trainer evaluates the parameters that it has, during a training task.
func TestMeasureCurrentIsOfTheParametersOfTheTrainer(t *testing.T) {
	train, heldOut := digits(t)
	c := newCoordinator(t, writeTable(t, train, 60), taskqueue.Options{Passes: 1})
	m, again := newModel(t, model.Softmax, 0), newModel(t, model.Softmax, 0)
	trainer := &reference.Trainer{ID: "alone", Model: m, BatchSize: 8, Tasks: c.join("alone"), Parameters: &shelf{rate: 0.1}}
	if _, ok, _ := trainer.MeasureCurrent(t.Context(), again, sequence(heldOut)); ok {
		t.Error("evaluated before the beginning")
	}
	var losses []float64
	batches := 0
	trainer.Batch = func(int, float64) {
		if batches++; batches%20 != 1 {
			return
		}
		encoded, ok, err := trainer.MeasureCurrent(t.Context(), again, sequence(heldOut))
		if !ok || err != nil {
			t.Fatalf("batch %d: %v, %v", batches, ok, err)
		}
		set, err := metric.Decode(encoded)
		if err != nil {
			t.Fatal(err)
		}
		figures := map[string]float64{}
		for _, f := range set.Figures() {
			figures[f.Name] = f.Value
		}
		trainer.Between(func(_ uint64, parameters []model.Tensor) {
			want, err := reference.Evaluate(again, parameters, nil, sequence(heldOut))
			if err != nil || figures["accuracy"] != want.Accuracy() || math.Abs(figures["loss"]-want.Loss()) > 1e-12 {
				t.Errorf("batch %d: found %v, expected accuracy %v and loss %v, %v", batches, figures, want.Accuracy(), want.Loss(), err)
			}
		})
		losses = append(losses, figures["loss"])
	}
	if err := trainer.Run(within(t)); err != nil {
		t.Fatal(err)
	}
	if n := len(losses); n < 3 || losses[n-1] >= losses[0] {
		t.Errorf("losses %v: expected lower ones later", losses)
	}
	stopped, stop := context.WithCancelCause(t.Context())
	stop(errors.New("stopped"))
	if _, ok, _ := trainer.MeasureCurrent(stopped, again, sequence(heldOut)); ok {
		t.Error("evaluated after the end")
	}
}
