package metric

import (
	"errors"
	"fmt"
	"math"
)

// Kind is the type of a metric.
type Kind uint8

// The kinds of metrics. The numbers are part of the encoded form.
const (
	KindSum       Kind = 1 + iota // sum of values
	KindMean                      // sum of values, divided by their number
	KindConfusion                 // counts of (label, prediction)
	KindHistogram                 // counts of scores by label
)

func (k Kind) String() string {
	if k < KindSum || k > KindHistogram {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return [...]string{"sum", "mean", "confusion matrix", "histogram"}[k-KindSum]
}

// Errors of metrics. ErrNotFinite is one, too.
var (
	ErrBadCount  = errors.New("invalid count")
	ErrBadShape  = errors.New("invalid size")
	ErrBadScore  = errors.New("invalid score")
	ErrOtherType = errors.New("metric of another type")
)

// metric is a metric without its name: a total of values or a table of counts.
type metric struct {
	kind    Kind
	count   int64       // values or records, at most MaxCount
	total   Accumulator // KindSum, KindMean
	cells   []int64     // KindConfusion: classes x classes, by label, then prediction. KindHistogram: positives, then negatives
	classes int         // KindConfusion
}

// fits returns the reason why o cannot be merged into m. cells and totals are not changed.
func (m *metric) fits(o *metric) error {
	switch {
	//guard:same-type-of-metric
	case m.kind != o.kind:
		return fmt.Errorf("%w: expected a %s, found a %s", ErrOtherType, m.kind, o.kind)
	case m.classes != o.classes:
		return fmt.Errorf("%w: expected %d classes, found %d", ErrBadShape, m.classes, o.classes)
	//guard:count-limit
	case o.count > MaxCount-m.count:
		return fmt.Errorf("%w: expected at most %d in total, found %d and %d", ErrBadCount, int64(MaxCount), m.count, o.count)
	}
	return nil
}

// merge adds a metric that fits.
func (m *metric) merge(o *metric) {
	m.count += o.count
	m.total.Merge(&o.total)
	for i, n := range o.cells {
		m.cells[i] += n
	}
}

// counted returns the sum of counts that are not negative.
func counted(cells ...[]int64) (count int64, err error) {
	for _, list := range cells {
		for i, n := range list {
			//guard:no-negative-count
			if n < 0 || n > MaxCount-count {
				return 0, fmt.Errorf("%w: position %d: expected 0 to %d, found %d", ErrBadCount, i, MaxCount-count, n)
			}
			count += n
		}
	}
	return count, nil
}

// Figure is a number that users read.
type Figure struct {
	Name  string // "loss" for a sum or mean; "digits.f1" for a part of the confusion matrix digits
	Value float64
}

// figures returns the figures of a metric. A figure without a value, for example the mean of no values, is left out: all are finite.
func (m *metric) figures(name string) (list []Figure) {
	add := func(suffix string, v float64) {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			list = append(list, Figure{name + suffix, v})
		}
	}
	switch {
	case m.kind == KindSum:
		add("", m.total.Float64())
	case m.count == 0:
	case m.kind == KindMean:
		add("", m.total.Quotient(m.count))
	case m.kind == KindConfusion:
		accuracy, precision, recall, f1 := m.scores()
		add(".accuracy", accuracy)
		add(".f1", f1)
		add(".precision", precision)
		add(".recall", recall)
	case m.kind == KindHistogram:
		add(".auc", auc(m.cells[:Bins], m.cells[Bins:]))
	}
	return list
}
