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
	if o.stateful() {
		momentumStep(params, state, grad, o.rate*scale, o.momentum)
		return
	}
	axpy(-o.rate*scale, grad, params)
}

// axpy adds a*x to y.
func axpy(a float32, x, y []float32) {
	blas32.Axpy(a, blas32.Vector{N: len(x), Data: x, Inc: 1}, blas32.Vector{N: len(y), Data: y, Inc: 1})
}

// momentumStep sets v = momentum*v + g and p -= rate*v. The products are
// rounded before they are added (the conversions forbid the compiler to fuse
// them), so that all machines agree on the bits.
func momentumStep(p, v, g []float32, rate, momentum float32) {
	v, g = v[:len(p)], g[:len(p)]
	for len(p) >= 4 {
		pp, vv, gg := (*[4]float32)(p), (*[4]float32)(v), (*[4]float32)(g)
		v0 := float32(momentum*vv[0]) + gg[0]
		v1 := float32(momentum*vv[1]) + gg[1]
		v2 := float32(momentum*vv[2]) + gg[2]
		v3 := float32(momentum*vv[3]) + gg[3]
		vv[0], vv[1], vv[2], vv[3] = v0, v1, v2, v3
		pp[0] -= float32(rate * v0)
		pp[1] -= float32(rate * v1)
		pp[2] -= float32(rate * v2)
		pp[3] -= float32(rate * v3)
		p, v, g = p[4:], v[4:], g[4:]
	}
	for i := range p {
		v[i] = float32(momentum*v[i]) + g[i]
		p[i] -= float32(rate * v[i])
	}
}
