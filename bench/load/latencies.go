package load

import (
	"math/bits"
	"time"
)

// Latencies is a histogram of durations with an error below 2 %: buckets double every
// octave, which is cut into 64 equal parts. The zero value is empty.
type Latencies struct {
	buckets [octaves * parts]uint32
	n       int
}

const (
	partBits = 6
	parts    = 1 << partBits
	octaves  = 26 // up to two minutes, in units of 64 ns
	unitBits = 6
)

// Add counts one duration.
func (l *Latencies) Add(d time.Duration) {
	v := uint64(max(d, 0)) >> unitBits
	at := int(v)
	if v >= parts {
		octave := bits.Len64(v) - partBits
		at = octave*parts + int(v>>(octave-1)) - parts
	}
	l.buckets[min(at, len(l.buckets)-1)]++
	l.n++
}

// Merge adds all that o counted.
func (l *Latencies) Merge(o *Latencies) {
	for i, n := range o.buckets {
		l.buckets[i] += n
	}
	l.n += o.n
}

// Count returns how many durations were added.
func (l *Latencies) Count() int { return l.n }

// Quantile returns the duration that a fraction q of all does not exceed; 0 when there are
// none.
func (l *Latencies) Quantile(q float64) time.Duration {
	if l.n == 0 {
		return 0
	}
	rank := min(int(q*float64(l.n)), l.n-1)
	for i, n := range l.buckets {
		if rank -= int(n); rank < 0 {
			return middle(i)
		}
	}
	return 0
}

// middle is the duration in the middle of a bucket.
func middle(at int) time.Duration {
	octave, part := at/parts, at%parts
	if octave == 0 {
		return time.Duration(2*at+1) << unitBits / 2
	}
	return time.Duration(2*(parts+part)+1) << (octave - 1) << unitBits / 2
}
