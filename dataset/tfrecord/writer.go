package tfrecord

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"

	"trainmaster/recordio"
)

// Writer writes a TFRecord file. It is for one goroutine.
type Writer struct {
	out        *bufio.Writer
	compressor io.WriteCloser // below out; nil: none
	frame      []byte
	err        error // of an earlier write; the file can end inside a record, so nothing may follow
}

// NewWriter writes to w, which the caller closes after the Writer.
func NewWriter(w io.Writer, c Compression) *Writer {
	result := &Writer{frame: make([]byte, 0, headerSize)}
	switch c {
	case None:
	case Gzip:
		result.compressor = gzip.NewWriter(w)
	case Zlib:
		result.compressor = zlib.NewWriter(w)
	default:
		result.err = fmt.Errorf("writer options: expected compression none, gzip or zlib, found %s", c)
	}
	if result.compressor != nil {
		w = result.compressor
	}
	result.out = bufio.NewWriterSize(w, 64<<10)
	return result
}

// Write adds one record, of any length from zero. A record of more than DefaultMaxRecordBytes is refused with recordio.ErrTooLarge,
// and the Writer stays usable; any other error is final.
func (w *Writer) Write(record []byte) error {
	if w.err != nil {
		return w.err
	}
	if len(record) > DefaultMaxRecordBytes {
		return fmt.Errorf("%w: expected a record of at most %d bytes, found %d: write smaller records", recordio.ErrTooLarge, DefaultMaxRecordBytes, len(record))
	}
	w.frame = appendHeader(w.frame[:0], uint64(len(record)))
	w.write(w.frame)
	w.write(record)
	w.frame = binary.LittleEndian.AppendUint32(w.frame[:0], maskedCRC(record))
	w.write(w.frame)
	return w.err
}

func (w *Writer) write(b []byte) {
	if w.err == nil {
		_, w.err = w.out.Write(b)
	}
}

// Close writes what is buffered and refuses further records. It does not close the underlying writer. A second Close returns the
// same error.
func (w *Writer) Close() error {
	if errors.Is(w.err, recordio.ErrClosed) {
		return nil
	}
	if w.err == nil {
		w.err = w.out.Flush()
	}
	if w.err == nil && w.compressor != nil {
		w.err = w.compressor.Close()
	}
	if w.err != nil {
		return w.err
	}
	w.err = recordio.ErrClosed
	return nil
}
