package recordio

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
)

// decompressor turns stored payloads into records, in memory that it reuses.
type decompressor struct {
	plain  []byte
	source bytes.Reader
	gzip   *gzip.Reader
}

// decompress returns the plain form of a stored payload; it may be the argument itself, and is valid until the next
// call. It takes at most limit bytes, and only as far as the payload vouches for them: snappy says beforehand how long
// its output is, and gzip is followed as it grows.
func (d *decompressor) decompress(stored []byte, c Compression, l Layout, limit int64) ([]byte, error) {
	switch {
	case c == None || len(stored) == 0:
		return stored, nil
	case c == Gzip:
		return d.gunzip(stored, limit)
	case l == Second:
		return d.unsnapBlock(stored, limit)
	default:
		return d.unsnapStream(stored, limit)
	}
}

// room makes d.plain size bytes long, with any content.
func (d *decompressor) room(size int) []byte {
	if cap(d.plain) < size {
		d.plain = make([]byte, size)
	}
	d.plain = d.plain[:size]
	return d.plain
}

func (d *decompressor) gunzip(stored []byte, limit int64) ([]byte, error) {
	d.source.Reset(stored)
	var err error
	if d.gzip == nil {
		d.gzip, err = gzip.NewReader(&d.source)
	} else {
		err = d.gzip.Reset(&d.source)
	}
	if err != nil {
		return nil, notGzip(err)
	}
	const guess = 4 // a common ratio; a wrong one costs a copy
	d.room(int(min(guess*int64(len(stored)), limit)))
	plain := d.plain[:cap(d.plain)]
	n := 0
	for {
		if n == len(plain) {
			// One byte beyond the limit is enough to see that it was passed.
			longer := make([]byte, min(2*int64(n)+1, limit+1))
			copy(longer, plain)
			plain, d.plain = longer, longer
		}
		read, err := d.gzip.Read(plain[n:])
		n += read
		switch {
		case int64(n) > limit:
			return nil, pastLimit(limit)
		case errors.Is(err, io.EOF):
			return plain[:n], nil
		case err != nil:
			return nil, notGzip(err)
		}
	}
}

func notGzip(err error) error {
	return fmt.Errorf("%w: the payload is no gzip stream: %v", ErrMalformed, err)
}

func pastLimit(limit int64) error {
	return fmt.Errorf("%w: the payload decompresses to more than the limit of %d bytes", ErrTooLarge, limit)
}

// split yields the n records that payload must consist of. It returns false when the consumer stopped. An error comes
// after the records before it; since the checksum holds, it means that the file's writer was broken.
func split(payload []byte, n uint32, yield func([]byte, error) bool) (more bool, err error) {
	rest := payload
	for range n {
		at := len(payload) - len(rest)
		if len(rest) < lengthSize {
			return true, fmt.Errorf("%w: the payload of %d bytes ends inside the length of a record, at %d",
				ErrMalformed, len(payload), at)
		}
		size := binary.LittleEndian.Uint32(rest)
		if uint64(size) > uint64(len(rest)-lengthSize) {
			return true, fmt.Errorf("%w: the payload of %d bytes ends inside a record of %d bytes, at %d",
				ErrMalformed, len(payload), size, at)
		}
		end := lengthSize + int(size)
		if !yield(rest[lengthSize:end:end], nil) {
			return false, nil
		}
		rest = rest[end:]
	}
	if len(rest) > 0 {
		return true, fmt.Errorf("%w: %d bytes follow the last of its %d records", ErrMalformed, len(rest), n)
	}
	return true, nil
}
