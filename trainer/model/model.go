// Package model implements the models of the reference trainer: softmax regression and a network with one hidden ReLU layer for
// images; logistic regression and a factorization machine for categories. It is pure computation: no files, no sockets, no
// goroutines, no clock.
//
// # Layout
//
// A layer with n inputs and m outputs has a weight of shape [n, m] and a bias of shape [m]. A batch of B records is a
// matrix of shape [B, n], and the layer computes x·W + b. (Keras' Dense stores weights this way; PyTorch's Linear stores
// the transpose.) The loss is the cross-entropy of the softmax of the last layer, in nats.
//
// # Sums, not means
//
// Gradients and losses are sums over the records of a batch. A caller that combines batches of unequal size adds the sums and
// divides once by all the records, so no batch weighs more than another.
//
// # The same bits
//
// The same parameters and the same batch give the same bits, on one build and one kind of processor, for any GOMAXPROCS and any
// memory addresses. The reasons:
//
//   - Every element of a product is a chain of additions in ascending order of the inner index, in tiles that gonum
//     computes on the calling goroutine. (Larger products gonum spreads over goroutines, one block of the result each,
//     with a fixed order within a block: the bits would be the same, but goroutines and allocations would come with it.)
//   - No product uses gonum's dot-product kernel, which is what A·Bᵀ would be. It peels elements off until its operand is
//     16-byte aligned, so its order of additions, and with it the last bits, depends on the address of the slice.
//     The second operand is transposed into scratch memory instead.
//   - The initial values of a tensor depend on the seed and the tensor's name only.
//
// Between processors the last bits may differ: math.Exp has a fused multiply-add path where the processor has one.
//
// # Failure
//
// Labels and widths are checked when a record enters a Batch, tensors when they are used. An error names the expected and the found
// value, and leaves no partial result in batch or gradients.
package model

import (
	"fmt"
	"slices"
	"strings"

	"trainmaster/dataset/sample"
)

// The kinds of models that New builds.
const (
	Softmax  = "softmax"  // softmax regression: one layer, convex
	MLP      = "mlp"      // two layers with ReLU between them
	Logistic = "logistic" // logistic regression over categories, convex
	FM       = "fm"       // a factorization machine over categories
)

// Kinds lists the kinds that New accepts.
func Kinds() []string { return []string{Softmax, MLP, Logistic, FM} }

// Model computes losses and gradients. The parameters belong to the caller and come with every call, in the order and
// with the names and shapes of Parameters. A Model keeps scratch memory between calls, so that a call allocates nothing
// once it has seen its largest batch; one goroutine at a time may use it.
type Model interface {
	// Parameters returns newly allocated tensors with the initial values, but for those in tables.
	Parameters() []Tensor

	// Tables lists the embedding tables, nil if there are none. The rows for a batch follow the other parameters and gradients: see
	// Table.
	Tables() []Table

	// NewBatch returns an empty batch with room for capacity records; it grows when more are appended.
	NewBatch(capacity int) *Batch

	// Gradients overwrites grads with the sums, over the records of the batch, of the derivatives of the loss by each
	// parameter, and returns the sum of the losses. After an error grads is unchanged.
	Gradients(params []Tensor, batch *Batch, grads []Tensor) (lossSum float64, err error)

	// Evaluate returns the number of records whose most likely label is correct, and the sum of the losses. Of equally likely
	// labels the lowest counts; a NaN is never correct.
	Evaluate(params []Tensor, batch *Batch) (correct int, lossSum float64, err error)

	// Predict appends the probabilities of the classes of each record of the batch.
	Predict(params []Tensor, batch *Batch, probabilities []float32) ([]float32, error)
}

// Scorer is a model of two classes that returns the likelihood of the second one.
type Scorer interface {
	// Scores appends the log-odds of label 1, one for each record of the batch.
	Scores(params []Tensor, batch *Batch, scores []float64) ([]float64, error)
}

// Config sets the size and the initial values of a model.
type Config struct {
	Inputs  int    // Features or fields of a record.
	Classes int    // Number of labels; 2 for models of categories.
	Hidden  int    // Units of the hidden layer, 0 without a hidden layer.
	Rank    int    // factors of a category; 0 for a kind that has none
	Seed    uint64 // seed of the initial values
}

// OfCategories reports whether a kind learns from categories, two classes.
func OfCategories(kind string) bool { return kind == Logistic || kind == FM }

// Shape is what a record says about its dataset: the numbers of features and classes. A record of another kind than a kind of model
// learns from is an error.
func Shape(kind string, record []byte) (sample.Shape, error) {
	shape, err := sample.Describe(record)
	switch {
	case err != nil:
	case OfCategories(kind) && shape.Kind != sample.Categories:
		var c sample.Categorical
		err = sample.DecodeCategorical(record, &c)
	case !OfCategories(kind) && shape.Kind == sample.Categories:
		var s sample.Sample
		err = sample.Decode(record, &s)
	}
	return shape, err
}

// New builds a model of one of Kinds.
func New(kind string, c Config) (Model, error) {
	if !slices.Contains(Kinds(), kind) {
		return nil, fmt.Errorf("model kind is %q, expected one of %s", kind, strings.Join(Kinds(), ", "))
	}
	if c.Inputs < 1 {
		return nil, fmt.Errorf("model %s: Inputs is %d, expected at least 1", kind, c.Inputs)
	}
	if c.Classes < 2 {
		return nil, fmt.Errorf("model %s: Classes is %d, expected at least 2", kind, c.Classes)
	}
	for _, size := range []struct {
		name  string
		value int
		has   bool
	}{{"Hidden", c.Hidden, kind == MLP}, {"Rank", c.Rank, kind == FM}} {
		switch {
		case size.has && size.value < 1:
			return nil, fmt.Errorf("model %s: %s is %d, expected at least 1", kind, size.name, size.value)
		case !size.has && size.value != 0:
			return nil, fmt.Errorf("model %s: %s is %d, expected 0: it has none", kind, size.name, size.value)
		}
	}
	switch kind {
	case Softmax:
		return newNetwork(c.Seed, []layer{{name: "output", inputs: c.Inputs, outputs: c.Classes}}), nil
	case MLP:
		return newNetwork(c.Seed, []layer{
			{name: "hidden", inputs: c.Inputs, outputs: c.Hidden},
			{name: "output", inputs: c.Hidden, outputs: c.Classes},
		}), nil
	}
	if c.Classes != 2 {
		return nil, fmt.Errorf("model %s: Classes is %d, expected 2", kind, c.Classes)
	}
	return newFactorization(c.Inputs, c.Rank), nil
}
