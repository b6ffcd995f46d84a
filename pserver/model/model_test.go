package model

import (
	"strings"
	"testing"

	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/staleness"
	"trainmaster/pserver/table"
)

func newModel(t *testing.T, synchronous bool, shards int, tables ...table.Config) *Model {
	t.Helper()
	placed, err := placement.New([]placement.Tensor{{Name: "w", Shape: []int{3, 4}}}, shards, tables...)
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(optimizer.Config{Kind: optimizer.SGD, LearningRate: 0.1}, synchronous, placed)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// The With methods return a model that differs, and leave the original as it was.
func TestWithMethodsLeaveTheOriginal(t *testing.T) {
	rows := table.Config{Name: "rows", Dim: 2, Init: table.Zeros}
	m, same := newModel(t, false, 2, rows), newModel(t, false, 2, rows)
	keyed := m.WithKey(table.Key{1, 2})
	bounded, err := m.WithStaleness(staleness.Bound{Policy: staleness.Scale, Limit: 3})
	if err != nil {
		t.Fatal(err)
	}
	for name, changed := range map[string]*Model{"key": keyed, "staleness": bounded} {
		if changed.Equal(m) {
			t.Errorf("%s: the changed model equals the original", name)
		}
	}
	if !m.Equal(same) || m.Differ(same) != nil {
		t.Errorf("the original changed: %v", m.Differ(same))
	}
}

func TestDifferNamesFirstDifference(t *testing.T) {
	m := newModel(t, false, 2)
	bounded, err := m.WithStaleness(staleness.Bound{Policy: staleness.Scale})
	if err != nil {
		t.Fatal(err)
	}
	rows := table.Config{Name: "rows", Dim: 2, Init: table.Zeros}
	for want, other := range map[string]*Model{
		"this model has 2 shards, yours 3":                  newModel(t, false, 3),
		"updated in mode async, yours in mode sync":         newModel(t, true, 2),
		`staleness bound "apply", yours "scale beyond 0"`:   bounded,
		`your model has the table "rows", this one has not`: newModel(t, false, 2, rows),
	} {
		if err := m.Differ(other); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("difference %v, expected %q", err, want)
		}
	}
}

func TestContradictorySettingsReturnErrors(t *testing.T) {
	rows := table.Config{Name: "rows", Dim: 2, Init: table.Zeros}
	placed := newModel(t, false, 1, rows).Placement
	if _, err := New(optimizer.Config{Kind: optimizer.SGD, LearningRate: 1, ClipNorm: 1}, false, placed); err == nil || !strings.Contains(err.Error(), "use clip-value") {
		t.Errorf("clip-norm with tables: %v", err)
	}
	if _, err := newModel(t, true, 1).WithStaleness(staleness.Bound{Policy: staleness.Scale}); err == nil || !strings.Contains(err.Error(), "never stale") {
		t.Errorf("staleness bound in mode sync: %v", err)
	}
}
