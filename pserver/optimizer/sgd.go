package optimizer

type sgd struct {
	shaping
	rate float32
}

func (*sgd) Slots() []string { return nil }

func (o *sgd) Apply(params, grad []float32, state State, step Step) {
	o.shape(params, grad)
	o.run(loopSGD, numbers{rate: -(o.rate * step.Scale)}, params, grad, state)
}

func sgdPlain(k numbers, params, grad []float32, _ State) {
	for i, g := range grad {
		params[i] += float32(k.rate * g)
	}
}

// momentum is SGD with momentum, classical or Nesterov's.
type momentum struct {
	shaping
	loop           loop
	rate, momentum float32
}

func (*momentum) Slots() []string { return []string{"momentum"} }

func (o *momentum) Apply(params, grad []float32, state State, step Step) {
	o.shape(params, grad)
	o.run(o.loop, numbers{rate: -(o.rate * step.Scale), momentum: o.momentum}, params, grad, state)
}

func momentumPlain(k numbers, params, grad []float32, state State) {
	velocity := state[0]
	for i, g := range grad {
		v := float32(k.momentum*velocity[i]) + g
		velocity[i] = v
		params[i] += float32(k.rate * v)
	}
}

func nesterovPlain(k numbers, params, grad []float32, state State) {
	velocity := state[0]
	for i, g := range grad {
		v := float32(k.momentum*velocity[i]) + g
		velocity[i] = v
		params[i] += float32(k.rate * (float32(k.momentum*v) + g))
	}
}
