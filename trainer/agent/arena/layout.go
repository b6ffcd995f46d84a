package arena

import (
	"fmt"
	"math"
	"unsafe"

	"trainmaster/trainer/params"
)

// alignment of a tensor in the arena, in bytes: a cache line.
const alignment = 64

// Spec declares a tensor.
type Spec struct {
	Name  string `json:"name"`
	Shape []int  `json:"shape"`
	DType string `json:"dtype"` // float32
}

// Place says where the parameter and the gradient of a tensor begin, in bytes.
type Place struct {
	Name      string `json:"name"`
	Parameter int64  `json:"parameter"`
	Gradient  int64  `json:"gradient"`
	size      int    // elements
}

// Layout is the content of an arena: the parameters of all tensors in their order, then the gradients.
type Layout struct {
	Size      int64   `json:"size"` // bytes
	Gradients int64   `json:"gradients"`
	Tensors   []Place `json:"tensors"`

	Mode         string  `json:"mode"`
	LearningRate float32 `json:"learning_rate"`
}

// layOut places tensors.
func layOut(specs []Spec) (Layout, error) {
	if len(specs) == 0 {
		return Layout{}, invalidf("tensors: expected at least one, found none")
	}
	l := Layout{Tensors: make([]Place, len(specs))}
	names := map[string]bool{}
	at := int64(0)
	for i, s := range specs {
		size := int64(1)
		for _, n := range s.Shape {
			if n < 1 || size > math.MaxInt32/int64(n) {
				return l, invalidf("tensor %q: expected 1 to %d elements, found shape %v", s.Name, math.MaxInt32, s.Shape)
			}
			size *= int64(n)
		}
		switch {
		case s.Name == "" || names[s.Name]:
			return l, invalidf("tensor %q: expected a name that no other tensor has", s.Name)
		case s.DType != "float32":
			return l, invalidf("tensor %q: expected dtype float32, found %q: convert the parameter", s.Name, s.DType)
		}
		names[s.Name] = true
		l.Tensors[i] = Place{Name: s.Name, Parameter: at, size: int(size)}
		at += (4*size + alignment - 1) / alignment * alignment
	}
	l.Gradients, l.Size = at, 2*at
	for i := range l.Tensors {
		l.Tensors[i].Gradient = l.Tensors[i].Parameter + at
	}
	return l, nil
}

// tensors returns the parameters and the gradients in the memory of an arena.
func (l Layout) tensors(memory []byte, specs []Spec) (parameters, gradients []params.Tensor) {
	for i, p := range l.Tensors {
		of := func(at int64) params.Tensor {
			return params.Tensor{Name: p.Name, Shape: specs[i].Shape, Data: unsafe.Slice((*float32)(unsafe.Pointer(&memory[at])), p.size)}
		}
		parameters, gradients = append(parameters, of(p.Parameter)), append(gradients, of(p.Gradient))
	}
	return parameters, gradients
}

// InvalidError is a request that cannot succeed.
type InvalidError struct{ text string }

func (e *InvalidError) Error() string { return e.text }

func invalidf(format string, args ...any) error { return &InvalidError{fmt.Sprintf(format, args...)} }
