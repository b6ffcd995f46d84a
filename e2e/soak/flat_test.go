package main

import (
	"strings"
	"testing"
	"time"
)

// samples returns n samples of the survivor, which is the leader and a standby in turns of ten samples.
func samples(n int, metric string, value func(i int) float64) []sample {
	list := make([]sample, n)
	for i := range list {
		list[i] = sample{at: time.Duration(i) * time.Second, master: survivor, leading: i/10%2 == 0, values: map[string]float64{metric: value(i)}}
	}
	return list
}

func TestFlat(t *testing.T) {
	steady := func(i int) float64 { return 100 + float64(i%7) }
	leaking := func(i int) float64 { return 100 + float64(i) }
	for metric, name := range map[string]string{metricGoroutines: "goroutines", metricFiles: "open files"} {
		for _, f := range flat(samples(300, metric, steady), time.Hour) {
			if err := f.err(); err != nil {
				t.Error(err)
			}
		}
		found := flat(samples(300, metric, leaking), time.Hour)
		if len(found) != 2 {
			t.Fatalf("%s: judged %d roles, expected a leader and a standby", metric, len(found))
		}
		for _, f := range found {
			if err := f.err(); err == nil || !strings.Contains(err.Error(), name+" of a ") {
				t.Errorf("%s grows with each sample: expected an error, found %v", metric, err)
			}
		}
	}
}

// The initial growth of etcd's database is no leak.
func TestFlatStore(t *testing.T) {
	filling := samples(3600, metricStore, func(i int) float64 { return 10*mib + 20*1024*float64(i) })
	if f := flat(filling[:120], 2*time.Minute); len(f) != 1 || f[0].err() != nil {
		t.Errorf("two minutes: %+v", f)
	}
	if f := flat(filling, time.Hour); len(f) != 1 || f[0].err() == nil {
		t.Errorf("an hour: %+v, expected an error for 20 KiB per second", f)
	}
	full := samples(3600, metricStore, func(i int) float64 { return min(10*mib+80*1024*float64(i), 90*mib) })
	if f := flat(full, time.Hour); len(f) != 1 || f[0].err() != nil {
		t.Errorf("an hour, full after 17 minutes: %+v", f)
	}
}

func TestTooFewSamplesAreNotJudged(t *testing.T) {
	if f := flat(samples(10, metricGoroutines, func(int) float64 { return 1 }), time.Hour); len(f) > 0 {
		t.Errorf("ten samples: expected no result, found %+v", f)
	}
}
