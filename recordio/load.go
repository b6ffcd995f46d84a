package recordio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// LengthSize is the number of bytes before each record in a payload: its length.
const LengthSize = lengthSize

// Payload reads the chunk that ix describes, verifies it, and returns its payload without compression, in memory that alloc makes with the needed size or
// more. Each record has its length before it; PutOffsets has where they are. Chunk has the same errors.
func (f *File) Payload(ix Index, alloc func(size int) ([]byte, error)) ([]byte, error) {
	b := bufferPool.Get().(*buffers)
	defer b.release()
	payload, err := b.payload(f, ix, alloc)
	if err != nil {
		return nil, f.errorAt(ix.Offset, err)
	}
	return payload, nil
}

func (b *buffers) payload(f *File, ix Index, alloc func(size int) ([]byte, error)) ([]byte, error) {
	if ix.Compression == None {
		return b.payloadInPlace(f, ix, alloc)
	}
	h, err := b.expect(f, ix)
	if err != nil {
		return nil, err
	}
	stored, err := b.stored(f, ix.Offset, h, ix.Layout)
	if err != nil {
		return nil, err
	}
	plain, err := b.decompress(stored, h.compression, ix.Layout, f.limit())
	if err != nil {
		return nil, err
	}
	memory, err := alloc(len(plain))
	if err != nil {
		return nil, err
	}
	return memory[:copy(memory, plain)], nil
}

// payloadInPlace reads a payload without compression straight to its place.
func (b *buffers) payloadInPlace(f *File, ix Index, alloc func(size int) ([]byte, error)) ([]byte, error) {
	h, err := b.expectHeader(f, ix, HeaderSize)
	if err != nil {
		return nil, err
	}
	memory, err := alloc(int(h.size))
	if err != nil {
		return nil, err
	}
	payload := memory[:h.size]
	at := ix.Offset + HeaderSize
	if n, err := f.reader.ReadAt(payload, at); n < len(payload) {
		if err == nil || errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%w: it ends at byte %d and had %d bytes when it was opened", ErrTruncated, at+int64(n), f.size)
		}
		return nil, fmt.Errorf("read %d bytes at %d: %w", len(payload), at, err)
	}
	return payload, ix.Layout.verify(payload, h)
}

// PutOffsets stores where the records of a payload begin, counted from base bytes before it: ix.Records offsets and the offset behind the last record, in
// little endian. A record ends LengthSize bytes before the next offset. It returns an error if the payload does not consist of
// ix.Records records.
func (f *File) PutOffsets(ix Index, payload []byte, base uint32, table []byte) error {
	at := base + LengthSize
	i := 0
	_, err := split(payload, ix.Records, func(record []byte, _ error) bool {
		binary.LittleEndian.PutUint32(table[4*i:], at)
		at += uint32(len(record)) + LengthSize
		i++
		return true
	})
	if err != nil {
		return f.errorAt(ix.Offset, err)
	}
	binary.LittleEndian.PutUint32(table[4*i:], at)
	return nil
}
