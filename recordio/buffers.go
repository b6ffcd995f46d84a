package recordio

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// keepBytes is the largest buffer that goes back to the pool; beyond it one giant chunk would pin its memory.
const keepBytes = 32 << 20

// buffers is the memory of one reading goroutine.
type buffers struct {
	window
	decompressor
}

var bufferPool = sync.Pool{New: func() any { return new(buffers) }}

func (b *buffers) release() {
	b.window.data = b.window.data[:0]
	if cap(b.window.data) > keepBytes {
		b.window.data = nil
	}
	if cap(b.plain) > keepBytes {
		b.plain = nil
	}
	bufferPool.Put(b)
}

// window holds a stretch of a file, so that what was read ahead is not read again.
type window struct {
	base int64
	data []byte
}

// view returns the bytes [offset, offset+size) of f, which must be in the file; they are valid until the next call. If it has
// to read, it reads ahead up to want bytes.
func (w *window) view(f *File, offset, size, want int64) ([]byte, error) {
	if offset < w.base || offset+size > w.base+int64(len(w.data)) {
		if err := w.fill(f, offset, min(max(size, want), f.size-offset)); err != nil {
			return nil, err
		}
	}
	return w.data[offset-w.base:][:size], nil
}

func (w *window) fill(f *File, offset, size int64) error {
	if int64(cap(w.data)) < size {
		w.data = make([]byte, size)
	}
	w.base, w.data = offset, w.data[:size]
	n, err := f.reader.ReadAt(w.data, offset)
	if int64(n) == size {
		return nil
	}
	w.data = w.data[:0]
	if err == nil || errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: it ends at byte %d and had %d bytes when it was opened", ErrTruncated, offset+int64(n), f.size)
	}
	return fmt.Errorf("read %d bytes at %d: %w", size, offset, err)
}

// header reads and checks the header at offset.
func (b *buffers) header(f *File, offset int64, l Layout, ahead int64) (header, error) {
	raw, err := b.rawHeader(f, offset, ahead)
	if err != nil {
		return header{}, err
	}
	h, err := parseHeader(raw, l)
	if err != nil {
		return header{}, err
	}
	return h, h.check(f.size-offset-HeaderSize, f.limit())
}

// checkBegin returns ErrBadMagic if a file that has no whole header does not begin as one: it is no truncated file.
func (b *buffers) checkBegin(f *File, size int64) error {
	begin, err := b.view(f, 0, size, 0)
	if err == nil && !bytes.HasPrefix(binary.LittleEndian.AppendUint32(nil, magic), begin) {
		err = fmt.Errorf("%w: not a RecordIO, TFRecord or Parquet file", ErrBadMagic)
	}
	return err
}

func (b *buffers) rawHeader(f *File, offset, ahead int64) ([]byte, error) {
	if left := f.size - offset; left < HeaderSize {
		if offset == 0 && left > 0 {
			if err := b.checkBegin(f, min(left, 4)); err != nil {
				return nil, err
			}
		}
		return nil, fmt.Errorf("%w: the file ends after %d of the %d bytes of a header", ErrTruncated, left, HeaderSize)
	}
	return b.view(f, offset, HeaderSize, ahead)
}

// stored reads the payload of the chunk at offset together with the header that follows it, and verifies its checksum.
func (b *buffers) stored(f *File, offset int64, h header, l Layout) ([]byte, error) {
	size := int64(h.size)
	payload, err := b.view(f, offset+HeaderSize, size, size+HeaderSize)
	if err != nil {
		return nil, err
	}
	return payload, l.verify(payload, h)
}

// verify checks the checksum of a payload as it is stored.
func (l Layout) verify(payload []byte, h header) error {
	//guard:chunk-checksum
	if sum := l.checksum(payload); sum != h.checksum {
		return fmt.Errorf("%w: the payload of %d bytes has %#08x, its header says %#08x",
			ErrBadChecksum, len(payload), sum, h.checksum)
	}
	return nil
}

// records reads the chunk at offset and yields its records. It returns false when the consumer stopped.
func (b *buffers) records(f *File, offset int64, h header, l Layout, yield func([]byte, error) bool) (bool, error) {
	payload, err := b.stored(f, offset, h, l)
	if err != nil {
		return true, err
	}
	plain, err := b.decompress(payload, h.compression, l, f.limit())
	if err != nil {
		return true, err
	}
	return split(plain, h.records, yield)
}

// detect finds the layout of the file from its first chunk: the layout whose checksum matches.
func (b *buffers) detect(f *File) (Layout, error) {
	if known := Layout(f.layout.Load()); known != 0 {
		return known, nil
	}
	if f.size == 0 {
		return 0, ErrEmpty
	}
	raw, err := b.rawHeader(f, 0, HeaderSize)
	if err != nil {
		return 0, err
	}
	first := [HeaderSize]byte(raw)
	type misfit struct {
		layout Layout
		err    error
	}
	var headers, others []misfit // of the layouts by which this is a header, and by which it is none
	for _, l := range layouts {
		h, err := parseHeader(first[:], l)
		if err != nil {
			others = append(others, misfit{l, err})
			continue
		}
		if err = h.check(f.size-HeaderSize, f.limit()); err == nil {
			_, err = b.stored(f, 0, h, l)
		}
		if err == nil {
			f.layout.Store(uint32(l))
			return l, nil
		}
		headers = append(headers, misfit{l, err})
	}
	switch {
	case len(headers) == 0 && errors.Is(others[0].err, ErrBadMagic):
		return 0, others[0].err // in all
	case len(headers) == 0:
		headers = others
	}
	if headers[len(headers)-1].layout == Fluid && len(headers) > 1 && headers[len(headers)-2].layout == Second {
		headers = headers[:len(headers)-1] // the same words; only the checksum could distinguish the layouts, and it matches neither
	}
	if len(headers) == 1 {
		return 0, headers[0].err
	}
	return 0, fmt.Errorf("no layout fits: the %s: %w; the %s: %w", headers[0].layout, headers[0].err, headers[1].layout, headers[1].err)
}

// expect reads the chunk of ix, header and payload together, and returns its header if it matches ix.
func (b *buffers) expect(f *File, ix Index) (header, error) {
	return b.expectHeader(f, ix, HeaderSize+int64(ix.Size))
}

// expectHeader reads the header of the chunk of ix, and ahead up to want bytes, and returns the header if it matches ix.
func (b *buffers) expectHeader(f *File, ix Index, want int64) (header, error) {
	switch {
	case !ix.Layout.Valid() || ix.Offset < 0:
		return header{}, fmt.Errorf("%w: no chunk has offset %d and %s", ErrMalformed, ix.Offset, ix.Layout)
	case int64(ix.Size) > f.limit():
		return header{}, fmt.Errorf("%w: the index declares a payload of %d bytes, the limit is %d", ErrTooLarge, ix.Size, f.limit())
	case ix.End() > f.size:
		return header{}, fmt.Errorf("%w: the chunk ended at byte %d, the file ends at %d: %w", ErrChanged, ix.End(), f.size, ErrTruncated)
	}
	h, err := b.header(f, ix.Offset, ix.Layout, want)
	if err != nil {
		return header{}, fmt.Errorf("%w: %w", ErrChanged, err)
	}
	found := h.index(ix.Offset, ix.Layout)
	//guard:chunk-checksum-compared
	if ix.Checksum == 0 {
		found.Checksum = 0
	}
	//guard:chunk-header-compared
	if found != ix {
		return header{}, fmt.Errorf("%w: the index says %s, the header says %s", ErrChanged, ix.summary(), found.summary())
	}
	return h, nil
}
