package wire

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// ErrTooLarge says that a message was longer than the bound.
var ErrTooLarge = errors.New("message too large")

// ErrBusy reports that a message was skipped because other large messages are in memory. The stream continues with the
// next message. The text is that of ErrNotStored: nothing was changed, and the request can be repeated.
var ErrBusy = fmt.Errorf("%w: too many large messages at a time: repeat the request", ErrNotStored)

// The bounds of gob messages, in bytes. Most are short; a report of some ten thousand paths,
// and a task of some thousand chunks that is sent back, fit MaxMessage.
const (
	MaxMessage      = 4 << 20
	MaxShortMessage = 64 << 10
)

// Bound ends a gob stream at the first message whose announced length exceeds the limit, before gob allocates memory
// for it. A gob stream is a sequence of messages, each prefixed with its length (encoding/gob, "Encoding Details"). A
// byte below 128 is the value; otherwise its negation is the number of big-endian bytes that follow. A message that
// begins with a negative number describes a type.
//
// gob allocates memory for the announced length of a message. Bound therefore reads a message first, into a buffer that
// grows with the bytes that arrive.
type Bound struct {
	// Limit is the longest message that passes; it may change between messages.
	Limit int
	// Began, if it is not nil, is called for a message with bytes that have not arrived yet,
	// and Ended when they have arrived. Between them Grew, if it is not nil, is called for each n
	// bytes above MaxShortMessage that have arrived, while others are missing. Arrived, if it is
	// not nil, is called for each whole message longer than MaxShortMessage. If Grew or Arrived
	// returns ErrBusy, the message is skipped and the reader gets ErrBusy once; any other error
	// ends the stream.
	Began   func() error
	Grew    func(n int) error
	Ended   func() error
	Arrived func() error
	// Waits, if not nil, is called before the reader waits for a message. Whole is called with the size of the message
	// when it is complete.
	Waits func()
	Whole func(n int)

	r       *bufio.Reader
	head    [9]byte
	message bytes.Buffer // with its length in front, to be passed on
	types   types
	err     error // permanent: gob would continue in the middle of a message
}

// NewBound returns a bounded reader of r, whose messages are short ones.
func NewBound(r *bufio.Reader) *Bound { return &Bound{Limit: MaxShortMessage, r: r, types: newTypes()} }

// next reads one message.
func (b *Bound) next() (err error) {
	head, length, err := b.length()
	if err != nil {
		return err
	}
	//guard:declared-length-limit
	if length > uint64(b.Limit) {
		return fmt.Errorf("%w: %d bytes, at most %d are taken", ErrTooLarge, length, b.Limit)
	}
	b.message.Reset()
	b.message.Write(head)
	began := uint64(b.r.Buffered()) < length && b.Began != nil
	if began {
		if err := b.Began(); err != nil {
			return err
		}
	}
	n, busy, err := b.receive(int64(length))
	if began {
		err = cmp.Or(err, b.Ended())
	}
	if err != nil {
		return fmt.Errorf("a message of %d bytes ended after %d: %w", length, n, unexpected(err))
	}
	if busy {
		return ErrBusy
	}
	if length > MaxShortMessage && b.Arrived != nil {
		if err := b.Arrived(); err != nil {
			return err
		}
	}
	return b.types.take(b.message.Bytes(), len(head))
}

// piece is how much of a message is read before it is counted.
const piece = 16 << 10

// receive reads the rest of a message of length bytes, and returns how many came. If it is busy,
// the message is not kept.
func (b *Bound) receive(length int64) (n int64, busy bool, err error) {
	into := io.Writer(&b.message)
	for n < length {
		m, err := io.CopyN(into, b.r, min(length-n, piece))
		n += m
		if err != nil {
			return n, busy, err
		}
		if busy || n <= MaxShortMessage || n == length || b.Grew == nil {
			continue
		}
		if err := b.Grew(int(m)); errors.Is(err, ErrBusy) {
			b.message = bytes.Buffer{}
			into, busy = io.Discard, true
		} else if err != nil {
			return n, false, err
		}
	}
	return n, busy, nil
}

// Compare reports whether the last value, a struct, fits v, a pointer to a struct: the error
// is gob's, or names a field in required that the sender does not have. gob compares the
// types that the stream describes before it decodes a value, so a zero value is enough.
func (b *Bound) Compare(v any, required ...string) error {
	t := &b.types
	for _, name := range required {
		if !slices.Contains(t.names[t.last], name) {
			return fmt.Errorf("field %s: expected a struct with the fields %s, found %s", name, strings.Join(required, ", "), strings.Join(t.names[t.last], ", "))
		}
	}
	id := gobInt(t.last)
	zero := append([]byte{byte(len(id) + 1)}, id...)
	stream := io.MultiReader(bytes.NewReader(t.described), bytes.NewReader(append(zero, 0)))
	return gob.NewDecoder(stream).Decode(v)
}

// gobInt encodes a positive number as gob does.
func gobInt(n int) []byte {
	u := uint64(n) << 1
	if u < 0x80 {
		return []byte{byte(u)}
	}
	whole := binary.BigEndian.AppendUint64(nil, u)
	whole = bytes.TrimLeft(whole, "\x00")
	return append([]byte{byte(-len(whole))}, whole...)
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
	if b.Waits != nil {
		b.Waits()
	}
	err := b.err
	if err == nil {
		err = b.next()
	}
	if err == nil && b.Whole != nil {
		b.Whole(b.message.Len())
	}
	if err != nil {
		b.message = bytes.Buffer{}
	}
	if !errors.Is(err, ErrBusy) {
		b.err = err
	}
	return err
}
