package shard

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/pserver/model"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
)

func modelOf(t *testing.T, elements int) *model.Model {
	t.Helper()
	table, err := placement.New([]placement.Tensor{{Name: "w", Shape: []int{elements}}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(optimizer.Config{Kind: optimizer.SGD, LearningRate: 0.1}, false, table)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// While the first parameters are made durable, no other trainer can claim to initialize, replace the parameters, or declare another
// model.
func TestClaimsWhileTheFirstParametersAreWritten(t *testing.T) {
	for name, second := range map[string]int{"the same model": 10, "another model": 20} {
		t.Run(name, func(t *testing.T) {
			s := New(logrus.NewEntry(logrus.New()), 0, 1, 30*time.Second, 1<<30)
			now := time.Now()
			if o, _, err := s.Claim(modelOf(t, 10), 1, 100, now); o != OutcomeClaimed || err != nil {
				t.Fatal(o, err)
			}
			h := s.view.Load()
			ones := make([]float32, 10)
			for i := range ones {
				ones[i] = 1
			}
			if fault := s.Put(h, h.blocks[0], 100, Values{Floats: ones}, now); fault != nil {
				t.Fatal(fault)
			}
			err := s.Finish(100, func() {
				o, holder, err := s.Claim(modelOf(t, second), 2, 200, now.Add(time.Hour))
				if o != OutcomeWait || holder != 1 || (err != nil) != (second != 10) {
					t.Errorf("second trainer: outcome %v, holder %d, %v", o, holder, err)
				}
				for _, incarnation := range []uint64{0, 100, 200} {
					if s.Put(h, h.blocks[0], incarnation, Values{Floats: make([]float32, 10)}, now) == nil {
						t.Errorf("a put by incarnation %d was taken", incarnation)
					}
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			if got := s.view.Load(); got != h || got.blocks[0].params[0] != 1 {
				t.Error("expected the parameters that were put first")
			}
			if o, _, err := s.Claim(modelOf(t, 10), 2, 200, now); o != OutcomeReady || err != nil {
				t.Errorf("claim after finish: %v, %v", o, err)
			}
		})
	}
}

// A trainer that takes an expired claim over replaces the model, even if only the staleness bound differs.
func TestSuccessorBringsItsModel(t *testing.T) {
	s := New(logrus.NewEntry(logrus.New()), 0, 1, time.Second, 1<<30)
	now := time.Now()
	first, second := modelOf(t, 10), modelOf(t, 10)
	second.Staleness.Policy = "scale"
	if o, _, err := s.Claim(first, 1, 100, now); o != OutcomeClaimed || err != nil {
		t.Fatal(o, err)
	}
	if o, _, err := s.Claim(second, 2, 200, now.Add(time.Minute)); o != OutcomeClaimed || err != nil {
		t.Fatal(o, err)
	}
	if found := s.view.Load().model; found != second {
		t.Errorf("the model has staleness bound %q, expected the bound of the second model", found.Staleness)
	}
}

// A shard that is reset while its first parameters are made durable stays empty: finish returns an error.
func TestRewoundWhileTheFirstParametersAreWritten(t *testing.T) {
	s := New(logrus.NewEntry(logrus.New()), 0, 1, 30*time.Second, 1<<30)
	m := modelOf(t, 10)
	if o, _, err := s.Claim(m, 1, 100, time.Now()); o != OutcomeClaimed || err != nil {
		t.Fatal(o, err)
	}
	h := s.view.Load()
	if fault := s.Put(h, h.blocks[0], 100, Values{Floats: make([]float32, 10)}, time.Now()); fault != nil {
		t.Fatal(fault)
	}
	err := s.Finish(100, func() {
		if err := s.Rollback(2, nil); err != nil {
			t.Fatal(err)
		}
	})
	if !errors.Is(err, ErrNotClaimed) || s.ready.Load() {
		t.Errorf("found %v and ready %v, expected %v", err, s.ready.Load(), ErrNotClaimed)
	}
	if o, _, err := s.Claim(m, 2, 101, time.Now()); o != OutcomeClaimed || err != nil {
		t.Errorf("claim of the next trainer: %v, %v", o, err)
	}
}

// Of the parts of a set with different retirements, the newest retirement counts for all.
func TestRestoredRetirements(t *testing.T) {
	s := New(logrus.NewEntry(logrus.New()), 0, 1, time.Minute, 1<<20)
	r := s.Restore(modelOf(t, 3))
	for ordinal := range uint32(3) {
		r.Trainer(ordinal+1, uint64(ordinal+1))
	}
	r.Retire(NewRetirement("6a", 3, []uint64{2}))
	r.Retire(NewRetirement("6a", 2, []uint64{1}))
	if err := r.Install(0, 1); err != nil {
		t.Fatal(err)
	}
	var left []uint64
	for _, t := range s.rosterLocked() {
		left = append(left, t.Incarnation())
	}
	if !slices.Equal(left, []uint64{2, 3}) {
		t.Errorf("left are %v, expected 2, which is spared, and 3, which is above the floor", left)
	}
}
