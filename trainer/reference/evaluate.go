package reference

import (
	"errors"
	"fmt"
	"iter"

	"trainmaster/trainer/model"
)

// evaluationBatch is the number of records per evaluation step: enough to keep the processor busy, few enough for its caches.
const evaluationBatch = 256

// Evaluation is the result of a model on some records.
type Evaluation struct {
	Records int
	Correct int
	LossSum float64
	AUC     *float64 // area under the ROC curve, of a model that gives scores; else nil
}

// Accuracy is the share of records whose class was found, 0 without records.
func (e Evaluation) Accuracy() float64 { return float64(e.Correct) / float64(max(e.Records, 1)) }

// Loss is the mean loss, 0 without records.
func (e Evaluation) Loss() float64 { return e.LossSum / float64(max(e.Records, 1)) }

// Evaluate runs a model with the given parameters over records of package sample. rowsOf returns the table rows that a batch needs;
// nil for a model without tables.
func Evaluate(m model.Model, parameters []model.Tensor, rowsOf func(*model.Batch) []model.Tensor, records iter.Seq2[[]byte, error]) (Evaluation, error) {
	var curve struct {
		scores []float64
		labels []int
	}
	tensors := func(batch *model.Batch) ([]model.Tensor, error) {
		if rowsOf == nil {
			return parameters, nil
		}
		return all(parameters, rowsOf(batch)), nil
	}
	e, err := measure(m, tensors, records, func(scores []float64, labels []int) error {
		curve.scores, curve.labels = append(curve.scores, scores...), append(curve.labels, labels...)
		return nil
	})
	if bad, ok := errors.AsType[*recordError](err); ok {
		return Evaluation{}, fmt.Errorf("evaluate: record %d: %w", bad.record, bad.err)
	}
	if err != nil {
		return Evaluation{}, fmt.Errorf("evaluate: %w", err)
	}
	if _, scores := m.(model.Scorer); scores {
		e.AUC = new(model.AUC(curve.scores, curve.labels))
	}
	return e, nil
}

// measure runs a model over records. tensorsOf returns the parameters and the table rows for a batch. scored receives the scores, which
// are log-odds, and the labels of each batch, of a model that gives scores.
func measure(m model.Model, tensorsOf func(*model.Batch) ([]model.Tensor, error), records iter.Seq2[[]byte, error], scored func(scores []float64, labels []int) error) (e Evaluation, err error) {
	scorer, hasScores := m.(model.Scorer)
	var scores []float64
	b := newBatches(m, evaluationBatch, 1)
	for group, err := range b.of(records) {
		if err != nil {
			return e, err
		}
		batch := group[0]
		tensors, err := tensorsOf(batch)
		if err != nil {
			return e, err
		}
		correct, lossSum, err := m.Evaluate(tensors, batch)
		if err == nil && hasScores {
			if scores, err = scorer.Scores(tensors, batch, scores[:0]); err == nil {
				err = scored(scores, batch.Labels())
			}
		}
		if err != nil {
			return e, err
		}
		e.Records += batch.Len()
		e.Correct += correct
		e.LossSum += lossSum
	}
	return e, nil
}
