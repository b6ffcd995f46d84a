package wire

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"unsafe"

	"trainmaster/pserver/table"
)

// Rows is the payload of a frame about rows of a table, see the package comment.
type Rows struct {
	Part, Parts uint32
	table.Batch
}

// Index is memory for the spans and ids of a payload, reused from one payload to the next.
type Index struct{ words []uint64 }

// copyOf returns a copy of p that is aligned to 8 bytes. The next copy overwrites it.
func (x *Index) copyOf(p []byte) []byte {
	x.words = slices.Grow(x.words[:0], (len(p)+7)/8)
	c := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x.words[:1]))), len(p))
	copy(c, p)
	return c
}

const rowsHead = 16

// MaxBatch is the maximum size of a batch in a payload.
const MaxBatch = MaxPayload - rowsHead

// RowsSize is the size of a payload in bytes; dim is 0 in a lookup.
func RowsSize(spans, rows, dim int) int { return rowsHead + table.BatchBytes(spans, rows, dim) }

// MostRows is how many rows of one slot a frame has room for, with and without values: as many go
// into a request, and into the reply of a lookup.
func MostRows(dim int) int {
	return (MaxBatch - table.BatchBytes(1, 0, 0)) / table.BatchBytes(0, 1, dim)
}

// Layout lays a payload out in buf, which is aligned to 8 bytes, for the given numbers of spans and rows, and returns its parts
// for the caller to fill.
func Layout(buf []byte, spans, rows, dim int) (payload []byte, r Rows) {
	payload = buf[:RowsSize(spans, rows, dim)]
	binary.LittleEndian.PutUint32(payload[0:], uint32(spans))
	binary.LittleEndian.PutUint32(payload[4:], uint32(rows))
	return payload, Rows{Parts: 1, Batch: table.BatchIn(payload[rowsHead:], spans, rows, dim)}
}

// Number sets the number of the part and of all parts in a payload.
func Number(payload []byte, part, parts uint32) {
	binary.LittleEndian.PutUint32(payload[8:], part)
	binary.LittleEndian.PutUint32(payload[12:], parts)
}

// ParseRows reads a payload, which is aligned to 8 bytes and shared with the result; dim is 0 in a lookup.
// It fails unless the slots ascend without duplicates. Values may be anything.
//
// With an index, the sender can still change the payload: each byte of the spans and the ids is read once, into the index, and the copies
// are checked and returned. The values remain in payload.
func ParseRows(payload []byte, dim int, own *Index) (r Rows, err error) {
	if len(payload) < rowsHead {
		return r, fmt.Errorf("payload has %d bytes: expected at least %d", len(payload), rowsHead)
	}
	head := [rowsHead]byte(payload)
	spans := binary.LittleEndian.Uint32(head[0:])
	rows := binary.LittleEndian.Uint32(head[4:])
	r.Part = binary.LittleEndian.Uint32(head[8:])
	r.Parts = binary.LittleEndian.Uint32(head[12:])
	if r.Part >= r.Parts {
		return r, fmt.Errorf("part %d of %d: expected parts from 0 on, less than their number", r.Part, r.Parts)
	}
	if spans > MaxPayload || rows > MaxPayload || RowsSize(int(spans), int(rows), dim) != len(payload) {
		return r, fmt.Errorf("payload has %d bytes, not the size of %d slots and %d rows of %d floats", len(payload), spans, rows, dim)
	}
	r.Batch = table.BatchIn(payload[rowsHead:], int(spans), int(rows), dim)
	//guard:shared-ids-copied
	if own != nil {
		own := table.BatchIn(own.copyOf(payload[rowsHead:RowsSize(int(spans), int(rows), 0)]), int(spans), int(rows), 0)
		r.Spans, r.IDs, r.Shared = own.Spans, own.IDs, true
	}
	sum := uint64(0)
	last := uint32(math.MaxUint32)
	for i, s := range r.Spans {
		if i > 0 && s.Slot <= last {
			return r, fmt.Errorf("slot %d follows slot %d: expected them to ascend", s.Slot, last)
		}
		last = s.Slot
		sum += uint64(s.Rows)
	}
	if sum != uint64(rows) {
		return r, fmt.Errorf("the slots have %d rows together, the payload %d", sum, rows)
	}
	return r, nil
}
