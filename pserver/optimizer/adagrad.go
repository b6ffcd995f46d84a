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
	o.run(loopAdagrad, numbers{rate: o.rate * step.Scale, epsilon: o.epsilon}, params, grad, state)
}

func adagradPlain(k numbers, params, grad []float32, state State) {
	sums := state[0]
	for i, g := range grad {
		s := sums[i] + float32(g*g)
		sums[i] = s
		params[i] -= float32(k.rate*g) / (root(s) + k.epsilon)
	}
}

// root is the square root, rounded once.
func root(v float32) float32 { return float32(math.Sqrt(float64(v))) }
