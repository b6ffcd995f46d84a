package storage

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"sync"

	"gocloud.dev/blob"

	"trainmaster/pserver/checkpoint"
)

const (
	// readAttempts is how often in a row a stream may break without a byte.
	readAttempts = 3

	// readOver is the number of unneeded bytes to read instead of a new request, which takes longer.
	readOver = 1 << 20
)

// object is read as one stream while each read begins near the end of the previous read.
type object struct {
	ctx    context.Context
	bucket *bucket
	name   string
	size   int64

	mu     sync.Mutex
	stream *blob.Reader // nil: none
	at     int64        // of stream
}

// Open implements [checkpoint.Place].
func (b *bucket) Open(ctx context.Context, name string) (checkpoint.Object, error) {
	o := &object{ctx: ctx, bucket: b, name: name}
	if err := o.seekLocked(0); err != nil {
		return nil, b.failed("read", name, err)
	}
	o.size = o.stream.Size()
	return o, nil
}

func (o *object) Size() int64 { return o.size }

func (o *object) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dropLocked()
	return nil
}

func (o *object) dropLocked() {
	if o.stream != nil {
		o.stream.Close() //nolint:errcheck // what was read, was read
		o.stream = nil
	}
}

// ReadAt implements [io.ReaderAt]. A stream that breaks is begun again where it broke.
func (o *object) ReadAt(p []byte, off int64) (n int, err error) {
	if off >= o.size {
		return 0, io.EOF
	}
	asked := len(p)
	p = p[:min(int64(asked), o.size-off)]
	o.mu.Lock()
	defer o.mu.Unlock()
	for broken := 0; n < len(p); {
		got, err := o.readLocked(p[n:], off+int64(n))
		n += got
		if err == nil {
			continue
		}
		if broken++; got > 0 {
			broken = 1
		}
		if err = o.bucket.failed("read", o.name, err); broken == readAttempts || o.ctx.Err() != nil || errors.Is(err, fs.ErrNotExist) {
			return n, err
		}
	}
	if n < asked {
		return n, io.EOF
	}
	return n, nil
}

func (o *object) readLocked(p []byte, off int64) (int, error) {
	if err := o.seekLocked(off); err != nil {
		return 0, err
	}
	n, err := io.ReadFull(o.stream, p)
	o.at += int64(n)
	if err != nil {
		o.dropLocked()
	}
	return n, err
}

func (o *object) seekLocked(off int64) error {
	if o.stream != nil {
		if gap := off - o.at; gap >= 0 && gap <= readOver {
			n, err := io.CopyN(io.Discard, o.stream, gap)
			o.at += n
			if err == nil {
				return nil
			}
		}
		o.dropLocked()
	}
	stream, err := o.bucket.Objects.NewRangeReader(o.ctx, o.name, off, -1, nil)
	if err != nil {
		return err
	}
	o.stream, o.at = stream, off
	return nil
}
