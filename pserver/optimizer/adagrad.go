package optimizer

import "math"

type adagrad struct {
	shaping
	rate, epsilon, initial float32
}

func (*adagrad) Slots() []string { return []string{"sum"} }

func (o *adagrad) Start(_ []float32, state State) {
	for i := range state[0] {
		state[0][i] = o.initial
	}
}

func (o *adagrad) Apply(params, grad []float32, state State, step Step) {
	o.shape(params, grad)
	rate, epsilon := o.rate*step.Scale, o.epsilon
	sums := state[0][:len(params)]
	for i, g := range grad[:len(params)] {
		s := sums[i] + float32(g*g)
		sums[i] = s
		params[i] -= float32(rate*g) / (root(s) + epsilon)
	}
}

// root is the square root, rounded once.
func root(v float32) float32 { return float32(math.Sqrt(float64(v))) }
