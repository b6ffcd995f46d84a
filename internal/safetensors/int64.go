package safetensors

import (
	"encoding/binary"
	"fmt"
)

// FromInt64 makes a tensor of dtype I64 with a copy of values.
func FromInt64(name string, shape []int, values []int64) Tensor {
	data := make([]byte, 0, 8*len(values))
	for _, v := range values {
		data = binary.LittleEndian.AppendUint64(data, uint64(v))
	}
	return Tensor{Info{name, I64, shape}, data}
}

// Int64 is a copy of the values of a tensor of dtype I64.
func (t Tensor) Int64() ([]int64, error) {
	if t.DType != I64 {
		return nil, fmt.Errorf("tensor %q has dtype %s: expected %s", t.Name, t.DType, I64)
	}
	values := make([]int64, len(t.Data)/8)
	for i := range values {
		values[i] = int64(binary.LittleEndian.Uint64(t.Data[8*i:]))
	}
	return values, nil
}
