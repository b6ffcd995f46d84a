package model

import (
	"fmt"
	"math"

	"gonum.org/v1/gonum/blas/blas32"
)

// layer is a dense layer; all but the last of a network are followed by a ReLU.
type layer struct {
	name            string
	inputs, outputs int
}

// network is a stack of dense layers. The parameters of layer i are tensors 2i (weight) and 2i+1 (bias).
type network struct {
	seed   uint64
	layers []layer
	shapes []Tensor // names and shapes of the parameters, without data

	// Scratch memory for up to rows records.
	rows    int
	outputs [][]float32 // per layer: what it computed, after the ReLU
	deltas  [][]float32 // per layer but the last: derivatives of the loss by its sums before the ReLU
	weightT [][]float32 // per layer but the first: its weight, transposed
}

func newNetwork(seed uint64, layers []layer) *network {
	n := &network{seed: seed, layers: layers, outputs: make([][]float32, len(layers)),
		deltas: make([][]float32, len(layers)-1), weightT: make([][]float32, len(layers))}
	for i, l := range layers {
		n.shapes = append(n.shapes,
			Tensor{Name: l.name + ".weight", Shape: []int{l.inputs, l.outputs}},
			Tensor{Name: l.name + ".bias", Shape: []int{l.outputs}})
		if i > 0 {
			n.weightT[i] = make([]float32, l.inputs*l.outputs)
		}
	}
	return n
}

// Parameters draws the weights of hidden layers by He's rule and the weights of the last layer by Glorot's; biases are zero.
func (n *network) Parameters() []Tensor {
	params := ZerosLike(n.shapes)
	for i, l := range n.layers {
		limit := heLimit(l.inputs)
		if i == len(n.layers)-1 {
			limit = glorotLimit(l.inputs, l.outputs)
		}
		params[2*i].fillUniform(n.seed, limit)
	}
	return params
}

func (n *network) Tables() []Table { return nil }

func (n *network) NewBatch(capacity int) *Batch { return newBatch(n.inputs(), n.classes(), capacity) }

func (n *network) inputs() int  { return n.layers[0].inputs }
func (n *network) classes() int { return n.layers[len(n.layers)-1].outputs }

func (n *network) Gradients(params []Tensor, batch *Batch, grads []Tensor) (float64, error) {
	if err := check("gradients", grads, n.shapes); err != nil {
		return 0, err
	}
	if err := n.admit(params, batch); err != nil {
		return 0, err
	}
	delta := n.forward(params, batch) // of the last layer; the softmax turns the logits into it, in place
	lossSum := 0.0
	for i, label := range batch.labels {
		logits := row(delta, i)
		lossSum += softmax(logits, label)
		logits[label]--
	}
	for i := len(n.layers) - 1; i >= 0; i-- {
		weight := matrix(n.layers[i].inputs, n.layers[i].outputs, grads[2*i].Data)
		clear(weight.Data)
		addTransposedProduct(weight, n.input(i, batch), delta)
		sumRows(grads[2*i+1].Data, delta)
		if i > 0 {
			delta = n.backward(i, params[2*i].Data, delta)
		}
	}
	return lossSum, nil
}

func (n *network) Evaluate(params []Tensor, batch *Batch) (correct int, lossSum float64, err error) {
	if err := n.admit(params, batch); err != nil {
		return 0, 0, err
	}
	last := n.forward(params, batch)
	for i, label := range batch.labels {
		logits := row(last, i)
		if wins(logits, label) {
			correct++
		}
		lossSum += softmax(logits, label)
	}
	return correct, lossSum, nil
}

func (n *network) Predict(params []Tensor, batch *Batch, probabilities []float32) ([]float32, error) {
	if err := n.admit(params, batch); err != nil {
		return probabilities, err
	}
	last := n.forward(params, batch)
	for i := range batch.labels {
		logits := row(last, i)
		softmax(logits, 0) // of any label
		probabilities = append(probabilities, logits...)
	}
	return probabilities, nil
}

// admit checks the arguments of a call and grows the scratch memory.
func (n *network) admit(params []Tensor, batch *Batch) error {
	if err := check("parameters", params, n.shapes); err != nil {
		return err
	}
	if batch.categories != nil || batch.inputs != n.inputs() || batch.classes != n.classes() {
		return fmt.Errorf("batch is for %d features and %d classes, expected %d and %d",
			batch.inputs, batch.classes, n.inputs(), n.classes())
	}
	if batch.Len() <= n.rows {
		return nil
	}
	n.rows = batch.Len()
	for i, l := range n.layers {
		n.outputs[i] = make([]float32, n.rows*l.outputs)
		if i < len(n.deltas) {
			n.deltas[i] = make([]float32, n.rows*l.outputs)
		}
	}
	return nil
}

// forward computes every layer and returns the output of the last layer, the logits.
func (n *network) forward(params []Tensor, batch *Batch) blas32.General {
	for i, l := range n.layers {
		out := n.output(i, batch)
		setRows(out, params[2*i+1].Data)
		addProduct(out, n.input(i, batch), matrix(l.inputs, l.outputs, params[2*i].Data))
		if i < len(n.layers)-1 {
			for j, v := range out.Data {
				out.Data[j] = max(v, 0)
			}
		}
	}
	return n.output(len(n.layers)-1, batch)
}

// backward takes the derivatives of the loss by the sums of layer i and returns those by the sums of the layer before.
func (n *network) backward(i int, weight []float32, delta blas32.General) blas32.General {
	l := n.layers[i]
	weightT := matrix(l.outputs, l.inputs, n.weightT[i])
	transpose(weightT, matrix(l.inputs, l.outputs, weight))
	before := matrix(delta.Rows, l.inputs, n.deltas[i-1])
	clear(before.Data)
	addProduct(before, delta, weightT)
	for j, v := range n.outputs[i-1][:len(before.Data)] {
		if v <= 0 { // where the ReLU let nothing through
			before.Data[j] = 0
		}
	}
	return before
}

// input is what layer i reads: the features, or what the layer before computed.
func (n *network) input(i int, batch *Batch) blas32.General {
	if i == 0 {
		return matrix(batch.Len(), n.layers[0].inputs, batch.features)
	}
	return n.output(i-1, batch)
}

// output is what layer i computed for the batch.
func (n *network) output(i int, batch *Batch) blas32.General {
	return matrix(batch.Len(), n.layers[i].outputs, n.outputs[i])
}

// softmax replaces the logits of one record by probabilities and returns the record's loss, -log of the probability of its label.
// The largest logit is subtracted first: exponentials do not overflow, and the loss stays exact if a probability rounds to zero.
func softmax(logits []float32, label int) (loss float64) {
	largest := float64(logits[0])
	for _, v := range logits[1:] {
		largest = max(largest, float64(v))
	}
	sum := 0.0
	for _, v := range logits {
		sum += math.Exp(float64(v) - largest)
	}
	logSum := largest + math.Log(sum)
	loss = logSum - float64(logits[label])
	for j, v := range logits {
		logits[j] = float32(math.Exp(float64(v) - logSum))
	}
	return loss
}

// wins reports whether the label's logit is the largest, and the first of those equal to it.
func wins(logits []float32, label int) bool {
	for j, v := range logits {
		if j < label && !(v < logits[label]) || j > label && !(v <= logits[label]) {
			return false
		}
	}
	return true
}
