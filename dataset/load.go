package dataset

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"trainmaster/recordio"
)

// Load reads the chunk that ix describes, verifies it, and stores its records in memory that alloc makes: ix.Records+1 offsets (u32, little endian), then the
// records. Record i has the bytes from offsets[i] to offsets[i+1]-gap. The layout of ix must be of this format. alloc can be called twice: damaged bytes of a cache are read
// again from the store.
func (r *Reader) Load(ix recordio.Index, alloc func(size int) ([]byte, error)) (memory []byte, gap int, err error) {
	memory, gap, err = r.load(ix, alloc)
	if err != nil && r.object.Reread(err) {
		memory, gap, err = r.load(ix, alloc)
	}
	return memory, gap, err
}

func (r *Reader) load(ix recordio.Index, alloc func(size int) ([]byte, error)) (memory []byte, gap int, err error) {
	if r.RecordIO == nil {
		memory, err = r.gather(ix, alloc)
		return memory, 0, err
	}
	r.Expect(ix)
	table := tableSize(ix)
	payload, err := r.RecordIO.Payload(ix, func(n int) ([]byte, error) {
		if memory, err = allocate(table+n, alloc); err != nil {
			return nil, err
		}
		return memory[table:], nil
	})
	if err != nil {
		return nil, 0, err
	}
	memory = memory[:table+len(payload)]
	return memory, recordio.LengthSize, r.RecordIO.PutOffsets(ix, payload, uint32(table), memory[:table])
}

// offsetSize is the size of an offset.
const offsetSize = 4

func tableSize(ix recordio.Index) int { return offsetSize * (int(ix.Records) + 1) }

func allocate(size int, alloc func(size int) ([]byte, error)) ([]byte, error) {
	if uint64(size) > math.MaxUint32 {
		return nil, fmt.Errorf("%w: a chunk of %d bytes, expected at most %d", recordio.ErrTooLarge, size, uint32(math.MaxUint32))
	}
	return alloc(size)
}

// gather copies the records of a chunk one after another.
func (r *Reader) gather(ix recordio.Index, alloc func(size int) ([]byte, error)) ([]byte, error) {
	var records []byte
	var ends []int
	for record, err := range r.chunk(ix) {
		if err != nil {
			return nil, err
		}
		if records == nil {
			records = make([]byte, 0, ix.Size)
		}
		records = append(records, record...)
		ends = append(ends, len(records))
	}
	table := offsetSize * (len(ends) + 1)
	memory, err := allocate(table+len(records), alloc)
	if err != nil {
		return nil, err
	}
	for i, end := range slices.Insert(ends, 0, 0) {
		binary.LittleEndian.PutUint32(memory[offsetSize*i:], uint32(table+end))
	}
	copy(memory[table:], records)
	return memory, nil
}
