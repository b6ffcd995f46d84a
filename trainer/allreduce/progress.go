package allreduce

import (
	"encoding/binary"
	"errors"
	"maps"
	"slices"

	"trainmaster/taskqueue"
)

// Progress has the number of records of each task that are in the model. Tasks are dispatched in the order of their positions, so that the tasks of
// which the model has all records are a few ranges of positions. Passes that have ended are dropped.
type Progress struct {
	passes map[pass]*passProgress
}

// pass is a pass of a dataset.
type pass struct {
	epoch, dataset, number uint32
}

type passProgress struct {
	whole []span           // ascending, with gaps between them
	parts map[uint64]int64 // position: records, at least 1
}

// span is the positions from first to last.
type span struct{ first, last uint64 }

// openPasses is the number of passes of a dataset that can have tasks at the same time.
const openPasses = 2

func passOf(t taskqueue.Token) pass {
	return pass{t.Epoch, uint32(t.Dataset), uint32(t.Pass)}
}

// Used returns the number of records of a task that the model has. whole: it has all of them, and records is not known.
func (p *Progress) Used(t taskqueue.Token) (records int64, whole bool) {
	of := p.passes[passOf(t)]
	if of == nil {
		return 0, false
	}
	at := uint64(t.Position)
	if _, whole = of.find(at); whole {
		return 0, true
	}
	return of.parts[at], false
}

// find returns the index of the span that ends at or after a position, and whether the span has it.
func (o *passProgress) find(at uint64) (index int, found bool) {
	index, _ = slices.BinarySearchFunc(o.whole, at, func(s span, at uint64) int {
		if s.last < at {
			return -1
		}
		return 1
	})
	return index, index < len(o.whole) && o.whole[index].first <= at
}

// Add adds records of a task. last: the model then has all of them.
func (p *Progress) Add(t taskqueue.Token, records int64, last bool) {
	key := passOf(t)
	of := p.passes[key]
	if of == nil {
		if p.passes == nil {
			p.passes = map[pass]*passProgress{}
		}
		//guard:progress-drops-ended-passes
		maps.DeleteFunc(p.passes, func(k pass, _ *passProgress) bool {
			return k.dataset == key.dataset && (k.epoch < key.epoch || k.number+openPasses <= key.number)
		})
		of = &passProgress{parts: map[uint64]int64{}}
		p.passes[key] = of
	}
	at := uint64(t.Position)
	if !last {
		of.parts[at] += records
		return
	}
	delete(of.parts, at)
	of.join(at)
}

// join adds a position to the whole ones.
func (o *passProgress) join(at uint64) {
	i, found := o.find(at)
	if found {
		return
	}
	after := i < len(o.whole) && o.whole[i].first == at+1
	before := i > 0 && o.whole[i-1].last+1 == at
	switch {
	case before && after:
		o.whole[i-1].last = o.whole[i].last
		o.whole = slices.Delete(o.whole, i, i+1)
	case before:
		o.whole[i-1].last = at
	case after:
		o.whole[i].first = at
	default:
		o.whole = slices.Insert(o.whole, i, span{at, at})
	}
}

// encode returns the bytes of a progress: for each pass its three numbers, the number of spans with first and last, and the number of parts with
// position and records.
func (p *Progress) encode() (b []byte) {
	for k, of := range p.passes {
		for _, v := range []uint32{k.epoch, k.dataset, k.number} {
			b = binary.AppendUvarint(b, uint64(v))
		}
		b = binary.AppendUvarint(b, uint64(len(of.whole)))
		for _, s := range of.whole {
			b = binary.AppendUvarint(binary.AppendUvarint(b, s.first), s.last)
		}
		b = binary.AppendUvarint(b, uint64(len(of.parts)))
		for at, records := range of.parts {
			b = binary.AppendUvarint(binary.AppendUvarint(b, at), uint64(records))
		}
	}
	return b
}

var errProgress = errors.New("progress of the tasks: expected passes with their tasks, found other bytes")

// decodeProgress reads what encode wrote. It allocates no more than the bytes have.
func decodeProgress(b []byte) (p Progress, err error) {
	number := func() uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			err, b = errProgress, nil
			return 0
		}
		b = b[n:]
		return v
	}
	p.passes = map[pass]*passProgress{}
	for len(b) > 0 {
		key := pass{uint32(number()), uint32(number()), uint32(number())}
		of := &passProgress{parts: map[uint64]int64{}}
		for n := number(); n > 0 && err == nil; n-- {
			s := span{number(), number()}
			if k := len(of.whole); s.last < s.first || k > 0 && of.whole[k-1].last+1 >= s.first {
				return p, errProgress
			}
			of.whole = append(of.whole, s)
		}
		for n := number(); n > 0 && err == nil; n-- {
			at := number()
			of.parts[at] = int64(number())
		}
		if err != nil {
			return p, err
		}
		p.passes[key] = of
	}
	return p, nil
}
