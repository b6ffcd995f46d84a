package bench

import (
	"context"
	"slices"
	"time"
)

// counters are running totals of the processes that serve the trainers.
type counters struct {
	commits commitCounters
	etcd    etcdCounters
	cpu     time.Duration // of this process
}

func readCounters(ctx context.Context, subject subject, etcd *etcdServer) (c counters, err error) {
	c.commits, c.cpu = subject.counters(), processorTime()
	c.etcd, err = etcd.counters(ctx)
	return c, err
}

// sample is one measurement of a row.
type sample struct {
	raw, opsPerS, p50, p99      float64
	opsPerTxn, stateBytes       float64
	cpuMaster, cpuEtcd, cpuLoad float64 // microseconds per op
	walBytes, putBytes          float64 // per op
}

func newSample(r loadResult, before, after counters) sample {
	ops := float64(r.Ops)
	commits := float64(max(1, after.commits.commits-before.commits.commits))
	return sample{
		opsPerS:    ops / r.Elapsed.Seconds(),
		p50:        millis(r.P50),
		p99:        millis(r.P99),
		opsPerTxn:  ops / commits,
		stateBytes: float64(after.commits.stateBytes-before.commits.stateBytes) / commits,
		cpuMaster:  micros(after.cpu-before.cpu) / ops,
		cpuEtcd:    micros(after.etcd.cpu-before.etcd.cpu) / ops,
		cpuLoad:    micros(r.CPU) / ops,
		walBytes:   float64(after.etcd.wal-before.etcd.wal) / ops,
		putBytes:   float64(after.commits.putBytes-before.commits.putBytes) / ops,
	}
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
		if literal := samples[rowKey{via: Literal, callers: key.callers, tasks: key.tasks, delay: key.delay}]; !key.via.literal() && len(literal) > 0 {
			over := make([]float64, len(s))
			for round := range s {
				over[round] = s[round].opsPerS / literal[round].opsPerS
			}
			row.OverLiteral = median(over, func(x float64) float64 { return x })
		}
		if key.delay == 0 && !key.via.literal() {
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
		Via: key.via, Callers: key.callers, Tasks: key.tasks, EtcdDelayMS: millis(key.delay), OpenRound: key.round,
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
