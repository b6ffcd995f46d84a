package storage

import (
	"context"
	"io"

	"trainmaster/internal/objectstore"
	"trainmaster/pserver/checkpoint"
)

// object is an open object whose errors name it.
type object struct {
	*objectstore.Stream
	bucket *bucket
	name   string
}

// Open implements [checkpoint.Place].
func (b *bucket) Open(ctx context.Context, name string) (checkpoint.Object, error) {
	s, err := b.OpenStream(ctx, name)
	if err != nil {
		return nil, b.failed("read", name, err)
	}
	return &object{s, b, name}, nil
}

// ReadAt implements [io.ReaderAt].
func (o *object) ReadAt(p []byte, off int64) (int, error) {
	n, err := o.Stream.ReadAt(p, off)
	if err != nil && err != io.EOF { //nolint:errorlint // a connection that was cut is one too, wrapped
		err = o.bucket.failed("read", o.name, err)
	}
	return n, err
}
