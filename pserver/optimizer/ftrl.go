package optimizer

type ftrl struct {
	shaping
	rate, beta, initial, l1, l2 float32
}

func (*ftrl) Slots() []string { return []string{"z", "n"} }

func (o *ftrl) Start(params []float32, state State) {
	q := float32((o.beta + root(o.initial)) * (1 / o.rate))
	for i, p := range params {
		state[0][i] = -float32(q * p)
		state[1][i] = o.initial
	}
}

func (o *ftrl) Apply(params, grad []float32, state State, step Step) {
	o.shape(params, grad)
	var (
		beta, l1, l2 = o.beta, o.l1, o.l2
		inverse      = 1 / o.rate
		scale        = step.Scale
		zs           = state[0][:len(params)]
		ns           = state[1][:len(params)]
	)
	for i, g := range grad[:len(params)] {
		before := root(ns[i])
		ns[i] += float32(g * g)
		after := root(ns[i])
		zs[i] += float32(scale*g) - float32(float32((after-before)*inverse)*params[i])
		grad[i] = float32((beta+after)*inverse) + l2
	}
	for i, z := range zs { // apart: together they would wait for each other's registers
		params[i] = (max(-l1, min(l1, z)) - z) / grad[i] // 0 where |z| <= l1
	}
}
