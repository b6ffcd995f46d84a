package optimizer

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"
)

// testdata/golden.json comes from testdata/golden.py, which has the rules in numpy.
func TestGolden(t *testing.T) {
	text, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Start     [][]float32   // by tensor
		Gradients [][][]float32 // by step and tensor
		Cases     []struct {
			Settings string
			Params   [][][]float64 // after every fifth step, by tensor
		}
	}
	if err := json.Unmarshal(text, &golden); err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, tt := range golden.Cases {
		c, err := Parse(tt.Settings)
		if err != nil {
			t.Fatal(err)
		}
		c = validated(t, c)
		seen[c.Kind]++
		rule := c.Rule()
		var params [][]float32
		var states []State
		for _, tensor := range golden.Start {
			params = append(params, slices.Clone(tensor))
			states = append(states, newState(rule, tensor))
		}
		for n, step := range golden.Gradients {
			squares := 0.0
			for _, grad := range step {
				squares += SquareSum(grad)
			}
			for i, grad := range step {
				grad = slices.Clone(grad)
				if c.ClipNorm != 0 {
					Scale(grad, ClipFactor(math.Sqrt(squares), float64(c.ClipNorm)))
				}
				rule.Apply(params[i], grad, states[i], Step{uint64(n) + 1, float32(c.Schedule.At(uint64(n) + 1))})
				if n%5 != 4 {
					continue
				}
				for j, want := range tt.Params[n/5][i] {
					if far(params[i][j], want) {
						t.Fatalf("%s, step %d: element %d of tensor %d is %v, expected %v", tt.Settings, n+1, j, i, params[i][j], want)
					}
				}
			}
		}
	}
	for _, kind := range Kinds() {
		if seen[kind] < 2 {
			t.Errorf("%d cases of %s", seen[kind], kind)
		}
	}
	if len(golden.Gradients) < 50 {
		t.Errorf("%d steps", len(golden.Gradients))
	}
}
