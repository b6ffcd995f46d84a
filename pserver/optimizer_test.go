package pserver

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

func normal(r *rand.Rand, n int) []float32 {
	f := make([]float32, n)
	for i := range f {
		f[i] = float32(r.NormFloat64())
	}
	return f
}

// The rules, element by element as they are written down, have the same bits as
// the loops that do many at a time, for every length and in every piece.
func TestOptimizersFollowTheirFormula(t *testing.T) {
	for _, o := range []optimizer{{sgdKind, 0.1, 0}, {momentumKind, 0.1, 0.9}, {momentumKind, 0.3, 0}} {
		r := rand.New(rand.NewPCG(1, 2))
		for _, n := range []int{0, 1, 3, 4, 5, 31, 4096, 5000} {
			params, state := normal(r, n), normal(r, n)
			wantParams, wantState := append([]float32(nil), params...), append([]float32(nil), state...)
			for range 3 {
				grad := normal(r, n)
				for i, g := range grad {
					change := g
					if o.stateful() {
						wantState[i] = float32(o.momentum*wantState[i]) + g
						change = wantState[i]
					}
					wantParams[i] -= float32(float32(o.rate*0.5) * change)
				}
				for lo := 0; lo < n; lo += 1000 { // pieces, as a block is stepped
					hi := min(lo+1000, n)
					o.step(params[lo:hi], state[lo:hi], grad[lo:hi], 0.5)
				}
			}
			for i := range params {
				if math.Float32bits(params[i]) != math.Float32bits(wantParams[i]) || math.Float32bits(state[i]) != math.Float32bits(wantState[i]) {
					t.Fatalf("%+v, %d elements: element %d is %v with state %v, expected %v with %v",
						o, n, i, params[i], state[i], wantParams[i], wantState[i])
				}
			}
		}
	}
}

func TestOptimizersThatMakeNoSense(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for want, o := range map[string]optimizer{
		`optimizer "adam": expected`:      {"adam", 0.1, 0},
		"learning rate 0":                 {sgdKind, 0, 0},
		"learning rate -1":                {sgdKind, -1, 0},
		"learning rate +Inf":              {sgdKind, inf, 0},
		"learning rate NaN":               {momentumKind, nan, 0},
		"sgd has momentum 0.5":            {sgdKind, 1, 0.5},
		"momentum has momentum 1: ":       {momentumKind, 1, 1},
		"momentum has momentum -0.5":      {momentumKind, 1, -0.5},
		"momentum has momentum NaN: expe": {momentumKind, 1, nan},
	} {
		if err := o.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, expected %q", o, err, want)
		}
	}
}

func BenchmarkStep(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	p, v, g := normal(r, pieceElements), normal(r, pieceElements), normal(r, pieceElements)
	for _, o := range []optimizer{{sgdKind, 1e-9, 0}, {momentumKind, 1e-9, 0.9}} {
		b.Run(o.kind, func(b *testing.B) {
			b.SetBytes(4 * pieceElements)
			for b.Loop() {
				o.step(p, v, g, 1)
			}
		})
	}
}
