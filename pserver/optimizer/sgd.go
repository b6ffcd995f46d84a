package optimizer

type sgd struct {
	shaping
	rate float32
}

func (*sgd) Slots() []string        { return nil }
func (*sgd) Start([]float32, State) {}

func (o *sgd) Apply(params, grad []float32, _ State, step Step) {
	o.shape(params, grad)
	axpy(-(o.rate * step.Scale), grad, params)
}

type momentum struct {
	shaping
	rate, momentum float32
}

func (*momentum) Slots() []string        { return []string{"momentum"} }
func (*momentum) Start([]float32, State) {}

func (o *momentum) Apply(params, grad []float32, state State, step Step) {
	o.shape(params, grad)
	scale(o.momentum, state[0])
	axpy(1, grad, state[0])
	axpy(-(o.rate * step.Scale), state[0], params)
}

type nesterov struct {
	shaping
	rate, momentum float32
}

func (*nesterov) Slots() []string        { return []string{"momentum"} }
func (*nesterov) Start([]float32, State) {}

func (o *nesterov) Apply(params, grad []float32, state State, step Step) {
	o.shape(params, grad)
	scale(o.momentum, state[0])
	axpy(1, grad, state[0])
	axpy(o.momentum, state[0], grad)
	axpy(-(o.rate * step.Scale), grad, params)
}
