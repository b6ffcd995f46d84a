package wire

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// ErrTooLarge says that a message was longer than the bound.
var ErrTooLarge = errors.New("message too large")

// The bounds of gob messages, in bytes. Most are short; a report of some ten thousand paths,
// and a task of some thousand chunks that is sent back, fit MaxMessage.
const (
	MaxMessage      = 4 << 20
	MaxShortMessage = 64 << 10
)

// Bound ends a gob stream at the first message that says it is longer than it may be, before
// gob takes memory for it. A gob stream is a run of messages, each with its length in front
// (encoding/gob, "Encoding Details": a byte below 128 is the value; else its negation is the
// number of big-endian bytes that follow). A message that begins with a negative number
// describes a type.
//
// gob takes memory for a whole message at once, on the word of its length. So a message is
// read here first, into a buffer that grows with what really arrives.
type Bound struct {
	// Limit is the longest message that passes; it may change between messages.
	Limit int
	// Began, when it is not nil, is told of a message whose bytes are not all there yet;
	// Ended, once they are.
	Began func(length int) error
	Ended func() error

	r       *bufio.Reader
	head    [9]byte
	message bytes.Buffer // with its length in front, to be passed on
	types   types
	err     error // for good: gob would go on in the middle of a message
}

// NewBound returns a bounded reader of r, whose messages are short ones.
func NewBound(r *bufio.Reader) *Bound { return &Bound{Limit: MaxShortMessage, r: r, types: newTypes()} }

// next reads one message.
func (b *Bound) next() (err error) {
	head, length, err := b.length()
	if err != nil {
		return err
	}
	if length > uint64(b.Limit) {
		return fmt.Errorf("%w: %d bytes, at most %d are taken", ErrTooLarge, length, b.Limit)
	}
	if uint64(b.r.Buffered()) < length && b.Began != nil {
		if err := b.Began(int(length)); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, b.Ended()) }()
	}
	b.message.Reset()
	b.message.Write(head)
	if n, err := io.CopyN(&b.message, b.r, int64(length)); err != nil {
		return fmt.Errorf("a message of %d bytes ended after %d: %w", length, n, unexpected(err))
	}
	return b.types.take(b.message.Bytes()[len(head):])
}

// length reads the length in front of a message.
func (b *Bound) length() (head []byte, length uint64, err error) {
	first, err := b.r.ReadByte()
	b.head[0] = first
	if err != nil || first < 0x80 {
		return b.head[:1], uint64(first), err
	}
	n := -int(int8(first))
	if n > 8 {
		return nil, 0, fmt.Errorf("%w: a length of %d bytes", ErrTooLarge, n)
	}
	rest := b.head[1 : 1+n]
	if _, err := io.ReadFull(b.r, rest); err != nil {
		return nil, 0, unexpected(err)
	}
	for _, c := range rest {
		length = length<<8 | uint64(c)
	}
	return b.head[:1+n], length, nil
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Read implements io.Reader.
func (b *Bound) Read(p []byte) (int, error) {
	if err := b.fill(); err != nil || len(p) == 0 {
		return 0, err
	}
	return b.message.Read(p)
}

// ReadByte implements io.ByteReader, so that gob does not buffer once more.
func (b *Bound) ReadByte() (byte, error) {
	if err := b.fill(); err != nil {
		return 0, err
	}
	return b.message.ReadByte()
}

// fill makes sure that there is something to pass on.
func (b *Bound) fill() error {
	if b.message.Len() > 0 {
		return nil
	}
	if b.message.Cap() > MaxShortMessage {
		b.message = bytes.Buffer{} // large ones are rare
	}
	if b.err == nil {
		b.err = b.next()
	}
	if b.err != nil {
		b.message.Reset()
	}
	return b.err
}
