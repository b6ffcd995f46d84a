package optimizer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

func normal(r *rand.Rand, n int) []float32 {
	f := make([]float32, n)
	for i := range f {
		f[i] = float32(r.NormFloat64())
	}
	return f
}

// newState is the state of a rule for some parameters.
func newState(rule Rule, params []float32) (s State) {
	for i := range rule.Slots() {
		s[i] = make([]float32, len(params))
	}
	rule.Start(params, s)
	return s
}

func (s State) part(lo, hi int) (part State) {
	for i, slot := range s {
		if slot != nil {
			part[i] = slot[lo:hi]
		}
	}
	return part
}

// SGD and momentum, element by element as they are written down, have the same
// bits as the loops that do many at a time, for every length and in every piece.
func TestPlainRulesBitByBit(t *testing.T) {
	for _, c := range []Config{{Kind: SGD, LearningRate: 0.1}, {Kind: Momentum, LearningRate: 0.1, Momentum: 0.9}, {Kind: Momentum, LearningRate: 0.3}} {
		rule := validated(t, c).Rule()
		r := rand.New(rand.NewPCG(1, 2))
		for _, n := range []int{0, 1, 3, 4, 5, 31, 4096, 5000} {
			params := normal(r, n)
			state := newState(rule, params)
			want, velocity := append([]float32(nil), params...), make([]float32, n)
			for range 3 {
				grad := normal(r, n)
				for i, g := range grad {
					velocity[i] = float32(c.Momentum*velocity[i]) + g
					want[i] -= float32(float32(c.LearningRate*0.5) * velocity[i])
				}
				for lo := 0; lo < n; lo += 1000 {
					hi := min(lo+1000, n)
					rule.Apply(params[lo:hi], grad[lo:hi], state.part(lo, hi), Step{Count: 1, Scale: 0.5})
				}
			}
			for i := range params {
				if math.Float32bits(params[i]) != math.Float32bits(want[i]) {
					t.Fatalf("%v, %d elements: element %d is %v, expected %v", c, n, i, params[i], want[i])
				}
			}
		}
	}
}

// One of each kind, with everything that may go with it.
func everyKind(t testing.TB) []Config {
	const shaped = " --clip-value 0.8 --schedule cosine --warmup-steps 5 --schedule-steps 70"
	var list []Config
	for _, text := range []string{
		"--optimizer sgd --learning-rate 0.1 --weight-decay 0.01" + shaped,
		"--optimizer momentum --learning-rate 0.1 --momentum 0.9 --weight-decay 0.01" + shaped,
		"--optimizer nesterov --learning-rate 0.1 --momentum 0.9 --weight-decay 0.01" + shaped,
		"--optimizer adagrad --weight-decay 0.01 --initial-accumulator 0.1" + shaped,
		"--optimizer adam --weight-decay 0.01" + shaped,
		"--optimizer adamw --weight-decay 0.01" + shaped,
		"--optimizer ftrl --l1 0.01 --l2 0.1 --initial-accumulator 0.1" + shaped,
	} {
		c, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, validated(t, c))
	}
	return list
}

func validated(t testing.TB, c Config) Config {
	t.Helper()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	return c
}

// The pieces that a tensor is stepped in do not show in the result.
func TestPiecesDoNotMatter(t *testing.T) {
	const n = 1003
	for _, c := range everyKind(t) {
		rule := c.Rule()
		results := map[int]uint64{}
		for _, piece := range []int{n, 1, 7, 256} {
			r := rand.New(rand.NewPCG(3, 4))
			params := normal(r, n)
			state := newState(rule, params)
			for step := uint64(1); step <= 5; step++ {
				grad := normal(r, n)
				for lo := 0; lo < n; lo += piece {
					hi := min(lo+piece, n)
					rule.Apply(params[lo:hi], grad[lo:hi], state.part(lo, hi), Step{step, float32(c.Schedule.At(step))})
				}
			}
			for _, values := range append(state[:], params) {
				for _, v := range values {
					results[piece] = results[piece]*31 + uint64(math.Float32bits(v))
				}
			}
			if results[piece] != results[n] {
				t.Errorf("%s: in pieces of %d other bits than in one call", c.Kind, piece)
			}
		}
	}
}

func TestNothingIsAllocated(t *testing.T) {
	params := normal(rand.New(rand.NewPCG(1, 1)), 100)
	grad := make([]float32, len(params))
	for _, c := range everyKind(t) {
		rule := c.Rule()
		state := newState(rule, params)
		count := uint64(0)
		if n := testing.AllocsPerRun(100, func() {
			count++
			rule.Apply(params, grad, state, Step{count, float32(c.Schedule.At(count))})
		}); n != 0 {
			t.Errorf("%s allocates %v times in a step", c.Kind, n)
		}
	}
	if n := testing.AllocsPerRun(100, func() { Scale(grad, ClipFactor(SquareSum(grad), 1)) }); n != 0 {
		t.Errorf("clipping allocates %v times", n)
	}
}

// BenchmarkApply runs each level on a piece that fits into a cache, as for a block, and on an array far
// larger than the cache.
func BenchmarkApply(b *testing.B) {
	const piece = 4096
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{piece, 32 << 20} {
		params, grad := normal(r, n), normal(r, n)
		for _, kind := range Kinds() {
			c := validated(b, Config{Kind: kind, LearningRate: 1e-9})
			for _, level := range levels {
				rule := c.rule(level)
				state := newState(rule, params)
				for _, slot := range state {
					copy(slot, grad) // allocates the pages before the timer starts
				}
				b.Run(fmt.Sprintf("%s/%s/%d", kind, level.name, n), func(b *testing.B) {
					for b.Loop() {
						for lo := 0; lo < n; lo += piece {
							rule.Apply(params[lo:lo+piece], grad[lo:lo+piece], state.part(lo, lo+piece), Step{1000, 1})
						}
					}
					b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Melem/s")
				})
			}
			state := newState(c.Rule(), params)
			b.Run(fmt.Sprintf("%s/limit/%d", kind, n), func(b *testing.B) {
				for b.Loop() {
					for lo := 0; lo < n; lo += piece {
						copy(params[lo:lo+piece], grad[lo:lo+piece])
						for _, slot := range state {
							if slot != nil {
								copy(slot[lo:lo+piece], grad[lo:lo+piece])
							}
						}
					}
				}
				b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Melem/s")
			})
		}
	}
}

// BenchmarkSquareSum is what clipping by the norm costs the trainer.
func BenchmarkSquareSum(b *testing.B) {
	grad := normal(rand.New(rand.NewPCG(1, 2)), 4096)
	for b.Loop() {
		if SquareSum(grad) == 0 {
			b.Fatal("no gradient")
		}
	}
	b.ReportMetric(float64(len(grad))*float64(b.N)/b.Elapsed().Seconds()/1e6, "Melem/s")
}
