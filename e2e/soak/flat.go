package main

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// flatness compares a figure early and late in the run: the medians of the second and the last third of the samples.
// Caches and pools fill during the first third.
type flatness struct {
	Figure string  `json:"figure"`
	Early  float64 `json:"early"`
	Late   float64 `json:"late"`
	Bound  float64 `json:"bound"` // upper limit
}

func (f *flatness) err() error {
	if f.Late <= f.Bound {
		return nil
	}
	return fmt.Errorf("%s grew from %.0f to %.0f, expected at most %.0f", f.Figure, f.Early, f.Late, f.Bound)
}

// growth is the limit of a figure late in the run: early*factor + more. The figure varies with the load; a leak grows without end.
type growth struct {
	metric string
	name   string
	factor float64
	more   float64
}

const mib = 1 << 20

// growths lists the limits for the master that survives all faults.
var growths = []growth{
	{metricGoroutines, "goroutines", 1.2, 30},
	{metricFiles, "open files", 1.2, 30},
	{metricMemory, "resident bytes", 1.25, 32 * mib},
}

// storeGrowth is the limit for etcd's database. The database grows until the first compactions of its history. In runs
// shorter than storeSettles, only storeMost limits it.
var storeGrowth = growth{metricStore, "bytes of etcd's database", 1.1, 16 * mib}

const (
	storeSettles = 15 * time.Minute
	storeMost    = 512 * mib
)

// compare compares the thirds. It returns nil if the samples are too few.
func (g growth) compare(of string, samples []sample) *flatness {
	var values []float64
	for _, s := range samples {
		if v, ok := s.values[g.metric]; ok {
			values = append(values, v)
		}
	}
	const least = 5 // minimum number of samples in a third
	third := len(values) / 3
	if third < least {
		return nil
	}
	f := &flatness{Figure: g.name + " of " + of, Early: medianOf(values[third : 2*third]), Late: medianOf(values[2*third:])}
	f.Bound = f.Early*g.factor + g.more
	return f
}

func medianOf(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// flat judges all samples of a run.
func flat(samples []sample, took time.Duration) []flatness {
	var all []flatness
	for _, role := range []struct {
		name    string
		leading bool
	}{{"a leader", true}, {"a standby", false}} {
		var own []sample
		for _, s := range samples {
			if s.master == survivor && s.leading == role.leading {
				own = append(own, s)
			}
		}
		for _, g := range growths {
			if f := g.compare(role.name, own); f != nil {
				all = append(all, *f)
			}
		}
	}
	if f := storeGrowth.compare("the job", samples); f != nil {
		if took < storeSettles {
			f.Bound = math.Max(f.Bound, storeMost)
		}
		all = append(all, *f)
	}
	return all
}
