package load

import (
	"slices"
	"time"
)

// Latencies gathers durations, in microseconds. Each costs an append only, because an in-process measurement includes it.
type Latencies []uint32

// Add notes one duration.
func (l *Latencies) Add(d time.Duration) { *l = append(*l, uint32(d/time.Microsecond)) }

// Quantiles returns for each q the duration that a fraction q of all does not exceed. There
// must be at least one duration.
func Quantiles(all []Latencies, q ...float64) []time.Duration {
	sorted := slices.Concat(all...)
	slices.Sort(sorted)
	found := make([]time.Duration, len(q))
	for i, q := range q {
		rank := min(int(q*float64(len(sorted))), len(sorted)-1)
		found[i] = time.Duration(sorted[rank]) * time.Microsecond
	}
	return found
}
