package reference_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"trainmaster/taskqueue"
	"trainmaster/trainer/model"
	"trainmaster/trainer/params"
	"trainmaster/trainer/reference"
)

// exchanged connects one trainer to a shelf and counts the exchange. It implements the model, the tasks and the
// parameters of the trainer, so it sees computed gradients before they are pushed.
type exchanged struct {
	model.Model
	*trainerLink
	*shelf
	unpushed int      // mini-batches computed since the last applied push
	records  int      // records in them
	pushes   []string // applied
	finished int
}

func (e *exchanged) Gradients(parameters []model.Tensor, batch *model.Batch, gradients []model.Tensor) (float64, error) {
	e.unpushed++
	e.records += batch.Len()
	return e.Model.Gradients(parameters, batch, gradients)
}

func (e *exchanged) pushed(kind string) {
	e.pushes = append(e.pushes, fmt.Sprintf("%s %d/%d", kind, e.unpushed, e.records))
	e.unpushed, e.records = 0, 0
}

func (e *exchanged) Push(ctx context.Context, step uint64, scale float32, gradients []params.Tensor) (uint64, error) {
	e.pushed("push")
	return e.shelf.Push(ctx, step, scale, gradients)
}

func (e *exchanged) PushPull(ctx context.Context, step uint64, scale float32, gradients, parameters []params.Tensor) (uint64, error) {
	e.pushed("both")
	return e.shelf.PushPull(ctx, step, scale, gradients, parameters)
}

func (e *exchanged) Next(ctx context.Context, finished *taskqueue.Task) (*taskqueue.Task, error) {
	if finished != nil {
		e.finished++
		if e.unpushed != 0 {
			e.t.Errorf("finish of task %d: expected no unpushed mini-batches, found %d", finished.Index, e.unpushed)
		}
	}
	return e.trainerLink.Next(ctx, finished)
}

// exchange trains one pass over records, in tasks of at most perTask records.
func exchange(t *testing.T, records [][]byte, perTask, batch int, how reference.Exchange) (*exchanged, reference.TaskReport) {
	t.Helper()
	c := newCoordinator(t, writeTable(t, records, perTask), taskqueue.Options{Passes: 1})
	e := &exchanged{Model: newModel(t, model.Softmax, 0), trainerLink: c.join("trainer-0"), shelf: &shelf{rate: 0.5}}
	var total reference.TaskReport
	runAll(t, []*reference.Trainer{{
		ID: "trainer-0", Model: e, BatchSize: batch, Exchange: how, Tasks: e, Parameters: e,
		Report: func(r reference.TaskReport) {
			total.Records += r.Records
			total.Batches += r.Batches
		},
	}})
	return e, total
}

// The number of mini-batches and records of each push, and whether it returned parameters.
func TestPushEvery(t *testing.T) {
	train, _ := digits(t)
	for _, tt := range []struct {
		push, pull int
		want       []string // for two tasks of 70 records, in mini-batches of 10
	}{
		{0, 0, slices.Repeat([]string{"both 1/10"}, 14)},
		{1, 1, slices.Repeat([]string{"both 1/10"}, 14)},
		{3, 0, slices.Repeat([]string{"both 3/30", "both 3/30", "both 1/10"}, 2)},
		{3, 3, slices.Repeat([]string{"both 3/30", "both 3/30", "both 1/10"}, 2)},
		{2, 4, slices.Repeat([]string{"push 2/20", "both 2/20", "push 2/20", "both 1/10"}, 2)},
		{1, 3, append(slices.Repeat([]string{"push 1/10", "push 1/10", "both 1/10"}, 4), "push 1/10", "push 1/10")},
		{100, 0, []string{"both 7/70", "both 7/70"}},
	} {
		e, total := exchange(t, train[:140], 70, 10, reference.Exchange{PushEvery: tt.push, PullEvery: tt.pull})
		if !slices.Equal(e.pushes, tt.want) || total.Records != 140 || total.Batches != 14 {
			t.Errorf("every %d and %d: %d records in %d mini-batches, %q; expected 140 in 14, %q", tt.push, tt.pull, total.Records, total.Batches, e.pushes, tt.want)
		}
	}
}

// The gradient of a push is the mean over its records, for any mini-batches.
func TestPushIsTheMean(t *testing.T) {
	train, _ := digits(t)
	whole, _ := exchange(t, train[:40], 40, 40, reference.Exchange{})
	parts, _ := exchange(t, train[:40], 40, 12, reference.Exchange{PushEvery: 4})
	for i, want := range whole.parameters {
		for j, v := range want.Data {
			if d := parts.parameters[i].Data[j] - v; d > 1e-6 || d < -1e-6 {
				t.Fatalf("%s[%d] is %v after one push of 4 mini-batches, %v after one mini-batch of the same records", want.Name, j, parts.parameters[i].Data[j], v)
			}
		}
	}
}

// Sizes vary. No task is finished before all of its records are pushed, and every record is in one push.
func TestTasksFinishAfterPush(t *testing.T) {
	train, _ := digits(t)
	random := rand.New(rand.NewPCG(1, 2))
	for range 60 {
		records, perTask, batch := 1+random.IntN(120), 1+random.IntN(60), 1+random.IntN(20)
		how := reference.Exchange{PushEvery: 1 + random.IntN(6)}
		how.PullEvery = how.PushEvery * random.IntN(4)
		e, total := exchange(t, train[:records], perTask, batch, how)
		in := 0
		for _, p := range e.pushes {
			var kind string
			var batches, n int
			if _, err := fmt.Sscanf(strings.Replace(p, "/", " ", 1), "%s %d %d", &kind, &batches, &n); err != nil || batches > how.PushEvery {
				t.Fatalf("push %q, %v; expected %d mini-batches at most", p, err, how.PushEvery)
			}
			in += n
		}
		if in != records || total.Records != records || e.finished != (records+perTask-1)/perTask {
			t.Fatalf("%d records in tasks of %d, mini-batches of %d, %+v: found %d pushed, %d reported, %d tasks finished",
				records, perTask, batch, how, in, total.Records, e.finished)
		}
	}
}

func TestExchangeIsChecked(t *testing.T) {
	for words, how := range map[string]reference.Exchange{
		"pull-every 3: expected a multiple of push-every, 2": {PushEvery: 2, PullEvery: 3},
		"push-every -1":            {PushEvery: -1},
		"limit 3 without a policy": {Staleness: params.Staleness{Limit: 3}},
	} {
		if err := how.Check(false); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%+v: %v, expected an error with %q", how, err, words)
		}
		if err := how.Check(true); err == nil || !strings.Contains(err.Error(), "of asynchronous training") {
			t.Errorf("%+v in synchronous steps: %v", how, err)
		}
	}
}
