package metric

import (
	"fmt"
	"math"
	"math/big"
)

const (
	// Bins is the number of bins of a histogram for each label.
	Bins = 1024
	// maxLogit is the end of the range of logits. Scores beyond it, also 0 and 1, are in the first and last bin.
	maxLogit = 16
)

// Bin returns the bin of a score from 0 to 1. All bins have the same width in the logit, ln(score/(1-score)), from -16 to 16:
// bin = floor((logit+16) x 32).
func Bin(score float64) (int, error) {
	switch {
	case math.IsNaN(score) || math.IsInf(score, 0):
		return 0, notFinite(score)
	case score < 0 || score > 1:
		return 0, fmt.Errorf("%w: expected 0 to 1, found %v", ErrBadScore, score)
	}
	logit := math.Log(score) - math.Log1p(-score) // infinite at 0 and 1
	at := math.Floor((logit + maxLogit) * (Bins / (2 * maxLogit)))
	return int(min(max(at, 0), Bins-1)), nil
}

// newHistogram returns a histogram of the scores of positive and negative records.
func newHistogram(positives, negatives []int64) (*metric, error) {
	if len(positives) != Bins || len(negatives) != Bins {
		return nil, fmt.Errorf("%w: expected %d bins of positives and of negatives, found %d and %d", ErrBadShape, Bins, len(positives), len(negatives))
	}
	m := &metric{kind: KindHistogram, cells: append(append(make([]int64, 0, 2*Bins), positives...), negatives...)}
	var err error
	m.count, err = counted(m.cells)
	return m, err
}

// auc returns the probability that a positive record has a higher score than a negative one. Two records of one bin count one half. The
// pairs are counted exactly. It returns NaN if a label is missing.
func auc(positives, negatives []int64) float64 {
	// Twice the pairs in order: negatives of a bin x (2 x positives above it + positives in it).
	var twice, x, y big.Int
	var above, below int64
	for i := Bins - 1; i >= 0; i-- {
		//guard:ties-count-half
		x.SetInt64(2*above + positives[i])
		twice.Add(&twice, x.Mul(&x, y.SetInt64(negatives[i])))
		above += positives[i]
		below += negatives[i]
	}
	if above == 0 || below == 0 {
		return math.NaN()
	}
	x.Mul(x.SetInt64(above), y.SetInt64(below))
	f, _ := new(big.Rat).SetFrac(&twice, x.Lsh(&x, 1)).Float64()
	return f
}
