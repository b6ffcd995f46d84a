package modelfile_test

import (
	"path/filepath"
	"strings"
	"testing"

	"trainmaster/internal/safetensors"
	"trainmaster/internal/usage"
	"trainmaster/pserver/checkpoint/modelfile"
)

// open opens a safetensors file with tensors.
func open(t *testing.T, tensors ...safetensors.Tensor) modelfile.Weights {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.safetensors")
	if err := safetensors.WriteFile(path, tensors, nil); err != nil {
		t.Fatal(err)
	}
	m, done, err := modelfile.OpenWeights(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(done)
	return m
}

func TestDiffComparesRowsByID(t *testing.T) {
	table := func(ids []int64, rows ...float32) []safetensors.Tensor {
		return []safetensors.Tensor{safetensors.FromInt64("users.ids", []int{len(ids)}, ids), safetensors.FromFloat32("users.rows", []int{len(ids), 1}, rows)}
	}
	a := open(t, append(table([]int64{1, 2, 5}, 10, 20, 50), safetensors.FromFloat32("w", []int{2}, []float32{1, 2}))...)
	b := open(t, append(table([]int64{2, 5, 7}, 20, 51, 70), safetensors.FromFloat32("w", []int{2}, []float32{1, 2}))...)
	diffs, err := modelfile.Diff(a, b)
	if err != nil {
		t.Fatal(err)
	}
	if len(diffs) != 1 || diffs[0].Name != "users" || diffs[0].Rows == nil || *diffs[0].Rows != (modelfile.RowsDiff{OnlyA: 1, OnlyB: 1, Differ: 1}) || *diffs[0].MaxAbs != 1 {
		t.Errorf("found %+v, expected the table with a row only in A, a row only in B, and one difference of 1", diffs)
	}
	if diffs, err := modelfile.Diff(a, a); err != nil || len(diffs) != 0 {
		t.Errorf("the same model: found %+v, %v", diffs, err)
	}
}

func TestOpenRefusesOtherFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weights.bin")
	if err := safetensors.WriteFile(path, nil, nil); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := modelfile.OpenSet(t.Context(), path); !usage.Is(err) || !strings.Contains(err.Error(), "sets/<number>.json") {
		t.Errorf("found %v, expected a usage error that names the file of a set", err)
	}
}
