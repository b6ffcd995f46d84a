package modelfile

import (
	"slices"
	"strings"

	"trainmaster/internal/safetensors"
)

// The layouts of `master model export`. Parameter servers keep the weight of a linear layer as [inputs, outputs]. PyTorch's
// nn.Linear has it as [outputs, inputs].
const (
	LayoutPyTorch = "pytorch"
	LayoutStored  = "stored"
)

// transposedKey is the key in the metadata of an exported file with the names of its transposed tensors, as a JSON list.
const transposedKey = "transposed"

// isLinear reports whether a tensor is the weight of a linear layer, NAME.weight of two dimensions, or the optimizer's state of
// such a weight.
func isLinear(t safetensors.Info, states []string) bool {
	name := t.Name
	if last := strings.LastIndexByte(name, '.'); last >= 0 && slices.Contains(states, name[last+1:]) {
		name = name[:last]
	}
	return len(t.Shape) == 2 && strings.HasSuffix(name, ".weight")
}

// transposed returns a matrix with rows and columns exchanged.
func transposed(values []float32, rows, columns int) []float32 {
	out := make([]float32, len(values))
	for i := range rows {
		for j := range columns {
			out[j*rows+i] = values[i*columns+j]
		}
	}
	return out
}
