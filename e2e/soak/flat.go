package main

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// flatness compares a figure early and late in the run: medians over the second and the last third of the samples. The
// first third is left to caches and pools to fill.
type flatness struct {
	Figure string  `json:"figure"`
	Early  float64 `json:"early"`
	Late   float64 `json:"late"`
	Bound  float64 `json:"bound"` // of Late
}

func (f *flatness) err() error {
	if f.Late <= f.Bound {
		return nil
	}
	return fmt.Errorf("%s grew from %.0f to %.0f, expected at most %.0f", f.Figure, f.Early, f.Late, f.Bound)
}

// growth is how much more than early may be found late. What is busy by chance differs from third to third; a leak does not stop.
type growth struct {
	metric string
	name   string
	factor float64
	more   float64
}

const mib = 1 << 20

// growths are the bounds for the master that is never made to end.
var growths = []growth{
	{metricGoroutines, "goroutines", 1.2, 30},
	{metricFiles, "open files", 1.2, 30},
	{metricMemory, "resident bytes", 1.25, 32 * mib},
}

// storeGrowth is the bound for etcd's database. It fills until its history is compacted for the first times, so that
// shorter runs than storeSettles have only storeMost as a bound.
var storeGrowth = growth{metricStore, "bytes of etcd's database", 1.1, 16 * mib}

const (
	storeSettles = 15 * time.Minute
	storeMost    = 512 * mib
)

// judge compares the thirds; nil when there are too few samples to tell.
func (g growth) judge(of string, samples []sample) *flatness {
	var values []float64
	for _, s := range samples {
		if v, ok := s.values[g.metric]; ok {
			values = append(values, v)
		}
	}
	const least = 5 // in a third
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

// flat judges all samples of a run that took so long.
func flat(samples []sample, took time.Duration) []flatness {
	var all []flatness
	for _, role := range []struct {
		name    string
		leading bool
	}{{"a leader", true}, {"a stand-by", false}} {
		var own []sample
		for _, s := range samples {
			if s.master == survivor && s.leading == role.leading {
				own = append(own, s)
			}
		}
		for _, g := range growths {
			if f := g.judge(role.name, own); f != nil {
				all = append(all, *f)
			}
		}
	}
	if f := storeGrowth.judge("the job", samples); f != nil {
		if took < storeSettles {
			f.Bound = math.Max(f.Bound, storeMost)
		}
		all = append(all, *f)
	}
	return all
}
