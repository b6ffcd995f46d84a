package reference

import (
	"errors"
	"math"
	"slices"
	"testing"

	"trainmaster/pserver/optimizer"
	"trainmaster/trainer/model"
	"trainmaster/trainer/params"
)

// The update of a replica is the update of parameter servers with the mean gradient over all records, and its state is in the vectors.
func TestReplicaAppliesMeanGradient(t *testing.T) {
	config := params.Optimizer{Kind: params.Momentum, LearningRate: 0.5, Momentum: 0.5}
	initial := []model.Tensor{{Name: "a", Shape: []int{2}, Data: []float32{1, 2}}, {Name: "b", Shape: []int{1}, Data: []float32{3}}}
	r := newReplica("", config, initial)
	want, state := []float32{1, 2, 3}, optimizer.State{make([]float32, 3)}
	for version, sum := range [][]float32{{8, -4, 2}, {1, 2, 3}} {
		mean := []float32{sum[0] / 8, sum[1] / 8, sum[2] / 8}
		config.Rule().Apply(want, mean, state, optimizer.Step{Count: uint64(version + 1), Scale: 1})
		if err := r.Apply(uint64(version+1), slices.Clone(sum), 8, 0); err != nil {
			t.Fatal(err)
		}
	}
	if vectors := r.Vectors(); !slices.Equal(vectors[0], want) || !slices.Equal(vectors[1], state[0]) || len(vectors) != 2 {
		t.Errorf("expected %v with state %v, found %v", want, state[0], vectors)
	}
	if r.tensors[1].Data[0] != want[2] || initial[0].Data[0] != 1 {
		t.Errorf("expected tensors that share the parameters, found %v and %v", r.tensors, initial)
	}
	before := slices.Clone(r.parameters)
	if err := r.Apply(3, []float32{1, float32(math.Inf(1)), 0}, 8, 0); !errors.Is(err, ErrDiverged) || !slices.Equal(before, r.parameters) {
		t.Errorf("a sum that is not finite: expected ErrDiverged and no change, found %v", err)
	}
}
