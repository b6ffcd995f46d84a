// Package model holds the two models of the reference trainer: softmax regression and a network with one hidden ReLU
// layer. It is pure computation: no files, no sockets, no goroutines, no clock.
//
// # Layout
//
// A layer with n inputs and m outputs has a weight of shape [n, m] and a bias of shape [m]; a batch of B records is a
// matrix of shape [B, n], and the layer computes x·W + b. (Keras' Dense keeps weights this way; PyTorch's Linear keeps
// the transpose.) The loss is the cross-entropy of the softmax of the last layer, in nats.
//
// # Sums, not means
//
// Gradients and losses are sums over the records of a batch. Whoever combines batches of unequal size adds the sums and
// divides once by all the records, so no batch weighs more than another.
//
// # The same bits
//
// The same parameters and the same batch give the same bits, on one build and one kind of processor, whatever GOMAXPROCS
// is and wherever the tensors lie in memory. Three things make it so:
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
// Labels and widths are checked when a record enters a Batch, tensors when they are used; an error says what was
// expected and found, and leaves batch and gradients without a partial result that could be taken for one.
package model

import (
	"fmt"
	"slices"
	"strings"
)

// The kinds of models that New builds.
const (
	Softmax = "softmax" // softmax regression: one layer, convex
	MLP     = "mlp"     // two layers with ReLU between them
)

// Kinds lists the kinds that New accepts.
func Kinds() []string { return []string{Softmax, MLP} }

// Model computes losses and gradients. The parameters belong to the caller and come with every call, in the order and
// with the names and shapes of Parameters. A Model keeps scratch memory between calls, so that a call allocates nothing
// once it has seen its largest batch; one goroutine at a time may use it.
type Model interface {
	// Parameters returns newly allocated tensors with the initial values.
	Parameters() []Tensor

	// NewBatch returns an empty batch with room for capacity records; it grows when more are appended.
	NewBatch(capacity int) *Batch

	// Gradients overwrites grads with the sums, over the records of the batch, of the derivatives of the loss by each
	// parameter, and returns the sum of the losses. After an error grads is unchanged.
	Gradients(params []Tensor, batch *Batch, grads []Tensor) (lossSum float64, err error)

	// Evaluate returns how many records of the batch have their own label as the most likely one (of equally likely ones
	// the lowest is taken; a NaN is never correct), and the sum of the losses.
	Evaluate(params []Tensor, batch *Batch) (correct int, lossSum float64, err error)
}

// Config says how large a model is and where its initial values come from.
type Config struct {
	Inputs  int    // features per record
	Classes int    // labels are 0 to Classes-1
	Hidden  int    // units of the hidden layer; 0 for a kind that has none
	Seed    uint64 // of the initial values
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
	if kind == Softmax {
		if c.Hidden != 0 {
			return nil, fmt.Errorf("model %s: Hidden is %d, expected 0: it has no hidden layer", kind, c.Hidden)
		}
		return newNetwork(c.Seed, []layer{{name: "output", inputs: c.Inputs, outputs: c.Classes}}), nil
	}
	if c.Hidden < 1 {
		return nil, fmt.Errorf("model %s: Hidden is %d, expected at least 1", kind, c.Hidden)
	}
	return newNetwork(c.Seed, []layer{
		{name: "hidden", inputs: c.Inputs, outputs: c.Hidden},
		{name: "output", inputs: c.Hidden, outputs: c.Classes},
	}), nil
}
