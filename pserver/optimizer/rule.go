package optimizer

// MaxSlots is the maximum number of state values of a rule per parameter.
const MaxSlots = 2

// State is the state of a rule: one slice for each of its slots, as long as the parameters. The other slices are nil.
type State [MaxSlots][]float32

// Step identifies an update.
type Step struct {
	Count uint64  // of the updates of these parameters, this one too: from 1
	Scale float32 // factor of the learning rate
}

// Rule changes parameters by gradients. It is safe for concurrent use.
type Rule interface {
	// Slots names the state values per parameter.
	Slots() []string

	// Start sets the state that goes with first parameters; it is all 0 before.
	Start(params []float32, state State)

	// Apply changes params and state by grad, the mean gradient. It leaves other values in grad.
	Apply(params, grad []float32, state State, step Step)
}

// shaping is the operations before a rule, and the loops of the rule.
type shaping struct {
	*level
	clip  float32 // 0: none
	decay float32
}

// Start leaves the state of most rules at 0.
func (shaping) Start([]float32, State) {}

func (s shaping) shape(params, grad []float32) {
	if s.clip != 0 {
		s.run(loopClamp, numbers{limit: s.clip}, grad, grad, State{})
	}
	if s.decay != 0 {
		s.run(loopSGD, numbers{rate: s.decay}, grad, params, State{}) // grad += decay*params
	}
}

func clampPlain(k numbers, values, _ []float32, _ State) {
	for i, v := range values {
		if v > k.limit {
			values[i] = k.limit
		} else if v < -k.limit {
			values[i] = -k.limit
		}
	}
}
