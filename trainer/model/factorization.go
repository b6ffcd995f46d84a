package model

import (
	"fmt"
	"math"
	"slices"
)

// factorization is a factorization machine of degree 2 for two classes (Rendle 2010, "Factorization Machines", equation 1
// and lemma 3.1), whose inputs are one category of each field. With x the categories of a record, its logit is
//
//	bias + Σ weight(x) + ½ Σ_f ((Σ factors(x)_f)² - Σ factors(x)_f²)
//
// With a rank of 0 there are no factors, and it is logistic regression.
type factorization struct {
	fields, rank int
	shapes       []Tensor // of the parameters that are not in tables
	tables       []Table

	sums []float32 // Σ factors, of the record at hand
}

const (
	weightsTable = "weights"
	factorsTable = "factors"

	// factorsDeviation is the standard deviation of the initial factors. Factors of 0 have no gradient.
	factorsDeviation = 0.05
)

func newFactorization(fields, rank int) *factorization {
	f := &factorization{
		fields: fields, rank: rank, sums: make([]float32, rank),
		shapes: []Tensor{{Name: "bias", Shape: []int{1}}}, tables: []Table{{Name: weightsTable, Dim: 1}},
	}
	if rank > 0 {
		f.tables = append(f.tables, Table{Name: factorsTable, Dim: rank, Deviation: factorsDeviation})
	}
	return f
}

func (f *factorization) Parameters() []Tensor         { return ZerosLike(f.shapes) }
func (f *factorization) Tables() []Table              { return f.tables }
func (f *factorization) NewBatch(capacity int) *Batch { return newCategoryBatch(f.fields, capacity) }

func (f *factorization) Gradients(params []Tensor, batch *Batch, grads []Tensor) (lossSum float64, err error) {
	if err := f.admit(params, batch); err != nil {
		return 0, err
	}
	if err := check("gradients", grads, f.expected(batch)); err != nil {
		return 0, err
	}
	for _, g := range grads {
		clear(g.Data)
	}
	for i, label := range batch.labels {
		logit := f.logit(params, batch.rowsOf(i))
		lossSum += logisticLoss(logit, label)
		delta := float32(probability(logit) - float64(label))
		grads[0].Data[0] += delta
		for _, row := range batch.rowsOf(i) {
			grads[1].Data[row] += delta
			if f.rank > 0 {
				factors, grad := f.factors(params, row), f.factors(grads, row)
				for j, sum := range f.sums {
					grad[j] += delta * (sum - factors[j])
				}
			}
		}
	}
	return lossSum, nil
}

func (f *factorization) Evaluate(params []Tensor, batch *Batch) (correct int, lossSum float64, err error) {
	if err := f.admit(params, batch); err != nil {
		return 0, 0, err
	}
	for i, label := range batch.labels {
		logit := f.logit(params, batch.rowsOf(i))
		if label == 0 && logit <= 0 || label == 1 && logit > 0 {
			correct++
		}
		lossSum += logisticLoss(logit, label)
	}
	return correct, lossSum, nil
}

func (f *factorization) Predict(params []Tensor, batch *Batch, probabilities []float32) ([]float32, error) {
	if err := f.admit(params, batch); err != nil {
		return probabilities, err
	}
	for i := range batch.labels {
		p := 1 / (1 + math.Exp(-f.logit(params, batch.rowsOf(i))))
		probabilities = append(probabilities, float32(1-p), float32(p))
	}
	return probabilities, nil
}

// Scores implements Scorer.
func (f *factorization) Scores(params []Tensor, batch *Batch, scores []float64) ([]float64, error) {
	if err := f.admit(params, batch); err != nil {
		return scores, err
	}
	for i := range batch.labels {
		scores = append(scores, f.logit(params, batch.rowsOf(i)))
	}
	return scores, nil
}

// logit leaves the sums of the factors in f.sums.
func (f *factorization) logit(params []Tensor, rows []int) float64 {
	linear := params[0].Data[0]
	clear(f.sums)
	var squares float32
	for _, row := range rows {
		linear += params[1].Data[row]
		if f.rank > 0 {
			for j, v := range f.factors(params, row) {
				f.sums[j] += v
				squares += v * v
			}
		}
	}
	pairs := -squares
	for _, sum := range f.sums {
		pairs += sum * sum
	}
	return float64(linear + pairs/2)
}

// factors is a row of the second table.
func (f *factorization) factors(tensors []Tensor, row int) []float32 {
	return tensors[2].Data[row*f.rank : (row+1)*f.rank]
}

// admit checks the arguments of a call.
func (f *factorization) admit(params []Tensor, batch *Batch) error {
	if batch.categories == nil || batch.inputs != f.fields {
		return fmt.Errorf("batch is of another model than one with categories of %d fields", f.fields)
	}
	return check("parameters", params, f.expected(batch))
}

// expected are the shapes of all parameters that a batch needs.
func (f *factorization) expected(batch *Batch) []Tensor {
	return append(slices.Clone(f.shapes), Rows(f.tables, batch)...)
}

func probability(logit float64) float64 { return 1 / (1 + math.Exp(-logit)) }

// logisticLoss returns -log of the probability of the label, without overflow and without loss of small values.
func logisticLoss(logit float64, label int) float64 {
	if label == 1 {
		logit = -logit
	}
	return max(logit, 0) + math.Log1p(math.Exp(-math.Abs(logit)))
}
