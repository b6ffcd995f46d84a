package table

import "unsafe"

// Span says how many rows of a batch are of a slot.
type Span struct{ Slot, Rows uint32 }

// Batch is rows of some slots, slot after slot.
type Batch struct {
	Spans  []Span
	IDs    []int64   // span after span
	Values []float32 // [ids, dim], nil in a lookup
	Shared bool      // the sender can still change Values: only a copy can be checked
}

const (
	spanSize = 8
	idSize   = 8
)

// BatchBytes is the size of a batch in memory; dim is 0 without values.
func BatchBytes(spans, rows, dim int) int { return spanSize*spans + rows*(idSize+4*dim) }

// BatchIn returns the batch in a memory, which is aligned to 8 bytes: spans, ids and values. The caller fills it, if it was not a batch
// before.
func BatchIn(memory []byte, spans, rows, dim int) (b Batch) {
	memory = memory[:BatchBytes(spans, rows, dim)]
	b.Spans = cast[Span](memory, spans)
	memory = memory[spanSize*spans:]
	b.IDs = cast[int64](memory, rows)
	b.Values = cast[float32](memory[idSize*rows:], rows*dim)
	return b
}

func cast[T any](b []byte, n int) []T {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}
