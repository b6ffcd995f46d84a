package model

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
)

// Tensor is a named array of float32 in row-major order; len(Data) is the product of Shape.
type Tensor struct {
	Name  string
	Shape []int
	Data  []float32
}

func newTensor(name string, shape ...int) Tensor {
	size := 1
	for _, n := range shape {
		size *= n
	}
	return Tensor{Name: name, Shape: shape, Data: make([]float32, size)}
}

// ZerosLike returns tensors of the same names and shapes, filled with zeros: the place for gradients.
func ZerosLike(tensors []Tensor) []Tensor {
	zeros := make([]Tensor, len(tensors))
	for i, t := range tensors {
		zeros[i] = newTensor(t.Name, slices.Clone(t.Shape)...)
	}
	return zeros
}

// fillUniform sets the data to values drawn evenly from [-limit, limit), which depend on the seed and the name only.
func (t Tensor) fillUniform(seed uint64, limit float64) {
	name := fnv.New64a()
	name.Write([]byte(t.Name))
	random := rand.NewPCG(seed, name.Sum64())
	for i := range t.Data {
		unit := float64(random.Uint64()>>11) / (1 << 53)
		t.Data[i] = float32(limit * (2*unit - 1))
	}
}

// heLimit is the bound of the uniform distribution with variance 2/inputs, which keeps the variance of activations
// through a ReLU (He et al. 2015, "Delving Deep into Rectifiers", equation 10).
func heLimit(inputs int) float64 { return math.Sqrt(6 / float64(inputs)) }

// glorotLimit is the bound of the uniform distribution with variance 2/(inputs+outputs) (Glorot and Bengio 2010,
// "Understanding the difficulty of training deep feedforward neural networks", equation 16).
func glorotLimit(inputs, outputs int) float64 { return math.Sqrt(6 / float64(inputs+outputs)) }

// check compares tensors with the expected names and shapes; what names them in the error.
func check(what string, found, expected []Tensor) error {
	if len(found) != len(expected) {
		return fmt.Errorf("%d %s, expected %d", len(found), what, len(expected))
	}
	for i, want := range expected {
		got := found[i]
		if got.Name != want.Name {
			return fmt.Errorf("%s: tensor %d is %q, expected %q", what, i, got.Name, want.Name)
		}
		if !slices.Equal(got.Shape, want.Shape) {
			return fmt.Errorf("%s: tensor %q has shape %v, expected %v", what, got.Name, got.Shape, want.Shape)
		}
		if size := want.Size(); len(got.Data) != size {
			return fmt.Errorf("%s: tensor %q holds %d values, expected %d for shape %v",
				what, got.Name, len(got.Data), size, want.Shape)
		}
	}
	return nil
}

// Size is the product of the shape.
func (t Tensor) Size() int {
	size := 1
	for _, n := range t.Shape {
		size *= n
	}
	return size
}
