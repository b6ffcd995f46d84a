package optimizer

import "math"

// adam is Adam, and AdamW, whose decay stays out of the gradient.
type adam struct {
	shaping
	rate           float32
	beta1, beta2   float64
	epsilon        float32
	decoupledDecay float32 // AdamW's decay
}

func (*adam) Slots() []string { return []string{"exp_avg", "exp_avg_sq"} }

func (o *adam) Apply(params, grad []float32, state State, step Step) {
	o.shape(params, grad)
	scaled := o.rate * step.Scale
	o.run(loopAdam, numbers{
		rate:    float32(float64(scaled) / (1 - math.Pow(o.beta1, float64(step.Count)))),
		inverse: float32(1 / math.Sqrt(1-math.Pow(o.beta2, float64(step.Count)))),
		decay:   scaled * o.decoupledDecay,
		epsilon: o.epsilon,
		beta1:   float32(o.beta1), rest1: float32(1 - o.beta1),
		beta2: float32(o.beta2), rest2: float32(1 - o.beta2),
	}, params, grad, state)
}

func adamPlain(k numbers, params, grad []float32, state State) {
	means, squares := state[0], state[1]
	for i, g := range grad {
		m := float32(k.beta1*means[i]) + float32(k.rest1*g)
		v := float32(k.beta2*squares[i]) + float32(k.rest2*float32(g*g))
		means[i], squares[i] = m, v
		p := params[i]
		params[i] = p - (float32(k.decay*p) + float32(k.rate*m)/(float32(root(v)*k.inverse)+k.epsilon))
	}
}
