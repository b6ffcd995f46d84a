package optimizer

import "unsafe"

// loop is an operation on each element.
type loop int

const (
	loopClamp loop = iota // of params alone
	loopSGD
	loopMomentum
	loopNesterov
	loopAdagrad
	loopAdam
	loopFTRL
	loops
)

// plainLoops define the result of a loop, bit by bit: every level gives the same result.
var plainLoops = [loops]func(k numbers, params, grad []float32, state State){
	loopClamp: clampPlain, loopSGD: sgdPlain, loopMomentum: momentumPlain, loopNesterov: nesterovPlain,
	loopAdagrad: adagradPlain, loopAdam: adamPlain, loopFTRL: ftrlPlain,
}

// numbers are what is the same for all elements of a step. Each loop uses some of
// them. Assembly knows them by name.
type numbers struct {
	rate     float32 // the step's; loopSGD, loopMomentum and loopNesterov: negative
	momentum float32
	limit    float32
	epsilon  float32
	beta1    float32
	rest1    float32 // 1 - beta1
	beta2    float32
	rest2    float32 // 1 - beta2
	inverse  float32 // loopAdam: of the second moment's correction, under the root; loopFTRL: of the learning rate
	decay    float32
	beta     float32
	l1, l2   float32
	scale    float32
}

// kernel is a loop over n elements, n a multiple of its level's lanes and not 0.
// first and second are the slots of state, nil where the loop has none.
type kernel func(k numbers, params, grad, first, second *float32, n int)

// level is the loops for one kind of processor. Results equal the results of
// the plain loops: products are rounded before they are added.
type level struct {
	name    string
	lanes   int // elements that the kernels take at a time, a power of two; 0: there are none
	kernels [loops]kernel
}

var plainLevel = &level{name: "plain"}

// run does a loop over params: what fills no vector is left to the plain one.
func (l *level) run(which loop, k numbers, params, grad []float32, state State) {
	grad = grad[:len(params)]
	for i, slot := range state {
		if slot != nil {
			state[i] = slot[:len(params)]
		}
	}
	n := 0
	if l.lanes > 0 {
		n = len(params) &^ (l.lanes - 1)
	}
	if n > 0 {
		l.kernels[which](k, &params[0], &grad[0], unsafe.SliceData(state[0]), unsafe.SliceData(state[1]), n)
		for i, slot := range state {
			if slot != nil {
				state[i] = slot[n:]
			}
		}
	}
	if n < len(params) {
		plainLoops[which](k, params[n:], grad[n:], state)
	}
}
