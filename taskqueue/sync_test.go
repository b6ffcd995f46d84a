package taskqueue

import (
	"errors"
	"slices"
	"testing"
)

// syncQueue returns a queue of a synchronous job in which n trainers have a task.
func syncQueue(t *testing.T, n int, opt Options) (*Queue, []Answer) {
	t.Helper()
	opt.Sync = true
	q := New("job", [16]byte{}, 1, opt)
	q.Apply(1, &Report{Digest: [32]byte{1}, Table: tableOf(t, 2*n)})
	joined := make([]Answer, n)
	for i := range joined {
		joined[i] = q.Apply(1, &Join{ID: string(rune('a' + i))})
		if a := q.Apply(1, &Request{Trainer: joined[i].Ordinal, Incarnation: joined[i].Incarnation, Seq: 1, Want: true, Epoch: 1}); a.Kind != AnswerTask {
			t.Fatalf("no task: %+v", a)
		}
	}
	q.Ready()
	return q, joined
}

func stageAt(q *Queue, by Answer, version uint64) Answer {
	return q.Apply(1, &StageGradients{By: Contributor{by.Ordinal, by.Incarnation, 5}, Version: version, Epoch: by.Epoch})
}

func TestReadyCompletesAStepOnceAllHaveStaged(t *testing.T) {
	q, by := syncQueue(t, 2, Options{})
	if a := stageAt(q, by[0], 0); a.Kind != AnswerWait || a.WaitFor != WaitStep {
		t.Errorf("staged: got %+v", a)
	}
	if r := q.Ready(); r.MustCommit {
		t.Errorf("one of two trainers staged: expected no step, found %+v", r)
	}
	stageAt(q, by[1], 0)
	r := q.Ready()
	if len(r.Writes) != 1 || r.Writes[0].Key != StepKey || !slices.Contains(r.Effects, Effect(Unblocked{WaitStep})) {
		t.Fatalf("writes %+v, effects %+v", r.Writes, r.Effects)
	}
	if step, err := DecodeStep(r.Writes[0].Value); err != nil || step.Version != 1 || step.Epoch != 1 || len(step.Contributors) != 2 {
		t.Errorf("step %+v, %v", step, err)
	}
	if a := stageAt(q, by[0], 0); a.Kind != AnswerNone || a.Version != 1 || !a.Included {
		t.Errorf("repeated report: got %+v", a)
	}
	if r := q.Ready(); r.MustCommit {
		t.Errorf("committed step: expected no second commit, found %+v", r)
	}
}

// The store refuses a step. The same stages complete the step in the next batch.
func TestStagesOfARefusedStepCountAgain(t *testing.T) {
	q, by := syncQueue(t, 2, Options{})
	stored, roster := q.Snapshot(1, 2), q.encodedRoster()
	stageAt(q, by[0], 0)
	stageAt(q, by[1], 0)
	if !q.Ready().MustCommit {
		t.Fatal("expected a step")
	}
	back, err := Restore(stored, roster, []*Table{nil}, Options{Sync: true})
	if err != nil {
		t.Fatal(err)
	}
	back.Continue(q)
	if step, _ := back.SyncStep(); step.Version != 0 {
		t.Errorf("after a refused commit the step is %+v", step)
	}
	if back.Ready(); back.sync.last.Version != 1 {
		t.Errorf("the step after the refused one is %+v", back.sync.last)
	}
}

// Gradients staged before a rollback belong to discarded parameters.
func TestRollbackResetsTheStep(t *testing.T) {
	q, by := syncQueue(t, 2, Options{ExplicitCommit: true, Cuts: true})
	first := by[0]
	first.Epoch = 0 // the committer fills in the epoch of the answer when it parks the request
	a := stageAt(q, first, 0)
	if a.Epoch != 1 {
		t.Errorf("staged: %+v", a)
	}
	if a := q.Apply(1, &Rollback{Generation: 1, Step: 0, Version: 4}); a.Err != nil {
		t.Fatal(a.Err)
	}
	r := q.Ready()
	if step, _ := q.SyncStep(); step.Version != 4 || step.Epoch != 2 || q.sync.anyStaged() {
		t.Errorf("after the rollback: step %+v, staged %v", step, q.sync.staged)
	}
	if !slices.ContainsFunc(r.Writes, func(w Write) bool { return w.Key == StepKey }) || !slices.Contains(r.Effects, Effect(Unblocked{WaitStep})) {
		t.Errorf("writes %+v, effects %+v", r.Writes, r.Effects)
	}
	if a := stageAt(q, by[0], 0); !errors.Is(a.Err, ErrRolledBack) {
		t.Errorf("staged in epoch 1: %+v", a)
	}
}

func TestOutstandingNamesTheLastStep(t *testing.T) {
	q, by := syncQueue(t, 1, Options{})
	stageAt(q, by[0], 0)
	r := q.Ready()
	next, err := Restore(q.Snapshot(1, 2), q.encodedRoster(), []*Table{nil}, Options{Sync: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := next.RestoreStep(r.Writes[0].Value); err != nil {
		t.Fatal(err)
	}
	for _, e := range next.Outstanding() {
		if step, ok := e.(StepCommitted); ok {
			if step.Version != 1 || len(step.Contributors) != 1 {
				t.Errorf("outstanding %+v", step)
			}
			return
		}
	}
	t.Error("outstanding effects: expected the last step")
}
