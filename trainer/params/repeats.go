package params

import (
	"fmt"
	"math/bits"

	"gonum.org/v1/gonum/blas/blas32"

	"trainmaster/pserver/table"
	"trainmaster/pserver/wire"
)

// repeat is a duplicate id in a batch: the positions of the first occurrence and of the duplicate.
type repeat struct{ first, place int32 }

// repeated stands for the slot of an id that is in the batch before.
const repeated = table.Slots

// findRepeats sets the slot of every id, or repeated, and lists the repeats in the order of the batch.
func (p *rowPlan) findRepeats(table *Table, ids []int64, slots []uint16) {
	size := 1 << bits.Len(uint(2*len(ids)))
	if cap(p.index) < size {
		p.index = make([]int32, size)
	}
	index := p.index[:size]
	clear(index)
	p.repeats = p.repeats[:0]
	for i, id := range ids {
		slot, rest := table.Hash(id)
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

// sumRepeats returns gradients in which the first occurrence of each id has the sum of all its gradients, in their order. grads do
// not change.
func (p *rowPlan) sumRepeats(call *rowCall) ([]float32, error) {
	if len(p.repeats) == 0 {
		return call.grads, nil
	}
	dim := call.table.Dim
	p.sums = append(p.sums[:0], call.grads...)
	row := func(values []float32, place int32) blas32.Vector {
		return blas32.Vector{N: dim, Data: values[int(place)*dim : (int(place)+1)*dim], Inc: 1}
	}
	for _, r := range p.repeats {
		blas32.Axpy(1, row(call.grads, r.place), row(p.sums, r.first))
	}
	//guard:gradient-sum-finite
	if !wire.Finite(p.sums) {
		i := wire.FirstNotFinite(p.sums)
		return nil, fmt.Errorf("table %q: element %d of the sum of the gradients of id %d is %v", call.table.Name, i%dim, call.ids[i/dim], p.sums[i])
	}
	return p.sums, nil
}

// fillRepeats copies the row of the first occurrence of each id to its duplicates.
func (p *rowPlan) fillRepeats(call *rowCall) {
	dim := call.table.Dim
	for _, r := range p.repeats {
		copy(call.dst[int(r.place)*dim:(int(r.place)+1)*dim], call.dst[int(r.first)*dim:])
	}
}
