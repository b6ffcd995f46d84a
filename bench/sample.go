package bench

import (
	"slices"
	"time"
)

// sample is one measurement of a row.
type sample struct {
	raw, opsPerS, p50, p99      float64
	opsPerTxn, stateBytes       float64
	cpuMaster, cpuEtcd, cpuLoad float64 // microseconds per op
	walBytes, putBytes          float64 // per op
}

// median returns the median of one field.
func median[S any](samples []S, of func(S) float64) float64 {
	values := make([]float64, len(samples))
	for i, s := range samples {
		values[i] = of(s)
	}
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// summarize makes the rows, in the order of keys.
func (f *QueueFigures) summarize(keys []rowKey, samples map[rowKey][]sample) {
	var undelayed []sample
	for _, key := range keys {
		s := samples[key]
		row := newRow(key, s)
		if literal := (rowKey{Literal, key.callers, key.tasks, key.delay}); key.via != Literal && len(samples[literal]) > 0 {
			row.OverLiteral = row.OpsPerS / newRow(literal, samples[literal]).OpsPerS
		}
		if key.delay == 0 && key.via != Literal {
			undelayed = append(undelayed, s...)
		}
		f.Rows = append(f.Rows, row)
	}
	if len(undelayed) == 0 {
		undelayed = samples[keys[0]]
	}
	f.RawTxnPerS = median(undelayed, func(s sample) float64 { return s.raw })
}

func newRow(key rowKey, samples []sample) QueueRow {
	of := func(f func(sample) float64) float64 { return median(samples, f) }
	row := QueueRow{
		Via: key.via, Callers: key.callers, Tasks: key.tasks, EtcdDelayMS: millis(key.delay),
		OpsPerS:    of(func(s sample) float64 { return s.opsPerS }),
		RawTxnPerS: of(func(s sample) float64 { return s.raw }),
		P50MS:      of(func(s sample) float64 { return s.p50 }),
		P99MS:      of(func(s sample) float64 { return s.p99 }),
		OpsPerTxn:  of(func(s sample) float64 { return s.opsPerTxn }),
		StateBytes: of(func(s sample) float64 { return s.stateBytes }),
		CPU: CPUMicros{
			Master: of(func(s sample) float64 { return s.cpuMaster }),
			Etcd:   of(func(s sample) float64 { return s.cpuEtcd }),
			Load:   of(func(s sample) float64 { return s.cpuLoad }),
		},
		CPUMicrosPerOp:  of(func(s sample) float64 { return s.cpuMaster + s.cpuEtcd + s.cpuLoad }),
		BytesPerTask:    of(func(s sample) float64 { return s.walBytes }),
		PutBytesPerTask: of(func(s sample) float64 { return s.putBytes }),
	}
	row.Ratio = of(func(s sample) float64 { return s.opsPerS / s.raw })
	return row
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
