package optimizer

import (
	"math"
	"math/rand/v2"
	"testing"
)

// history is one parameter with all its gradients, in float64. Where the
// rules go from step to step, the functions below sum over all steps since the first.
type history struct {
	c     Config
	start float64
	w     []float64 // before each step
	g     []float64 // of each step, after clipping and decay
	rates []float64 // part of the learning rate in each step
	moves []float64 // what each step's rate is multiplied by
}

// factor is the schedule's, built up from step to step.
func factor(s Schedule, step int) float64 {
	if warm := int(s.Warmup); step <= warm {
		return float64(step) / float64(warm)
	}
	f := 1.0
	for past := 1; past < step-int(s.Warmup); past++ {
		switch s.Kind {
		case Linear:
			f = max(s.End, f-(1-s.End)/float64(s.Steps-s.Warmup))
		case Stairs:
			if past%int(s.Every) == 0 {
				f *= s.Factor
			}
		case Cosine:
			half := math.Pi / 2 * min(1, float64(past)/float64(s.Steps-s.Warmup))
			f = s.End + (1-s.End)*math.Cos(half)*math.Cos(half)
		}
	}
	return f
}

// append adds a step with a raw gradient.
func (h *history) append(gradient float64) {
	w := h.now()
	if limit := float64(h.c.ClipValue); limit != 0 {
		gradient = math.Max(-limit, math.Min(limit, gradient))
	}
	if h.c.Kind != AdamW {
		gradient += float64(h.c.WeightDecay) * w
	}
	h.w, h.g = append(h.w, w), append(h.g, gradient)
	h.rates = append(h.rates, factor(h.c.Schedule, len(h.g)))
	h.moves = append(h.moves, h.direction(len(h.g)))
}

// decayed is the sum over the first n gradients, each to the power p, that lose
// the part 1-keep from step to step.
func (h *history) decayed(n int, keep, p float64) (sum float64) {
	for j, g := range h.g[:n] {
		sum += math.Pow(keep, float64(n-1-j)) * math.Pow(g, p)
	}
	return sum
}

// weights is what decayed sums to when all gradients are 1.
func weights(n int, keep float64) (sum float64) {
	for j := range n {
		sum += math.Pow(keep, float64(j))
	}
	return sum
}

// direction is what the rate of the n-th step is multiplied by.
func (h *history) direction(n int) float64 {
	c := h.c
	g, mu := h.g[n-1], float64(c.Momentum)
	switch c.Kind {
	case Momentum:
		return h.decayed(n, mu, 1)
	case Nesterov:
		return g + mu*h.decayed(n, mu, 1)
	case Adagrad:
		return g / (math.Sqrt(float64(c.InitialAccumulator)+h.decayed(n, 1, 2)) + float64(c.Epsilon))
	case Adam, AdamW: // weighted means
		return h.decayed(n, c.Beta1, 1) / weights(n, c.Beta1) / (math.Sqrt(h.decayed(n, c.Beta2, 2)/weights(n, c.Beta2)) + float64(c.Epsilon))
	}
	return g
}

// now is the parameter after all steps.
func (h *history) now() float64 {
	if h.c.Kind == FTRL {
		return h.leader()
	}
	w := h.start
	for n, move := range h.moves {
		rate := float64(h.c.LearningRate) * h.rates[n]
		if h.c.Kind == AdamW {
			w *= 1 - rate*float64(h.c.WeightDecay)
		}
		w -= rate * move
	}
	return w
}

// leader is FTRL-Proximal as it is defined: the w that makes
//
//	sum(f*g)*w + sum(sigma*(w-w_s)^2)/2 + l1*|w| + l2*w^2/2
//
// least, found by halving an interval on the sign of the slope; the parameter's
// start counts as a w_s too.
func (h *history) leader() float64 {
	c := h.c
	if len(h.g) == 0 {
		return h.start
	}
	q := make([]float64, len(h.g)+1)
	for n := range q {
		q[n] = (float64(c.FTRLBeta) + math.Sqrt(float64(c.InitialAccumulator)+h.decayed(n, 1, 2))) / float64(c.LearningRate)
	}
	slope := func(w float64) float64 {
		s := q[0]*(w-h.start) + float64(c.L2)*w + math.Copysign(float64(c.L1), w)
		for n := range h.g {
			s += h.rates[n]*h.g[n] + (q[n+1]-q[n])*(w-h.w[n])
		}
		return s
	}
	lo, hi := -100.0, 100.0
	if slope(math.Copysign(0, -1)) < 0 && slope(0) > 0 {
		return 0
	}
	for range 60 {
		if mid := (lo + hi) / 2; slope(mid) > 0 {
			hi = mid
		} else {
			lo = mid
		}
	}
	return lo
}

// far reports whether two values differ by more than 1e-6, of the greater one if that is beyond 1.
func far(got float32, want float64) bool {
	return !(math.Abs(float64(got)-want) <= 1e-6*max(1, math.Abs(want)))
}

// Every rule, with decay, clipping and every schedule, is what its definition says.
func TestRulesAreWhatTheyAreDefinedAs(t *testing.T) {
	const elements, steps = 6, 60
	schedules := map[string]Schedule{
		"constant": {}, "warm-up": {Warmup: 10},
		"linear": {Kind: Linear, Warmup: 5, Steps: 50, End: 0.1},
		"stairs": {Kind: Stairs, Every: 20, Factor: 0.5}, "cosine": {Kind: Cosine, Warmup: 7, Steps: 55},
	}
	for name, schedule := range schedules {
		for _, c := range everyKind(t) {
			for _, bare := range []bool{false, true} {
				c.Schedule = schedule
				if bare {
					c.ClipValue, c.WeightDecay, c.L1, c.L2, c.InitialAccumulator = 0, 0, 0, 0, 0
				}
				c = validated(t, c)
				r := rand.New(rand.NewPCG(5, 6))
				params := normal(r, elements)
				histories := make([]*history, elements)
				for i, p := range params {
					histories[i] = &history{c: c, start: float64(p)}
				}
				rule := c.Rule()
				state := newState(rule, params)
				for step := uint64(1); step <= steps; step++ {
					grad := normal(r, elements)
					for i := range grad {
						grad[i] *= []float32{1, 0.3, 1e-2, 1e-4, 1, 0.5}[i]
						histories[i].append(float64(grad[i]))
					}
					rule.Apply(params, grad, state, Step{step, float32(c.Schedule.At(step))})
					for i, h := range histories {
						if want := h.now(); far(params[i], want) {
							t.Fatalf("%s, %s, step %d: element %d is %v, expected %v", c, name, step, i, params[i], want)
						}
					}
				}
			}
		}
	}
}

// Without regularisation FTRL forgets nothing of the parameters that it is given:
// it is SGD with a rate of its own for each, whatever the schedule does.
func TestFTRLWithoutRegularisation(t *testing.T) {
	c := validated(t, Config{Kind: FTRL, LearningRate: 0.5, FTRLBeta: 2, Schedule: Schedule{Kind: Linear, Warmup: 20, Steps: 60, End: 0.01}})
	r := rand.New(rand.NewPCG(7, 8))
	params := normal(r, 20)
	want, squares := make([]float64, len(params)), make([]float64, len(params))
	for i, p := range params {
		want[i] = float64(p)
	}
	rule := c.Rule()
	state := newState(rule, params)
	for step := uint64(1); step <= 60; step++ {
		grad := normal(r, len(params))
		f := c.Schedule.At(step)
		for i, g := range grad {
			squares[i] += float64(g) * float64(g)
			want[i] -= f * 0.5 / (2 + math.Sqrt(squares[i])) * float64(g)
		}
		rule.Apply(params, grad, state, Step{step, float32(f)})
		for i := range params {
			if far(params[i], want[i]) {
				t.Fatalf("step %d: element %d is %v, expected %v", step, i, params[i], want[i])
			}
		}
	}
}
