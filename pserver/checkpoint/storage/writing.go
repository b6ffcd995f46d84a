package storage

import (
	"bytes"
	"cmp"
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

// upload is an object that is being written. One goroutine sends what the pipe has: only Bucket.Upload can refuse in all drivers.
type upload struct {
	ctx    context.Context
	cancel context.CancelFunc
	bucket *bucket
	name   string
	kind   checkpoint.Kind
	pipe   *io.PipeWriter
	sent   chan error // the result of the upload
	sum    hash.Hash
	closed bool
}

// Create implements [checkpoint.Place].
func (b *bucket) Create(ctx context.Context, name string, size int64, kind checkpoint.Kind) (checkpoint.Pending, error) {
	u := &upload{bucket: b, name: name, kind: kind, sent: make(chan error, 1), sum: sha256.New()}
	u.ctx, u.cancel = context.WithCancel(ctx)
	//guard:final-object-not-overwritten
	options := &blob.WriterOptions{
		BufferSize: int(max(leastPart, size/mostParts)), MaxConcurrency: partsOnTheirWay,
		ContentType: "application/octet-stream", IfNotExist: kind == checkpoint.Final,
	}
	var from *io.PipeReader
	from, u.pipe = io.Pipe()
	go func() {
		err := b.Objects.Upload(u.ctx, name, from, options)
		from.CloseWithError(cmp.Or(err, io.ErrClosedPipe)) //nolint:errcheck // it has none
		u.sent <- err
	}()
	return u, nil
}

func (u *upload) Write(p []byte) (int, error) {
	u.sum.Write(p)
	n, err := u.pipe.Write(p)
	if err != nil {
		err = u.bucket.failed("write", u.name, err)
	}
	return n, err
}

// Publish ends the upload. Then the object exists.
func (u *upload) Publish() error {
	u.closed = true
	defer u.cancel()
	u.pipe.Close() //nolint:errcheck // it has none
	err := <-u.sent
	switch {
	case err == nil:
		return nil
	case u.kind == checkpoint.Final && gcerrors.Code(err) == gcerrors.FailedPrecondition:
		//guard:refused-create-compared
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
		u.pipe.CloseWithError(context.Canceled) //nolint:errcheck // it has none
		<-u.sent                                //nolint:errcheck // the error is the cancellation
	}
	return nil
}
