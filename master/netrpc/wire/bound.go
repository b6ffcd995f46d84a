package wire

import (
	"bufio"
	"errors"
	"fmt"
	"io"
)

// ErrTooLarge says that a message was longer than the bound.
var ErrTooLarge = errors.New("message too large")

// MaxMessage bounds one gob message, in bytes: a report of some ten thousand paths fits.
const MaxMessage = 4 << 20

// BoundedReader passes a gob stream through and ends it at the first message that says it
// is longer than limit, before gob takes memory for it. A gob stream is a run of messages,
// each with its length in front (encoding/gob, "Encoding Details": a byte below 128 is the
// value; else its negation is the number of big-endian bytes that follow).
type BoundedReader struct {
	r     *bufio.Reader
	limit uint64
	left  uint64 // of the current message
	head  []byte // of the length in front of it, still to be passed on
	buf   [9]byte
}

// NewBoundedReader returns a reader of r.
func NewBoundedReader(r *bufio.Reader, limit int) *BoundedReader {
	return &BoundedReader{r: r, limit: uint64(limit)}
}

func (b *BoundedReader) next() error {
	first, err := b.r.ReadByte()
	if err != nil {
		return err
	}
	b.buf[0] = first
	n := 0
	length := uint64(first)
	if first >= 0x80 {
		if n = -int(int8(first)); n > 8 {
			return fmt.Errorf("%w: a length of %d bytes", ErrTooLarge, n)
		}
		if _, err := io.ReadFull(b.r, b.buf[1:1+n]); err != nil {
			return unexpected(err)
		}
		length = 0
		for _, c := range b.buf[1 : 1+n] {
			length = length<<8 | uint64(c)
		}
	}
	if length > b.limit {
		return fmt.Errorf("%w: %d bytes, at most %d are taken", ErrTooLarge, length, b.limit)
	}
	b.head, b.left = b.buf[:1+n], length
	return nil
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Read implements io.Reader.
func (b *BoundedReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if len(b.head) == 0 && b.left == 0 {
		if err := b.next(); err != nil {
			return 0, err
		}
	}
	if len(b.head) > 0 {
		n := copy(p, b.head)
		b.head = b.head[n:]
		return n, nil
	}
	if uint64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.r.Read(p)
	b.left -= uint64(n)
	if err != nil && b.left > 0 {
		err = unexpected(err)
	}
	return n, err
}

// ReadByte implements io.ByteReader, so that gob does not buffer once more.
func (b *BoundedReader) ReadByte() (byte, error) {
	var p [1]byte
	for {
		n, err := b.Read(p[:])
		if n == 1 {
			return p[0], nil
		}
		if err != nil {
			return 0, err
		}
	}
}
