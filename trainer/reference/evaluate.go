package reference

import (
	"fmt"
	"iter"

	"trainmaster/trainer/model"
)

// evaluationBatch is how many records are evaluated at once: enough to keep the processor busy, few enough for its caches.
const evaluationBatch = 256

// Evaluation is how well a model does on some records.
type Evaluation struct {
	Records int
	Correct int
	LossSum float64
}

// Accuracy is the share of records whose class was found, 0 without records.
func (e Evaluation) Accuracy() float64 { return float64(e.Correct) / float64(max(e.Records, 1)) }

// Loss is the mean loss, 0 without records.
func (e Evaluation) Loss() float64 { return e.LossSum / float64(max(e.Records, 1)) }

// Evaluate runs a model with the given parameters over records of package sample.
func Evaluate(m model.Model, parameters []model.Tensor, records iter.Seq2[[]byte, error]) (Evaluation, error) {
	var e Evaluation
	b := newBatches(m, evaluationBatch, 1)
	for group, err := range b.of(records) {
		if err != nil {
			return Evaluation{}, fmt.Errorf("evaluate: %w", err)
		}
		batch := group[0]
		correct, lossSum, err := m.Evaluate(parameters, batch)
		if err != nil {
			return Evaluation{}, fmt.Errorf("evaluate: %w", err)
		}
		e.Records += batch.Len()
		e.Correct += correct
		e.LossSum += lossSum
	}
	return e, nil
}
