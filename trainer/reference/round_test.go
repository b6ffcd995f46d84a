package reference_test

import (
	"context"
	"errors"
	"io"
	"iter"
	"strings"
	"testing"

	"trainmaster/taskqueue"
	"trainmaster/trainer/model"
	"trainmaster/trainer/reference"
)

// oneEvaluation is a job that ends after one task of a round.
type oneEvaluation struct {
	task   *taskqueue.Task // nil: it was dispatched
	failed []error
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

func (*oneEvaluation) Round(*taskqueue.Task) taskqueue.Round {
	return taskqueue.Round{Number: 3, Model: "set-2"}
}
func (*oneEvaluation) Measured(*taskqueue.Task, []byte) {}

// The model of a round that has ended may be deleted, and a stored model may be of another shape. The trainer returns the task, and
// continues.
func TestTaskWithADeletedModelIsReturned(t *testing.T) {
	for want, stored := range map[string]func() (*reference.StoredModel, error){
		"no such file":    func() (*reference.StoredModel, error) { return nil, errors.New("no such file") },
		"values, found 0": func() (*reference.StoredModel, error) { return &reference.StoredModel{}, nil },
	} {
		j := &oneEvaluation{task: &taskqueue.Task{Token: taskqueue.Token{Kind: taskqueue.Evaluation}}}
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
