package load

import (
	"slices"
	"testing"
	"time"
)

func TestQuantiles(t *testing.T) {
	all := make([]Latencies, 7)
	for i := range 1000 { // 0 to 999 ms, out of order
		all[i%len(all)].Add(time.Duration(i*37%1000) * time.Millisecond)
	}
	got := Quantiles(all, 0, 0.5, 0.99, 1)
	want := []time.Duration{0, 500 * time.Millisecond, 990 * time.Millisecond, 999 * time.Millisecond}
	if !slices.Equal(got, want) {
		t.Errorf("found %v, expected %v", got, want)
	}
	if one := Quantiles([]Latencies{nil, {7}}, 0, 0.99); one[0] != 7*time.Microsecond || one[1] != one[0] {
		t.Errorf("of one duration: %v", one)
	}
}
