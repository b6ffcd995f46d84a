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
	var e Evaluation
	scorer, scores := m.(model.Scorer)
	var curve struct {
		scores []float64
		labels []int
	}
	b := newBatches(m, evaluationBatch, 1)
	for group, err := range b.of(records) {
		if bad, ok := errors.AsType[*recordError](err); ok {
			return Evaluation{}, fmt.Errorf("evaluate: record %d: %w", bad.record, bad.err)
		}
		batch, tensors := group[0], parameters
		if rowsOf != nil {
			tensors = all(parameters, rowsOf(batch))
		}
		correct, lossSum, err := m.Evaluate(tensors, batch)
		if err == nil && scores {
			curve.labels = append(curve.labels, batch.Labels()...)
			curve.scores, err = scorer.Scores(tensors, batch, curve.scores)
		}
		if err != nil {
			return Evaluation{}, fmt.Errorf("evaluate: %w", err)
		}
		e.Records += batch.Len()
		e.Correct += correct
		e.LossSum += lossSum
	}
	if scores {
		e.AUC = new(model.AUC(curve.scores, curve.labels))
	}
	return e, nil
}
