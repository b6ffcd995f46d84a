package shard

import (
	"slices"
	"testing"
	"time"

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

// A trainer that takes an expired claim over replaces the model, even if only the staleness bound differs.
func TestSuccessorBringsItsModel(t *testing.T) {
	s := New(nil, 0, 1, time.Second, 1<<30)
	now := time.Now()
	first, second := modelOf(t, 10), modelOf(t, 10)
	second.Staleness.Policy = "scale"
	if o, _, _, err := s.Claim(first, 1, 100, now); o != OutcomeClaimed || err != nil {
		t.Fatal(o, err)
	}
	if o, _, _, err := s.Claim(second, 2, 200, now.Add(time.Minute)); o != OutcomeClaimed || err != nil {
		t.Fatal(o, err)
	}
	if found := s.view.Load().model; found != second {
		t.Errorf("the model has staleness bound %q, expected the bound of the second model", found.Staleness)
	}
}

// Of the parts of a set with different retirements, the newest retirement counts for all.
func TestRestoredRetirements(t *testing.T) {
	s := New(nil, 0, 1, time.Minute, 1<<20)
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
