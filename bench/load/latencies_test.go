package load

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestQuantilesAgreeWithSorting(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var l, first Latencies
	var all []time.Duration
	for i := range 20_000 {
		d := time.Duration(math.Exp(6 + 18*random.Float64())) // 400 ns to 26 s
		all = append(all, d)
		if i%2 == 0 {
			first.Add(d)
		} else {
			l.Add(d)
		}
	}
	l.Merge(&first)
	slices.Sort(all)
	if l.Count() != len(all) {
		t.Fatalf("counted %d, expected %d", l.Count(), len(all))
	}
	for _, q := range []float64{0, 0.01, 0.5, 0.9, 0.99, 1} {
		want := all[min(int(q*float64(len(all))), len(all)-1)]
		got := l.Quantile(q)
		if diff := math.Abs(float64(got - want)); diff > 0.02*float64(want)+64 {
			t.Errorf("quantile %v: found %v, expected %v", q, got, want)
		}
	}
}

func TestLatenciesAtTheEdges(t *testing.T) {
	var l Latencies
	if l.Quantile(0.5) != 0 {
		t.Error("an empty histogram has quantiles")
	}
	l.Add(-time.Second)
	l.Add(time.Hour) // counted in the last bucket
	if l.Count() != 2 || l.Quantile(0) > time.Microsecond || l.Quantile(1) < time.Minute {
		t.Errorf("%d durations, from %v to %v", l.Count(), l.Quantile(0), l.Quantile(1))
	}
}
