// Package plan implements the preparation of a call: payloads of blocks, and the distribution of a batch of ids over slots and frames.
//
// [Clip] limits the norm of the gradients of a step, and [Blocks] rejects values that are not finite and sums each block. For rows, a caller sorts the ids
// of a batch once ([Rows.Sort]) and fills frames with the positions of each slot ([Frame.Add]). Each id is sent once: [Rows.Sum] adds
// the gradients of repeated ids before a push, and [Rows.Fill] copies rows to repeated ids after a lookup. The package is pure. Its
// memory is reused for the next call, so a call allocates nothing once the slices have their size.
//
// The types are not safe for concurrent use.
package plan

import (
	"fmt"
	"math/bits"

	"gonum.org/v1/gonum/blas/blas32"

	"trainmaster/pserver/floats"
	"trainmaster/pserver/table"
	"trainmaster/pserver/wire"
)

// Rows is the plan of one batch of ids.
type Rows struct {
	slots   []uint16 // of the ids by position, or repeated
	places  []int32  // positions of the ids, slot after slot
	starts  [table.Slots + 2]int32
	index   []int32 // open addressing: positions of ids, from 1
	repeats []repeat
	sums    []float32 // of gradients
}

// repeat is a duplicate id in a batch: the positions of the first occurrence and of the duplicate.
type repeat struct{ first, place int32 }

// repeated stands for the slot of a duplicate id.
const repeated = table.Slots

// Sort finds the duplicates among ids, at most 2^31-1, and sorts the other ids by slot.
func (p *Rows) Sort(cfg *table.Config, ids []int64) {
	if n := len(ids); cap(p.slots) < n {
		p.slots, p.places = make([]uint16, n+n/2), make([]int32, n+n/2)
	}
	slots, places := p.slots[:len(ids)], p.places[:len(ids)]
	p.starts = [table.Slots + 2]int32{}
	p.findRepeats(cfg, ids, slots)
	for _, slot := range slots {
		p.starts[slot+1]++
	}
	for slot := range table.Slots + 1 { // repeated ids come last
		p.starts[slot+1] += p.starts[slot]
	}
	next := p.starts
	for i, slot := range slots {
		places[next[slot]] = int32(i)
		next[slot]++
	}
}

// findRepeats sets the slot of every id, or repeated, and lists the duplicates in the order of the batch.
func (p *Rows) findRepeats(cfg *table.Config, ids []int64, slots []uint16) {
	size := 1 << bits.Len(uint(2*len(ids)))
	if cap(p.index) < size {
		p.index = make([]int32, size)
	}
	index := p.index[:size]
	clear(index)
	p.repeats = p.repeats[:0]
	for i, id := range ids {
		slot, rest := cfg.Hash(id)
		at := int(rest) & (size - 1)
		for index[at] != 0 && ids[index[at]-1] != id {
			at = (at + 1) & (size - 1)
		}
		//guard:repeated-ids-merged
		if first := index[at] - 1; first >= 0 {
			slots[i] = repeated
			p.repeats = append(p.repeats, repeat{first, int32(i)})
			continue
		}
		index[at], slots[i] = int32(i)+1, uint16(slot)
	}
}

// Slot returns the positions of the ids of a slot, in the order of the batch and without duplicates. They are valid until the next
// Sort.
func (p *Rows) Slot(slot uint32) []int32 { return p.places[p.starts[slot]:p.starts[slot+1]] }

// Repeats returns the number of duplicates.
func (p *Rows) Repeats() int { return len(p.repeats) }

// Sum returns gradients in which the first occurrence of each id has the sum of all its gradients, in their order. grads, of shape
// [ids, dim], do not change. The result is grads if no id repeats, and otherwise valid until the next Sum. A sum that is not finite
// is an error.
func (p *Rows) Sum(ids []int64, grads []float32, dim int) ([]float32, error) {
	if len(p.repeats) == 0 {
		return grads, nil
	}
	p.sums = append(p.sums[:0], grads...)
	row := func(values []float32, place int32) blas32.Vector {
		return blas32.Vector{N: dim, Data: values[int(place)*dim : (int(place)+1)*dim], Inc: 1}
	}
	for _, r := range p.repeats {
		blas32.Axpy(1, row(grads, r.place), row(p.sums, r.first))
	}
	//guard:gradient-sum-finite
	if !floats.Finite(p.sums) {
		i := floats.FirstNotFinite(p.sums)
		return nil, fmt.Errorf("element %d of the sum of the gradients of id %d is %v", i%dim, ids[i/dim], p.sums[i])
	}
	return p.sums, nil
}

// Fill copies the row of the first occurrence of each id in dst, of shape [ids, dim], to its duplicates.
func (p *Rows) Fill(dst []float32, dim int) {
	for _, r := range p.repeats {
		copy(dst[int(r.place)*dim:(int(r.place)+1)*dim], dst[int(r.first)*dim:])
	}
}

// frameBytes is the approximate size of a frame: small enough that client and server work at the same time.
const frameBytes = 256 << 10

// Frame is the content of one frame of rows: spans of slots, and the positions of their ids, slot after slot.
type Frame struct {
	Spans  []table.Span
	Places []int32
}

// Reset makes f the frame of one span.
func (f *Frame) Reset(span table.Span, places []int32) {
	f.Spans, f.Places = append(f.Spans[:0], span), append(f.Places[:0], places...)
}

// Add adds a span to f, which has at least one. It returns false if the frame is full or has the slot already.
func (f *Frame) Add(span table.Span, places []int32, dim int) bool {
	spans, rows := len(f.Spans)+1, len(f.Places)+len(places)
	if wire.RowsSize(spans, rows, dim) > frameBytes || f.Spans[spans-2].Slot == span.Slot {
		return false
	}
	f.Spans = append(f.Spans, span)
	f.Places = append(f.Places, places...)
	return true
}
