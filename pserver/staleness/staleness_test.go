package staleness_test

import (
	"strings"
	"testing"

	"trainmaster/pserver/staleness"
)

func TestWeight(t *testing.T) {
	for _, tt := range []struct {
		bound staleness.Bound
		want  []float32 // of staleness 0, 1, ...
	}{
		{staleness.Bound{}, []float32{1, 1, 1, 1, 1}},
		{staleness.Bound{Policy: staleness.Scale}, []float32{1, 1, 0.5, 1. / 3, 0.25}}, // Zhang et al., equation 6
		{staleness.Bound{Policy: staleness.Scale, Limit: 2}, []float32{1, 1, 1, 1. / 3, 0.25}},
	} {
		for age, want := range tt.want {
			if got := tt.bound.Weight(uint64(age)); got != want {
				t.Errorf("%v: weight %v at staleness %d, expected %v", tt.bound, got, age, want)
			}
		}
	}
}

func TestValidate(t *testing.T) {
	for words, bound := range map[string]staleness.Bound{
		"staleness limit 3 without a policy":         {Limit: 3},
		`policy "reject": expected one of apply, sc`: {Policy: "reject"}, // earlier versions had it
	} {
		if err := bound.Validate(); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%v: %v, expected an error with %q", bound, err, words)
		}
	}
	plain := staleness.Bound{Policy: staleness.Apply}
	if err := plain.Validate(); err != nil || plain != (staleness.Bound{}) {
		t.Errorf("%+v, %v: expected the zero value", plain, err)
	}
}
