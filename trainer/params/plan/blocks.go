package plan

import (
	"fmt"
	"math"

	"trainmaster/pserver/floats"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/wire"
)

// Tensor is a named array of float32 in row-major order; len(Data) is the product of Shape.
type Tensor struct {
	Name  string
	Shape []int
	Data  []float32
}

// Block is a block of the model and its payload in the current call.
type Block struct {
	placement.Block
	Tensor int    // index in the tensors of a call
	At     uint32 // the version that the trainer computes with, and its own pushes since

	DType  wire.DType // of the payload
	Size   wire.Distance
	Sum    wire.Checksum
	narrow []byte // the payload, of bfloat16
}

// pieceBytes of a payload are rounded and then summed while they are in the cache.
const pieceBytes = 64 << 10

// Clip scales gradients, sums over records, so that the norm of grads/records is at most limit, if limit is not 0. A server cannot,
// since it has only some of the blocks.
func Clip(grads []Tensor, records int, limit float32) {
	if limit == 0 {
		return
	}
	squares := 0.0
	for _, g := range grads {
		squares += optimizer.SquareSum(g.Data)
	}
	factor := optimizer.ClipFactor(math.Sqrt(squares)/float64(records), float64(limit))
	if factor == 1 || squares-squares != 0 {
		return // a gradient that is not finite is refused unchanged
	}
	for _, g := range grads {
		optimizer.Scale(g.Data, factor)
	}
}

// Blocks makes the payloads of tensors and their sums. It reads each block from memory once. A NaN or an infinity is an error, which
// names it, so such a step changes no block at all.
func Blocks(what string, blocks []Block, dtype wire.DType, tensors []Tensor) error {
	for i := range blocks {
		b := &blocks[i]
		if b.DType != dtype {
			b.DType, b.Size = dtype, wire.DistanceOf(dtype.Size()*b.Len)
		}
		values, isFinite := b.Of(tensors), true
		if dtype != wire.BFloat16 {
			b.Sum, isFinite = wire.Checksum(0).AddFloats(values)
		} else {
			if b.narrow == nil {
				b.narrow = make([]byte, 2*b.Len)
			}
			b.Sum = 0
			for lo := 0; lo < b.Len; lo += pieceBytes / 4 {
				hi := min(lo+pieceBytes/4, b.Len)
				isFinite = wire.Narrow(b.narrow[2*lo:], values[lo:hi]) && isFinite
				b.Sum = b.Sum.Add(b.narrow[2*lo : 2*hi])
			}
		}
		//guard:not-finite-is-named
		if !isFinite {
			return b.notFinite(what, tensors)
		}
	}
	return nil
}

// NotFiniteError is returned for a tensor, or rows of a table, with a NaN or an infinity.
type NotFiniteError struct {
	Tensor string // or table
	text   string
}

// NotFinite returns the error of rows of a table.
func NotFinite(table, text string) *NotFiniteError {
	return &NotFiniteError{table, fmt.Sprintf("table %q: %s", table, text)}
}

func (e *NotFiniteError) Error() string { return e.text }

// notFinite names the element that is not finite.
func (b *Block) notFinite(what string, tensors []Tensor) error {
	values, name := b.Of(tensors), tensors[b.Tensor].Name
	at := floats.FirstNotFinite(values)
	if at >= 0 {
		return &NotFiniteError{name, fmt.Sprintf("%s %q: element %d is %v", what, name, b.Offset+at, values[at])}
	}
	rounded := make([]float32, b.Len)
	wire.Widen(rounded, b.narrow)
	at = floats.FirstNotFinite(rounded)
	return &NotFiniteError{name, fmt.Sprintf("%s %q: element %d is %v, which is %v as %v", what, name, b.Offset+at, values[at], rounded[at], b.DType)}
}

// Of returns the elements of the block; nil without tensors.
func (b *Block) Of(tensors []Tensor) []float32 {
	if tensors == nil {
		return nil
	}
	return tensors[b.Tensor].Data[b.Offset : b.Offset+b.Len]
}

// Payload is what a call sends of the block, nil if src is.
func (b *Block) Payload(src []Tensor) []byte {
	switch {
	case src == nil:
		return nil
	case b.DType == wire.BFloat16:
		return b.narrow
	}
	return floats.Bytes(b.Of(src))
}
