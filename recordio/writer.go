package recordio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
)

// DefaultChunkBytes is the size of a chunk if the options set no size.
const DefaultChunkBytes = 1 << 20

// WriterOptions sets the size and the encoding of chunks. The zero value means uncompressed chunks of DefaultChunkBytes
// in the first layout.
type WriterOptions struct {
	Compression Compression

	// ChunkBytes ends a chunk before its plain payload, lengths included, grows past it; a record that is larger gets a
	// chunk of its own. Zero means DefaultChunkBytes, or no limit when RecordsPerChunk is set.
	ChunkBytes int
	// RecordsPerChunk ends a chunk at that many records. Zero means no limit.
	RecordsPerChunk int
	// MaxChunkBytes refuses records that readers with the same limit would refuse. Zero means DefaultMaxChunkBytes.
	MaxChunkBytes int64

	Layout Layout // zero means First
}

// Writer writes a RecordIO file: one Write of the underlying writer for each chunk. It is for one goroutine.
type Writer struct {
	out     io.Writer
	options WriterOptions
	err     error // of an earlier write; the file ends in a torn chunk, so that nothing may follow

	chunk   []byte // room for a header, then the plain payload
	records int
	stored  []byte // room for a header, then the compressed payload
	scratch []byte
	gzip    *gzip.Writer
}

// NewWriter writes to w, which the caller closes after the Writer. Options that make no sense are reported by the first
// Write, Flush or Close.
func NewWriter(w io.Writer, options WriterOptions) *Writer {
	if options.MaxChunkBytes == 0 {
		options.MaxChunkBytes = DefaultMaxChunkBytes
	}
	if options.ChunkBytes == 0 {
		options.ChunkBytes = int(options.MaxChunkBytes)
		if options.RecordsPerChunk == 0 {
			options.ChunkBytes = int(min(DefaultChunkBytes, options.MaxChunkBytes))
		}
	}
	if options.Layout == 0 {
		options.Layout = First
	}
	return &Writer{out: w, options: options, err: options.validate(), chunk: make([]byte, HeaderSize)}
}

func (o WriterOptions) validate() error {
	switch {
	case !o.Compression.valid():
		return fmt.Errorf("writer options: unknown %s", o.Compression)
	case !o.Layout.Valid():
		return fmt.Errorf("writer options: unknown %s", o.Layout)
	case o.MaxChunkBytes < lengthSize || o.MaxChunkBytes > math.MaxUint32:
		return fmt.Errorf("writer options: MaxChunkBytes is %d, expected %d to %d", o.MaxChunkBytes, lengthSize, uint32(math.MaxUint32))
	case o.ChunkBytes < 0 || int64(o.ChunkBytes) > o.MaxChunkBytes:
		return fmt.Errorf("writer options: ChunkBytes is %d, expected 1 to %d", o.ChunkBytes, o.MaxChunkBytes)
	case o.RecordsPerChunk < 0:
		return fmt.Errorf("writer options: RecordsPerChunk is %d, expected 0 or more", o.RecordsPerChunk)
	}
	return nil
}

// Write adds one record, of any length from zero, and writes the chunk that it completes. A record that is refused with
// ErrTooLarge leaves the Writer usable; any other error is final.
func (w *Writer) Write(record []byte) error {
	if w.err != nil {
		return w.err
	}
	size := int64(lengthSize + len(record))
	if size > w.options.MaxChunkBytes {
		return fmt.Errorf("%w: a record of %d bytes, a chunk holds at most %d and its length", ErrTooLarge,
			len(record), w.options.MaxChunkBytes-lengthSize)
	}
	//guard:chunk-size-limit
	if w.payloadSize()+size > int64(w.options.ChunkBytes) {
		if err := w.Flush(); err != nil {
			return err
		}
	}
	w.chunk = binary.LittleEndian.AppendUint32(w.chunk, uint32(len(record)))
	w.chunk = append(w.chunk, record...)
	w.records++
	if w.payloadSize() >= int64(w.options.ChunkBytes) || w.records == w.options.RecordsPerChunk {
		return w.Flush()
	}
	return nil
}

func (w *Writer) payloadSize() int64 { return int64(len(w.chunk) - HeaderSize) }

// Flush ends the chunk that was begun, if there is one, and writes it.
func (w *Writer) Flush() error {
	if w.err != nil || w.records == 0 {
		return w.err
	}
	chunk, err := w.compress()
	if err == nil {
		size := len(chunk) - HeaderSize
		if int64(size) > w.options.MaxChunkBytes {
			err = fmt.Errorf("%w: a chunk of %d bytes grew to %d by compression, the limit is %d", ErrTooLarge,
				w.payloadSize(), size, w.options.MaxChunkBytes)
		} else {
			appendHeader(chunk[:0], w.options.Layout, header{
				records:     uint32(w.records),
				size:        uint32(size),
				checksum:    w.options.Layout.checksum(chunk[HeaderSize:]),
				compression: w.options.Compression,
			})
			_, err = w.out.Write(chunk)
		}
	}
	w.err = err
	w.chunk, w.records = w.chunk[:HeaderSize], 0
	return err
}

// compress returns the chunk as it is stored, with room for the header before it.
func (w *Writer) compress() ([]byte, error) {
	plain := w.chunk[HeaderSize:]
	stored := append(w.stored[:0], make([]byte, HeaderSize)...)
	switch {
	case w.options.Compression == None:
		return w.chunk, nil
	case w.options.Compression == Gzip:
		sink := sink{stored}
		if w.gzip == nil {
			w.gzip = gzip.NewWriter(&sink)
		} else {
			w.gzip.Reset(&sink)
		}
		if _, err := w.gzip.Write(plain); err != nil {
			return nil, fmt.Errorf("compress a chunk: %w", err)
		}
		if err := w.gzip.Close(); err != nil {
			return nil, fmt.Errorf("compress a chunk: %w", err)
		}
		stored = sink.data
	case w.options.Layout == Second:
		w.scratch = s2.EncodeSnappy(w.scratch[:cap(w.scratch)], plain)
		stored = append(stored, w.scratch...)
	default:
		stored, w.scratch = appendFrames(stored, plain, w.scratch)
	}
	w.stored = stored
	return stored, nil
}

// sink appends what is written to it.
type sink struct{ data []byte }

func (s *sink) Write(p []byte) (int, error) {
	s.data = append(s.data, p...)
	return len(p), nil
}

// Close writes the remaining records and refuses further records. It does not close the underlying writer. A second Close
// returns the same error.
func (w *Writer) Close() error {
	if errors.Is(w.err, ErrClosed) {
		return nil
	}
	err := w.Flush()
	if err == nil {
		w.err = ErrClosed
	}
	return err
}
