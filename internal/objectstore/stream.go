package objectstore

import (
	"context"
	"io"
	"sync"

	"gocloud.dev/blob"
)

const (
	// streamAttempts is how often in a row a stream may break without a byte.
	streamAttempts = 3

	// readOver is the number of unneeded bytes to read instead of a new request, which takes longer.
	readOver = 1 << 20
)

// Stream reads an object as one stream while each read begins near the end of the previous read. The object must not be replaced. Use
// [File] for objects that can be.
type Stream struct {
	ctx    context.Context //nolint:containedctx // io.ReaderAt has none
	bucket *Bucket
	key    string
	size   int64

	mu     sync.Mutex
	stream *blob.Reader // nil: none
	at     int64        // of stream
}

// OpenStream opens an object. ctx must not end before the reading does.
func (b *Bucket) OpenStream(ctx context.Context, key string) (*Stream, error) {
	s := &Stream{ctx: ctx, bucket: b, key: key}
	if err := s.seekLocked(0); err != nil {
		return nil, err
	}
	s.size = s.stream.Size()
	return s, nil
}

// Size is the number of bytes of the object.
func (s *Stream) Size() int64 { return s.size }

// Close ends the request.
func (s *Stream) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLocked()
	return nil
}

func (s *Stream) dropLocked() {
	if s.stream != nil {
		s.stream.Close() //nolint:errcheck // what was read, was read
		s.stream = nil
	}
}

// ReadAt implements [io.ReaderAt]. A stream that breaks is begun again where it broke.
func (s *Stream) ReadAt(p []byte, off int64) (n int, err error) {
	if off >= s.size {
		return 0, io.EOF
	}
	asked := len(p)
	p = p[:min(int64(asked), s.size-off)]
	s.mu.Lock()
	defer s.mu.Unlock()
	for broken := 0; n < len(p); {
		got, err := s.readLocked(p[n:], off+int64(n))
		n += got
		if err == nil {
			continue
		}
		if broken++; got > 0 {
			broken = 1
		}
		if broken == streamAttempts || s.ctx.Err() != nil || IsNotFound(err) {
			return n, err
		}
	}
	if n < asked {
		return n, io.EOF
	}
	return n, nil
}

func (s *Stream) readLocked(p []byte, off int64) (int, error) {
	if err := s.seekLocked(off); err != nil {
		return 0, err
	}
	n, err := io.ReadFull(s.stream, p)
	s.at += int64(n)
	if err == io.EOF { //nolint:errorlint // of a read that began before the end of the object
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		s.dropLocked()
	}
	return n, err
}

func (s *Stream) seekLocked(off int64) error {
	if s.stream != nil {
		if gap := off - s.at; gap >= 0 && gap <= readOver {
			n, err := io.CopyN(io.Discard, s.stream, gap)
			s.at += n
			if err == nil {
				return nil
			}
		}
		s.dropLocked()
	}
	stream, err := s.bucket.Objects.NewRangeReader(s.ctx, s.key, off, -1, nil)
	if err != nil {
		return err
	}
	s.stream, s.at = stream, off
	return nil
}
