package taskqueue

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// runner is a trainer in synchronous steps. Each step trains one mini-batch of its task.
type runner struct {
	session Answer
	joined  bool
	seq     uint64
	task    *Token
	index   int // of the task
	left    int // remaining mini-batches of the task
	staged  bool
}

// trainToEnd runs a job until it ends. Trainers join, ask, stage and finish in a random order. It returns the steps,
// each as the (pass, position, mini-batch) of its contributors in their order.
func trainToEnd(t *testing.T, opt Options, tasks, trainers int, random *rand.Rand) []string {
	t.Helper()
	q, _ := runningQueue(t, opt, tasks)
	crew := make([]*runner, trainers)
	for i := range crew {
		crew[i] = &runner{}
	}
	var made []string
	for turn := 0; ; turn++ {
		if status, _ := q.Status(); status == Ended {
			return made
		}
		if turn > 200*tasks*trainers {
			t.Fatalf("no progress after %d steps: %+v", len(made), q.PendingTasks())
		}
		r := crew[random.IntN(trainers)]
		switch {
		case !r.joined:
			r.session, r.joined = q.Apply(1, &Join{ID: fmt.Sprintf("%p", r)}), true
		case r.task == nil:
			r.ask(t, q)
		case r.left == 0:
			r.ask(t, q, Result{Token: *r.task})
		case r.left == 1 && (r.task.Position == 3 && r.task.Attempt == 1 || r.index == 2): // the last record of two tasks is damaged, of the second task in every attempt
			r.ask(t, q, Result{Token: *r.task, Error: "a damaged chunk"})
		case !r.staged:
			r.staged = true
		}
		list, ok := q.Contributors()
		if !ok || len(list) == 0 {
			continue
		}
		var step []string
		for _, o := range list {
			by := crew[slices.IndexFunc(crew, func(r *runner) bool { return r.joined && r.session.Ordinal == o })]
			if !by.staged {
				break
			}
			step = append(step, fmt.Sprintf("%d/%d.%d", by.task.Pass, by.task.Position, by.left))
		}
		if len(step) < len(list) {
			continue
		}
		for _, r := range crew {
			if r.staged {
				r.staged = false
				r.left--
			}
		}
		made = append(made, strings.Join(step, " "))
	}
}

// ask finishes or fails the current task and takes the next task.
func (r *runner) ask(t *testing.T, q *Queue, results ...Result) {
	t.Helper()
	if len(results) > 0 {
		r.task = nil
	}
	r.seq++
	switch a := ask(t, q, r.session, r.seq, results...); a.Kind {
	case AnswerTask:
		r.task, r.index, r.left = &a.Token, a.Index, 1+(a.Index*7)%5
		if again := ask(t, q, r.session, r.seq+1); again.Kind != AnswerWait || again.Err != nil {
			t.Fatalf("second ask of a trainer with a task: got %+v", again)
		}
		r.seq++
	case AnswerWait, AnswerEnded:
	default:
		t.Fatalf("unexpected answer %+v", a)
	}
}

// With ranks the steps do not depend on the speed of trainers. Each step has all trainers with remaining work.
func TestRanksMakeTheSameSteps(t *testing.T) {
	for _, trainers := range []int{1, 2, 3, 5} {
		for _, tasks := range []int{4, 7, 20} {
			opt := Options{Passes: 3, Ranks: trainers, MaxFailures: 1}
			want := trainToEnd(t, opt, tasks, trainers, rand.New(rand.NewPCG(0, 0)))
			for seed := range uint64(60) {
				got := trainToEnd(t, opt, tasks, trainers, rand.New(rand.NewPCG(1, seed)))
				if !slices.Equal(got, want) {
					at := 0
					for at < min(len(got), len(want)) && got[at] == want[at] {
						at++
					}
					t.Fatalf("%d trainers, %d tasks: step %d differs:\n%q\n%q", trainers, tasks, at, got[at:min(at+2, len(got))], want[at:min(at+2, len(want))])
				}
			}
			if first := strings.Count(want[0], " ") + 1; first != min(trainers, tasks) {
				t.Errorf("%d trainers, %d tasks: the first step is %q", trainers, tasks, want[0])
			}
		}
	}
}

// A job of ranks waits for a missing trainer. A surplus trainer waits and replaces a lost trainer.
func TestRanksWaitForMissingTrainer(t *testing.T) {
	q, sessions := runningQueue(t, Options{Ranks: 2}, 6, "a", "b", "c")
	first, second := ask(t, q, sessions[0], 1), ask(t, q, sessions[1], 1)
	if first.Token.Position != 0 || second.Token.Position != 1 {
		t.Fatalf("positions %d and %d, expected 0 and 1", first.Token.Position, second.Token.Position)
	}
	if a := ask(t, q, sessions[2], 1); a.Kind != AnswerWait {
		t.Fatalf("third trainer: expected no task, got %+v", a)
	}
	if list, ok := q.Contributors(); !ok || len(list) != 2 {
		t.Errorf("contributors %v, %v; expected two", list, ok)
	}
	q.Apply(1, &Leave{sessions[1].Ordinal, sessions[1].Incarnation})
	if list, ok := q.Contributors(); ok {
		t.Errorf("position 1 is due: expected no step, got one of %v", list)
	}
	if a := ask(t, q, sessions[2], 2); a.Kind != AnswerTask || a.Token.Position != 1 {
		t.Errorf("third trainer: expected position 1, got %+v", a)
	}
	q.Apply(1, &Leave{sessions[2].Ordinal, sessions[2].Incarnation})
	if a := ask(t, q, sessions[0], 2, Result{Token: first.Token}); a.Kind != AnswerTask || a.Token.Position != 2 {
		t.Errorf("first trainer: expected position 2, got %+v", a)
	}
	if list, ok := q.Contributors(); ok {
		t.Errorf("one trainer is missing: expected no step, got one of %v", list)
	}
}
