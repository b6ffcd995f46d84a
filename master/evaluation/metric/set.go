package metric

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The limits of a Set.
const (
	MaxMetrics = 64      // metrics
	MaxCells   = 1 << 16 // counts of all confusion matrices and histograms: for example 32 histograms
	MaxName    = 63      // bytes of a name
)

// Errors of a Set.
var (
	ErrBadName = errors.New("invalid name of a metric")
	ErrTooMany = errors.New("too many metrics")
)

// Set has metrics by name. The zero value is empty. A Set is not safe for concurrent use.
type Set struct {
	metrics map[string]*metric
	cells   int // of all metrics
}

// AddMean adds values to a mean: their sum and their number.
func (s *Set) AddMean(name string, sum float64, count int64) error {
	m, err := newTotal(KindMean, sum, 1, count)
	if err == nil && count == 0 && sum != 0 {
		err = fmt.Errorf("%w: expected 1 to %d for the sum %v, found 0", ErrBadCount, int64(MaxCount), sum)
	}
	return s.add(name, m, err)
}

// AddWeighted adds the mean of a number of records to a mean. The product of mean and records is not rounded.
func (s *Set) AddWeighted(name string, mean float64, records int64) error {
	m, err := newTotal(KindMean, mean, records, records)
	return s.add(name, m, err)
}

// AddSum adds one value to a sum.
func (s *Set) AddSum(name string, value float64) error {
	m, err := newTotal(KindSum, value, 1, 1)
	return s.add(name, m, err)
}

// AddConfusion adds to a confusion matrix: counts[label][prediction], of 2 to MaxClasses classes.
func (s *Set) AddConfusion(name string, counts [][]int64) error {
	m, err := newConfusion(counts)
	return s.add(name, m, err)
}

// AddHistogram adds to a histogram: the number of positive and of negative records in each of [Bins] bins. [Bin] returns the bin of a score.
func (s *Set) AddHistogram(name string, positives, negatives []int64) error {
	m, err := newHistogram(positives, negatives)
	return s.add(name, m, err)
}

// newTotal returns a sum or a mean of count values with the sum v x times.
func newTotal(kind Kind, v float64, times, count int64) (*metric, error) {
	if count < 0 || count > MaxCount {
		return nil, fmt.Errorf("%w: expected 0 to %d, found %d", ErrBadCount, int64(MaxCount), count)
	}
	m := &metric{kind: kind, count: count}
	return m, m.total.AddProduct(v, times)
}

// add merges a metric under a name; err is the reason why there is no metric.
func (s *Set) add(name string, m *metric, err error) error {
	if err != nil {
		return fmt.Errorf("metric %q: %w", clip(name), err)
	}
	return s.Merge(&Set{metrics: map[string]*metric{name: m}, cells: len(m.cells)})
}

// Merge adds all metrics of o, or none if it returns an error. A metric with another type or size under the same name is an error.
func (s *Set) Merge(o *Set) error {
	added, cells := 0, 0
	for _, name := range slices.Sorted(maps.Keys(o.metrics)) {
		m, there := s.metrics[name]
		if !there {
			if err := checkName(name); err != nil {
				return err
			}
			added++
			cells += len(o.metrics[name].cells)
		} else if err := m.fits(o.metrics[name]); err != nil {
			return fmt.Errorf("metric %q: %w", name, err)
		}
	}
	//guard:limits-of-a-set
	if n := len(s.metrics) + added; n > MaxMetrics || s.cells+cells > MaxCells {
		return fmt.Errorf("%w: expected at most %d with %d counts, found %d with %d", ErrTooMany, MaxMetrics, MaxCells, n, s.cells+cells)
	}
	if s.metrics == nil {
		s.metrics = make(map[string]*metric, added)
	}
	for name, m := range o.metrics {
		if s.metrics[name] == nil {
			s.metrics[name] = &metric{kind: m.kind, classes: m.classes, cells: make([]int64, len(m.cells))}
		}
		s.metrics[name].merge(m)
	}
	s.cells += cells
	return nil
}

// Len returns the number of metrics.
func (s *Set) Len() int { return len(s.metrics) }

// Figures returns the figures of all metrics, by name. A figure that is not defined is left out: the mean of no values, the AUC without
// positive or without negative records, and a sum beyond the range of float64.
func (s *Set) Figures() []Figure {
	var list []Figure
	for _, name := range slices.Sorted(maps.Keys(s.metrics)) {
		list = append(list, s.metrics[name].figures(name)...)
	}
	slices.SortFunc(list, func(a, b Figure) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// checkName allows letters, digits, "-", "_" and "/". A dot separates the name of a metric from the name of its figure.
func checkName(name string) error {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_/"
	if name == "" || len(name) > MaxName || strings.Trim(name, letters) != "" {
		return fmt.Errorf("%w: expected 1 to %d letters, digits, \"-\", \"_\" and \"/\", found %q", ErrBadName, MaxName, clip(name))
	}
	return nil
}

// clip shortens a text of a client for an error.
func clip(s string) string { return s[:min(len(s), 2*MaxName)] }
