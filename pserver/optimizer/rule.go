package optimizer

import "gonum.org/v1/gonum/blas/blas32"

// MaxSlots is the most numbers that a rule keeps beside a parameter.
const MaxSlots = 2

// State is what a rule keeps: as many slices as it has slots, each as long as the
// parameters. The others are nil.
type State [MaxSlots][]float32

// Step says which update it is.
type Step struct {
	Count uint64  // of the updates of these parameters, this one too: from 1
	Scale float32 // what the learning rate is multiplied by
}

// Rule changes parameters by gradients. It may be used by several goroutines at once.
type Rule interface {
	// Slots names what is kept beside each parameter.
	Slots() []string

	// Start sets the state that goes with first parameters; it is all 0 before.
	Start(params []float32, state State)

	// Apply changes params and state by grad, the mean gradient. It leaves other values in grad.
	Apply(params, grad []float32, state State, step Step)
}

// shaping is what comes before a rule.
type shaping struct {
	clip  float32 // 0: none
	decay float32
}

func (s shaping) shape(params, grad []float32) {
	if s.clip != 0 {
		clamp(grad, s.clip)
	}
	if s.decay != 0 {
		axpy(s.decay, params, grad)
	}
}

func clamp(values []float32, limit float32) {
	for i, v := range values {
		if v > limit {
			values[i] = limit
		} else if v < -limit {
			values[i] = -limit
		}
	}
}

// axpy adds a*x to y. Products are rounded before they are added.
func axpy(a float32, x, y []float32) { blas32.Axpy(a, vector(x), vector(y)) }

func scale(a float32, x []float32) { blas32.Scal(a, vector(x)) }

func vector(f []float32) blas32.Vector { return blas32.Vector{N: len(f), Data: f, Inc: 1} }
