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
	o.run(loopFTRL, numbers{beta: o.beta, l1: o.l1, l2: o.l2, inverse: 1 / o.rate, scale: step.Scale}, params, grad, state)
}

func ftrlPlain(k numbers, params, grad []float32, state State) {
	zs, ns := state[0], state[1]
	for i, g := range grad {
		before := root(ns[i])
		ns[i] += float32(g * g)
		after := root(ns[i])
		zs[i] += float32(k.scale*g) - float32(float32((after-before)*k.inverse)*params[i])
		grad[i] = float32((k.beta+after)*k.inverse) + k.l2
	}
	for i, z := range zs { // apart: together they would wait for each other's registers
		params[i] = (max(-k.l1, min(k.l1, z)) - z) / grad[i] // 0 where |z| <= l1
	}
}
