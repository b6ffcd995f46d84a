package optimizer

import "math"

// adam is Adam, and AdamW, whose decay stays out of the gradient.
type adam struct {
	shaping
	rate         float32
	beta1, beta2 float64
	epsilon      float32
	apart        float32 // AdamW's decay
}

func (*adam) Slots() []string        { return []string{"exp_avg", "exp_avg_sq"} }
func (*adam) Start([]float32, State) {}

func (o *adam) Apply(params, grad []float32, state State, step Step) {
	o.shape(params, grad)
	var (
		scaled  = o.rate * step.Scale
		rate    = float32(float64(scaled) / (1 - math.Pow(o.beta1, float64(step.Count))))
		inverse = float32(1 / math.Sqrt(1-math.Pow(o.beta2, float64(step.Count))))
		decay   = scaled * o.apart
		epsilon = o.epsilon
		b1, c1  = float32(o.beta1), float32(1 - o.beta1)
		b2, c2  = float32(o.beta2), float32(1 - o.beta2)
		means   = state[0][:len(params)]
		squares = state[1][:len(params)]
	)
	for i, g := range grad[:len(params)] {
		m := float32(b1*means[i]) + float32(c1*g)
		v := float32(b2*squares[i]) + float32(c2*float32(g*g))
		means[i], squares[i] = m, v
		p := params[i]
		params[i] = p - (float32(decay*p) + float32(rate*m)/(float32(root(v)*inverse)+epsilon))
	}
}
