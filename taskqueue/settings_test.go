package taskqueue

import (
	"errors"
	"math"
	"slices"
	"testing"
)

// queueAtVersion returns the queue of a synchronous job.
func queueAtVersion(t *testing.T, version uint64) *Queue {
	t.Helper()
	q := New("job", [16]byte{1}, 1, Options{Sync: true})
	q.sync.last = Step{Version: version}
	return q
}

func change(t *testing.T, q *Queue, ev *SetJob) Answer {
	t.Helper()
	a := q.Apply(q.Clock(), ev)
	if a.Err != nil {
		t.Fatal(a.Err)
	}
	return a
}

// scales returns the factors of the versions from first to last.
func scales(q *Queue, first, last uint64) (list []float32) {
	for v := first; v <= last; v++ {
		list = append(list, q.rateAt(v).Scale)
	}
	return list
}

func TestLearningRateAppliesFromTheNextVersion(t *testing.T) {
	q := queueAtVersion(t, 4)
	if a := change(t, q, &SetJob{Scale: 0.5, Rate: 0.05}); a.Version != 5 {
		t.Errorf("expected version 5, found %d", a.Version)
	}
	q.sync.last.Version = 7
	change(t, q, &SetJob{Scale: 0.25})
	if got := scales(q, 3, 9); !slices.Equal(got, []float32{1, 1, 0.5, 0.5, 0.5, 0.25, 0.25}) {
		t.Errorf("factors of versions 3 to 9: found %v", got)
	}
	if r := q.LearningRate(); r != (RateChange{Number: 2, From: 8, Scale: 0.25}) {
		t.Errorf("found %+v", r)
	}
}

// A rollback returns to the factors of the versions that are made again. A request after the rollback replaces them.
func TestRollbackRepeatsLearningRates(t *testing.T) {
	q := queueAtVersion(t, 4)
	change(t, q, &SetJob{Scale: 0.5})
	q.sync.last.Version = 7
	change(t, q, &SetJob{Scale: 0.25})
	q.resetSteps(Step{Version: 2})
	if got := scales(q, 3, 9); !slices.Equal(got, []float32{1, 1, 0.5, 0.5, 0.5, 0.25, 0.25}) {
		t.Errorf("factors of versions 3 to 9: found %v", got)
	}
	if a := change(t, q, &SetJob{Scale: 1}); a.Version != 3 {
		t.Errorf("expected version 3, found %d", a.Version)
	}
	if got := scales(q, 3, 9); !slices.Equal(got, []float32{1, 1, 1, 1, 1, 1, 1}) {
		t.Errorf("after a request at version 2: found %v", got)
	}
	if q.rateNumber != 3 {
		t.Errorf("expected change 3, found %d", q.rateNumber)
	}
}

// A complete set removes only changes that no later version uses. Without a set, the number of changes is limited.
func TestCheckpointSetForgetsLearningRates(t *testing.T) {
	q := queueAtVersion(t, 0)
	for i := range maxRates {
		change(t, q, &SetJob{Scale: float32(i + 2)})
		q.sync.last.Version++
	}
	if a := q.Apply(q.Clock(), &SetJob{Scale: 1}); !errors.Is(a.Err, ErrTooManyRates) {
		t.Errorf("expected %v, found %v", ErrTooManyRates, a.Err)
	}
	before := scales(q, 11, maxRates)
	q.forgetRates(10)
	if got := scales(q, 11, maxRates); !slices.Equal(got, before) || len(q.rates) != maxRates-10 {
		t.Errorf("%d changes: expected the factors %v, found %v", len(q.rates), before, got)
	}
	change(t, q, &SetJob{Scale: 1})
}

// A learning rate that is too small for a factor is refused: a factor of 0 means no change.
func TestLearningRateWithoutAFactorIsRefused(t *testing.T) {
	q := New("job", [16]byte{1}, 1, Options{})
	if a := q.Apply(q.Clock(), &SetJob{Rate: 1e-45}); !errors.Is(a.Err, ErrBadSetting) {
		t.Errorf("found %v, expected %v", a.Err, ErrBadSetting)
	}
}

func TestAsynchronousJobKeepsTheNewestLearningRate(t *testing.T) {
	q := New("job", [16]byte{1}, 1, Options{})
	for _, scale := range []float32{0.5, 0.25, 0.25} {
		change(t, q, &SetJob{Scale: scale, Rate: scale})
	}
	want := RateChange{Number: 2, Scale: 0.25, Rate: 0.25}
	if !slices.Equal(q.rates, []RateChange{want}) {
		t.Errorf("expected %+v alone, found %+v", want, q.rates)
	}
	ready := q.Ready()
	if i := slices.Index(ready.Effects, Effect(RateChanged{want})); i < 0 {
		t.Errorf("expected the effect of %+v, found %+v", want, ready.Effects)
	}
	restored, err := Restore(q.Snapshot(1, 2), nil, nil, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(restored.Outstanding(), func(e Effect) bool { return e == Effect(RateChanged{want}) }); i < 0 {
		t.Errorf("next term: expected the effect of %+v, found %+v", want, restored.Outstanding())
	}
}

// A step stores its factor, with which all servers apply it.
func TestStepHasItsLearningRate(t *testing.T) {
	q := queueAtVersion(t, 4)
	change(t, q, &SetJob{Scale: 0.5})
	a := q.Apply(q.Clock(), &Join{ID: "a"})
	by := Contributor{a.Ordinal, a.Incarnation, 3}
	if a := q.Apply(q.Clock(), &Report{Digest: [32]byte{7}, ReportID: "r", Table: tableOf(t, 8)}); a.Err != nil {
		t.Fatal(a.Err)
	}
	if a := q.Apply(q.Clock(), &Request{Trainer: by.Ordinal, Incarnation: by.Incarnation, Seq: 1, Want: true}); a.Kind != AnswerTask {
		t.Fatalf("expected a task, found %+v", a)
	}
	if a := q.Apply(q.Clock(), &StageGradients{By: by, Version: 4}); a.Err != nil {
		t.Fatal(a.Err)
	}
	q.Ready()
	step, err := DecodeStep(q.sync.last.Encode())
	if err != nil || step.Version != 5 || step.Scale != 0.5 {
		t.Errorf("expected version 5 with 0.5, found %+v, %v", step, err)
	}
}

func TestSettingsChangeAllOrNothing(t *testing.T) {
	q := New("job", [16]byte{1}, 1, Options{})
	for i, name := range []string{"books", "news"} {
		if a := q.Apply(1, &Report{SetSpec: SetSpec{Name: name}, Digest: [32]byte{byte(i)}, ReportID: name, Table: tableOf(t, 8)}); a.Err != nil {
			t.Fatal(a.Err)
		}
	}
	for name, ev := range map[string]*SetJob{
		"unknown dataset": {Scale: 0.5, Weights: map[string]int{"books": 2, "maps": 2}},
		"weight 0":        {Scale: 0.5, Weights: map[string]int{"books": 2, "news": 0}},
		"negative factor": {Scale: -1, Weights: map[string]int{"books": 2}},
		"not finite":      {Scale: float32(math.Inf(1)), Weights: map[string]int{"books": 2}},
	} {
		if a := q.Apply(1, ev); !errors.Is(a.Err, ErrBadSetting) {
			t.Errorf("%s: expected %v, found %v", name, ErrBadSetting, a.Err)
		}
		if q.sets[0].weight != 1 || len(q.rates) > 0 {
			t.Errorf("%s: weight %d, %d learning rates: expected no change", name, q.sets[0].weight, len(q.rates))
		}
	}
	q.Apply(1, &Fail{})
	if a := q.Apply(1, &SetJob{Scale: 0.5}); !errors.Is(a.Err, ErrJobOver) {
		t.Errorf("expected %v, found %v", ErrJobOver, a.Err)
	}
}

// Credits belong to the former weights: with them, a dataset could wait for a debt of its former weight.
func TestNewWeightClearsCredits(t *testing.T) {
	q := New("job", [16]byte{1}, 1, Options{})
	for i, name := range []string{"books", "news"} {
		if a := q.Apply(1, &Report{SetSpec: SetSpec{Name: name, Weight: 1000 - 999*i}, Digest: [32]byte{byte(i)}, ReportID: name, Table: tableOf(t, 8)}); a.Err != nil {
			t.Fatal(a.Err)
		}
	}
	ask := func() int {
		a := q.Apply(1, &PlainAsk{Connection: "10.0.0.9:1", Want: true})
		if a.Kind != AnswerTask {
			t.Fatalf("expected a task, found %+v", a)
		}
		return a.Set
	}
	for range 3 {
		ask()
	}
	if q.sets[0].credit == 0 {
		t.Fatal("expected a credit, found none")
	}
	q.Ready()
	change(t, q, &SetJob{Weights: map[string]int{"books": 1}})
	if q.sets[0].credit != 0 || q.sets[1].credit != 0 {
		t.Errorf("expected no credits, found %d and %d", q.sets[0].credit, q.sets[1].credit)
	}
	list, err := events(q.Ready().Entries)
	if want := (LedgerEvent{Kind: EventWeighted, Set: 0, Weight: 1}); err != nil || !slices.Contains(list, want) {
		t.Errorf("expected the entry %+v, found %+v, %v", want, list, err)
	}
	var of [2]int
	for range 4 {
		of[ask()]++
	}
	if of != [2]int{2, 2} {
		t.Errorf("4 tasks with equal weights: expected 2 of each dataset, found %v", of)
	}
}
