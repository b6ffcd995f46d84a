package safetensors

import (
	"encoding/binary"
	"fmt"
	"math"
)

// FromFloat32 makes a tensor of dtype F32 with a copy of values.
func FromFloat32(name string, shape []int, values []float32) Tensor {
	data := make([]byte, 0, 4*len(values))
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	return Tensor{Info{name, F32, shape}, data}
}

// Float32 is a copy of the values of a tensor of dtype F32.
func (t Tensor) Float32() ([]float32, error) {
	if t.DType != F32 {
		return nil, fmt.Errorf("tensor %q has dtype %s: expected %s", t.Name, t.DType, F32)
	}
	values := make([]float32, len(t.Data)/4)
	for i := range values {
		values[i] = math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:]))
	}
	return values, nil
}
