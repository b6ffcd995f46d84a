package metric

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func figure(t *testing.T, s *Set, name string) float64 {
	t.Helper()
	for _, f := range s.Figures() {
		if f.Name == name {
			return f.Value
		}
	}
	t.Fatalf("no figure %s in %v", name, s.Figures())
	return 0
}

func near(t *testing.T, s *Set, name string, want, within float64) {
	t.Helper()
	if found := figure(t, s, name); math.Abs(found-want) > within {
		t.Errorf("%s: expected %v, found %v", name, want, found)
	}
}

// The example is small enough to compute by hand.
func TestFiguresOfConfusionMatrix(t *testing.T) {
	var s Set
	if err := s.AddConfusion("c", [][]int64{
		{3, 1, 0, 0, 0},
		{2, 4, 0, 0, 0},
		{0, 1, 0, 0, 0}, // never predicted
		{0, 0, 0, 0, 0}, // absent
		{0, 0, 0, 0, 5},
	}); err != nil {
		t.Fatal(err)
	}
	near(t, &s, "c.accuracy", 12.0/16, 0)
	near(t, &s, "c.precision", (3.0/5+4.0/6+0+1)/4, 1e-15)
	near(t, &s, "c.recall", (3.0/4+4.0/6+0+1)/4, 1e-15)
	near(t, &s, "c.f1", (6.0/9+8.0/12+0+1)/4, 1e-15)
}

func TestUndefinedFiguresAreLeftOut(t *testing.T) {
	var s Set
	one := make([]int64, Bins)
	one[3] = 1
	for _, err := range []error{
		s.AddMean("mean", 0, 0), s.AddSum("sum", math.MaxFloat64), s.AddSum("sum", math.MaxFloat64),
		s.AddConfusion("matrix", [][]int64{{0, 0}, {0, 0}}), s.AddHistogram("positives", one, make([]int64, Bins)),
		s.AddHistogram("negatives", make([]int64, Bins), one),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if list := s.Figures(); len(list) > 0 {
		t.Errorf("expected no figures, found %v", list)
	}
}

func TestBinEdges(t *testing.T) {
	logistic := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	for _, c := range []struct {
		score float64
		want  int
	}{
		{0, 0}, {0x1p-1074, 0}, {logistic(-16.01), 0}, {logistic(-15.98), 0}, {logistic(-15.96), 1}, {logistic(-0.001), 511},
		{0.5, 512}, {logistic(0.03), 512}, {logistic(0.032), 513}, {logistic(15.98), 1023}, {logistic(20), 1023}, {1, 1023},
	} {
		if bin, err := Bin(c.score); err != nil || bin != c.want {
			t.Errorf("Bin(%v): expected %d, found %d, %v", c.score, c.want, bin, err)
		}
	}
	for score, want := range map[float64]error{math.Inf(1): ErrNotFinite, -0.1: ErrBadScore, 1.0000001: ErrBadScore} {
		if _, err := Bin(score); !errors.Is(err, want) {
			t.Errorf("Bin(%v): expected %v, found %v", score, want, err)
		}
	}
	if _, err := Bin(math.NaN()); !errors.Is(err, ErrNotFinite) {
		t.Errorf("Bin(NaN): found %v", err)
	}
}

// exactAUC returns the AUC from the ranks of all scores (Mann and Whitney's U).
func exactAUC(scores []float64, positive []bool) float64 {
	order := make([]int, len(scores))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(scores[a], scores[b]) })
	var pairs, below, positives float64
	for i := 0; i < len(order); {
		j, p := i, 0.0
		for ; j < len(order) && scores[order[j]] == scores[order[i]]; j++ {
			if positive[order[j]] {
				p++
			}
		}
		n := float64(j-i) - p
		pairs += p * (below + n/2)
		below += n
		positives += p
		i = j
	}
	return pairs / positives / below
}

func TestAUCOfSmoothScoresIsWithinOneTenThousandth(t *testing.T) {
	logistic := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	for name, draw := range map[string]func(r *rand.Rand, positive bool) float64{
		"random": func(r *rand.Rand, _ bool) float64 { return r.Float64() },
		"squares": func(r *rand.Rand, positive bool) float64 {
			if positive {
				return math.Sqrt(r.Float64())
			}
			return math.Pow(r.Float64(), 2)
		},
		"normal logits": func(r *rand.Rand, positive bool) float64 {
			if positive {
				return logistic(1 + 1.5*r.NormFloat64())
			}
			return logistic(-1 + r.NormFloat64())
		},
		"rare clicks": func(r *rand.Rand, positive bool) float64 {
			if positive {
				return logistic(-5 + r.NormFloat64())
			}
			return logistic(-7 + 1.2*r.NormFloat64())
		},
		"nearly separated": func(r *rand.Rand, positive bool) float64 {
			if positive {
				return logistic(5 + 2*r.NormFloat64())
			}
			return logistic(-5 + 2*r.NormFloat64())
		},
		"narrow": func(r *rand.Rand, positive bool) float64 {
			if positive {
				return logistic(0.5 + 0.5*r.NormFloat64())
			}
			return logistic(0.5 * r.NormFloat64())
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(3, 4))
			const n = 100_000
			scores, positive := make([]float64, n), make([]bool, n)
			counts := map[bool][]int64{true: make([]int64, Bins), false: make([]int64, Bins)}
			for i := range scores {
				positive[i] = r.IntN(3) == 0
				scores[i] = draw(r, positive[i])
				bin, err := Bin(scores[i])
				if err != nil {
					t.Fatal(err)
				}
				counts[positive[i]][bin]++
			}
			var s Set
			if err := s.AddHistogram("h", counts[true], counts[false]); err != nil {
				t.Fatal(err)
			}
			near(t, &s, "h.auc", exactAUC(scores, positive), 1e-4)
		})
	}
}

// Tied scores are in one bin, so the AUC of a constant score is exactly one half.
func TestAUCOfTies(t *testing.T) {
	var s Set
	counts := make([]int64, Bins)
	counts[9] = MaxCount / 2
	if err := s.AddHistogram("h", counts, counts); err != nil {
		t.Fatal(err)
	}
	near(t, &s, "h.auc", 0.5, 0)
}

// Two trainers evaluate the tasks of a round. Their results are merged in any order.
func ExampleSet() {
	var round, first, second Set
	for _, err := range []error{
		first.AddWeighted("loss", 0.5, 100),
		first.AddConfusion("digits", [][]int64{{40, 10}, {5, 45}}),
		second.AddWeighted("loss", 0.2, 50),
		second.AddConfusion("digits", [][]int64{{25, 0}, {0, 25}}),
		round.Merge(&second),
		round.Merge(&first),
	} {
		if err != nil {
			fmt.Println(err)
		}
	}
	for _, f := range round.Figures() {
		fmt.Printf("%s=%.4g\n", f.Name, f.Value)
	}
	// Output:
	// digits.accuracy=0.9
	// digits.f1=0.8999
	// digits.precision=0.9018
	// digits.recall=0.9
	// loss=0.4
}
