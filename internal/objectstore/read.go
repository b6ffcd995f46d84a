package objectstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"gocloud.dev/blob"
)

var (
	// ErrReplaced is the error of a read of an object that no longer has its stamp.
	ErrReplaced = errors.New("the object was replaced")
	// ErrUnavailable is the error of a store that does not answer, or refuses.
	ErrUnavailable = errors.New("object store unavailable")

	errOtherRange = errors.New("the answer has other bytes")
)

// giveUp is the maximum time without a byte: then a read is not repeated and fails. A variable for tests.
var giveUp = 45 * time.Second

const (
	// giveUpStat is giveUp for a look at an object.
	giveUpStat = 10 * time.Second

	firstPause = 50 * time.Millisecond // between two attempts, doubled up to mostPause
	mostPause  = 2 * time.Second
)

// Info describes one version of an object.
type Info struct {
	Size    int64
	ModTime time.Time
	Stamp   string // ETag, or generation of gs
}

// once returns the context of a request that the SDK does not repeat.
func (b *Bucket) once(ctx context.Context) context.Context {
	if b.driver.once == nil {
		return ctx
	}
	return b.driver.once(ctx)
}

// s3Driver is for s3://.
var s3Driver = driver{
	pin: func(as func(any) bool, stamp string) error {
		var in *s3.GetObjectInput
		var options *[]func(*s3.Options)
		if !as(&in) || !as(&options) {
			return errors.New("no request of S3")
		}
		if stamp != "" {
			//guard:object-read-pinned
			in.IfMatch = aws.String(stamp)
		}
		*options = append(*options, func(o *s3.Options) { o.Retryer = aws.NopRetryer{} })
		return nil
	},
	answered: func(as func(any) bool) (string, string) {
		var out s3.GetObjectOutput
		as(&out)
		return aws.ToString(out.ETag), aws.ToString(out.ContentRange)
	},
}

// Stat returns the current version of an object, and reads its first bytes into p. n is the number of these bytes, less than len(p) only if
// the object is smaller.
func (b *Bucket) Stat(ctx context.Context, key string, p []byte) (info Info, n int, err error) {
	err = b.repeat(ctx, giveUpStat, key, func() (bool, error) {
		info, n, err = b.statOnce(ctx, key, p)
		return false, err
	})
	return info, n, err
}

// statOnce asks once. It does not ask for the size alone: nothing would show that it is wrong.
func (b *Bucket) statOnce(ctx context.Context, key string, p []byte) (info Info, n int, err error) {
	if len(p) == 0 {
		p = make([]byte, 1) // Content-Range has the size, also if Content-Length is wrong
		defer func() { n = 0 }()
	}
	r, err := b.Objects.NewRangeReader(b.once(ctx), key, 0, int64(len(p)), &blob.ReaderOptions{
		BeforeRead: func(as func(any) bool) error { return b.driver.pin(as, "") },
	})
	if statusOf(err) == statusBadRange { // an empty object has no first byte
		a, err := b.Objects.Attributes(ctx, key)
		if err != nil {
			return info, 0, err
		}
		//guard:empty-object-replaced
		if a.Size > 0 {
			return info, 0, fmt.Errorf("%w: it was empty, it has %d bytes", errOtherRange, a.Size)
		}
		return Info{Size: a.Size, ModTime: a.ModTime.UTC(), Stamp: a.ETag}, 0, nil
	}
	if err != nil {
		return info, 0, err
	}
	defer r.Close()
	info = Info{Size: r.Size(), ModTime: r.ModTime().UTC()}
	var contentRange string
	info.Stamp, contentRange = b.driver.answered(r.As)
	p = p[:min(int64(len(p)), info.Size)]
	if err := checkRange(contentRange, 0, len(p), info.Size); err != nil {
		return info, 0, err
	}
	if err := readExactly(r, p, &n); err != nil {
		return info, 0, err
	}
	if info.Stamp == "" {
		return info, 0, fmt.Errorf("%w: expected an ETag, found none", errOtherRange)
	}
	return info, n, nil
}

// ReadRange fills p with the bytes at off of one version of an object, which must have them. After a failure that can be temporary it
// continues with the missing bytes, with pauses of up to 2 s. It fails after 45 s without a byte.
func (b *Bucket) ReadRange(ctx context.Context, key string, v Info, p []byte, off int64) error {
	done := 0
	err := b.repeat(ctx, giveUp, key, func() (bool, error) {
		n := 0
		err := b.readOnce(ctx, key, v, p[done:], off+int64(done), &n)
		done += n
		return n > 0, err
	})
	if errors.Is(err, fs.ErrNotExist) { // gs has no other answer for a version that was replaced
		return fmt.Errorf("%w: version %s does not exist: %w", ErrReplaced, v.Stamp, err)
	}
	return err
}

func (b *Bucket) readOnce(ctx context.Context, key string, v Info, p []byte, off int64, n *int) error {
	if len(p) == 0 {
		return nil
	}
	r, err := b.Objects.NewRangeReader(b.once(ctx), key, off, int64(len(p)), &blob.ReaderOptions{
		BeforeRead: func(as func(any) bool) error { return b.driver.pin(as, v.Stamp) },
	})
	if err != nil {
		return err
	}
	defer r.Close()
	stamp, contentRange := b.driver.answered(r.As)
	//guard:object-stamp-compared
	if stamp != v.Stamp {
		return fmt.Errorf("%w: it was version %s, it is %s", ErrReplaced, v.Stamp, stamp)
	}
	if err := checkRange(contentRange, off, len(p), v.Size); err != nil {
		return err
	}
	return readExactly(r, p, n)
}

// checkRange compares the Content-Range of an answer.
func checkRange(found string, off int64, n int, size int64) error {
	//guard:object-content-range
	if want := fmt.Sprintf("bytes %d-%d/%d", off, off+int64(n)-1, size); found != want {
		return fmt.Errorf("%w: expected %q, found %q", errOtherRange, want, found)
	}
	return nil
}

// readExactly fills p and requires the end of r after it. n is the number of bytes that it read.
func readExactly(r io.Reader, p []byte, n *int) (err error) {
	*n, err = io.ReadFull(r, p)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	//guard:object-range-length
	if err != nil {
		return fmt.Errorf("expected %d bytes, found %d: %w", len(p), *n, err)
	}
	var more [1]byte
	if extra, _ := r.Read(more[:]); extra > 0 {
		*n = 0
		return fmt.Errorf("%w: expected %d bytes, found more", errOtherRange, len(p))
	}
	return nil
}

// repeat calls attempt until it succeeds, fails permanently, or makes no progress for limit. Its error names the object.
func (b *Bucket) repeat(ctx context.Context, limit time.Duration, key string, attempt func() (progress bool, err error)) error {
	pause, since := firstPause, time.Now()
	for {
		progress, err := attempt()
		if err == nil {
			return nil
		}
		if progress {
			pause, since = firstPause, time.Now()
		}
		//guard:object-read-gives-up
		if ctx.Err() != nil || isFinal(err) || time.Since(since)+pause > limit {
			return b.explain(ctx, "read", key, err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
			pause = min(2*pause, mostPause)
		}
	}
}

// explain names the object, the cause and the remedy.
func (b *Bucket) explain(ctx context.Context, do, key string, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, ErrReplaced):
		return fmt.Errorf("%s: %w", b.At(key), err)
	case statusOf(err) == statusOtherVersion:
		return fmt.Errorf("%s: %w", b.At(key), ErrReplaced)
	case IsNotFound(err):
		return &notFoundError{b.At(key)}
	}
	action, err := Explain(err)
	return fmt.Errorf("%w: %s %s: %s: %w", ErrUnavailable, do, b.At(key), action, err)
}
