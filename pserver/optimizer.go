package pserver

import (
	"fmt"
	"math"

	"gonum.org/v1/gonum/blas/blas32"
)

// The kinds of optimizers.
const (
	sgdKind      = "sgd"
	momentumKind = "momentum"
)

// optimizer is the rule by which a gradient changes parameters. Every element
// is computed by itself, so that a block may be stepped in pieces.
type optimizer struct {
	kind     string
	rate     float32
	momentum float32
}

func (o optimizer) check() error {
	if o.kind != sgdKind && o.kind != momentumKind {
		return fmt.Errorf("optimizer %q: expected %q or %q", o.kind, sgdKind, momentumKind)
	}
	if rate := float64(o.rate); !(rate > 0) || math.IsInf(rate, 0) {
		return fmt.Errorf("optimizer %s has learning rate %v: expected a positive number", o.kind, o.rate)
	}
	if o.kind == sgdKind && o.momentum != 0 {
		return fmt.Errorf("optimizer %s has momentum %v: expected 0, or the optimizer %s", o.kind, o.momentum, momentumKind)
	}
	if !(o.momentum >= 0 && o.momentum < 1) {
		return fmt.Errorf("optimizer %s has momentum %v: expected at least 0 and below 1", o.kind, o.momentum)
	}
	return nil
}

// stateful says whether the rule keeps a number per parameter.
func (o optimizer) stateful() bool { return o.kind == momentumKind }

// step changes params, and state, by grad; scale multiplies the learning rate.
func (o optimizer) step(params, state, grad []float32, scale float32) {
	rate := o.rate * scale
	if o.stateful() {
		blas32.Scal(o.momentum, vector(state))
		axpy(1, grad, state)
		grad = state
	}
	axpy(-rate, grad, params)
}

// axpy adds a*x to y. Products are rounded before they are added.
func axpy(a float32, x, y []float32) { blas32.Axpy(a, vector(x), vector(y)) }

func vector(f []float32) blas32.Vector { return blas32.Vector{N: len(f), Data: f, Inc: 1} }
