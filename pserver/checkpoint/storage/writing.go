package storage

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"io/fs"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"trainmaster/pserver/checkpoint"
)

// A large object is uploaded in several parts at a time. Each part in transit takes some 50 MiB, see the size of parts.
const (
	leastPart       = 8 << 20
	mostParts       = 9000 // stores take 10,000
	partsOnTheirWay = 2
)

// upload is an object that is being written.
type upload struct {
	ctx    context.Context
	cancel context.CancelFunc
	bucket *bucket
	name   string
	kind   checkpoint.Kind
	writer *blob.Writer
	sum    hash.Hash
	closed bool
}

// Create implements [checkpoint.Place].
func (b *bucket) Create(ctx context.Context, name string, size int64, kind checkpoint.Kind) (checkpoint.Pending, error) {
	u := &upload{bucket: b, name: name, kind: kind, sum: sha256.New()}
	u.ctx, u.cancel = context.WithCancel(ctx)
	var err error
	//guard:final-object-not-overwritten
	if u.writer, err = b.Objects.NewWriter(u.ctx, name, &blob.WriterOptions{
		BufferSize: int(max(leastPart, size/mostParts)), MaxConcurrency: partsOnTheirWay,
		ContentType: "application/octet-stream", IfNotExist: kind == checkpoint.Final,
	}); err != nil {
		u.cancel()
		return nil, b.failed("write", name, err)
	}
	return u, nil
}

func (u *upload) Write(p []byte) (int, error) {
	u.sum.Write(p)
	n, err := u.writer.Write(p)
	if err != nil {
		err = u.bucket.failed("write", u.name, err)
	}
	return n, err
}

// Publish ends the upload. Then the object exists.
func (u *upload) Publish() error {
	u.closed = true
	defer u.cancel()
	err := u.writer.Close()
	switch {
	case err == nil:
		return nil
	case u.kind == checkpoint.Final && gcerrors.Code(err) == gcerrors.FailedPrecondition:
		return u.compare()
	}
	return u.bucket.failed("write", u.name, err)
}

// compare checks the object with that name: a request whose answer was lost may have written it.
func (u *upload) compare() error {
	there, err := u.bucket.Open(u.ctx, u.name)
	if err != nil {
		return err
	}
	defer there.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(there, 0, there.Size())); err != nil {
		return err
	}
	if !bytes.Equal(sum.Sum(nil), u.sum.Sum(nil)) {
		return fmt.Errorf("write %s: another process has written it: %w", u.bucket.URL(u.name), fs.ErrExist)
	}
	return nil
}

// Close aborts an upload that was not published, and removes its parts.
func (u *upload) Close() error {
	if !u.closed {
		u.closed = true
		u.cancel()
		u.writer.Close() //nolint:errcheck // the error is the cancellation
	}
	return nil
}
