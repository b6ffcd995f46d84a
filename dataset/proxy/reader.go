package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"syscall"

	"trainmaster/dataset"
	"trainmaster/dataset/tfrecord"
	"trainmaster/internal/grpcserver"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/recordio"
)

const (
	// MaxRecord is the maximum size of a record in bytes: a message has room for one such record.
	MaxRecord = grpcserver.MaxMessage - 16
	// MaxChunk is the maximum size of a RecordIO chunk in bytes, as stored and decompressed.
	MaxChunk = 4 << 20
)

// Reader reads the records of a specification once.
type Reader struct {
	spec  *Spec
	start int64
	at    *run // that is read
}

// Read returns a reader that begins at a record, at most Len.
func (s *Spec) Read(start int64) *Reader { return &Reader{spec: s, start: start} }

// Records yields the records in order. A record is valid until the body of the loop returns. After an error, which is the last
// pair, nothing is read.
func (r *Reader) Records(ctx context.Context) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		//guard:proxy-start-record
		skip := r.start
		for i := r.spec.find(skip); i < len(r.spec.runs); i++ {
			r.at = &r.spec.runs[i]
			more, err := r.run(ctx, max(skip-r.at.first, 0), yield)
			if err != nil {
				yield(nil, err)
				return
			}
			if !more {
				return
			}
		}
	}
}

// Check is nil while the file that is read has its stamp. The records up to here are then of the specified files.
func (r *Reader) Check() error { return r.at.check() }

// run yields the records of the current run, without the first skip of them. It returns false when the consumer stopped.
func (r *Reader) run(ctx context.Context, skip int64, yield func([]byte, error) bool) (more bool, err error) {
	roots, err := dataset.NewRoots(r.spec.roots)
	if err != nil {
		return true, err
	}
	if err := r.at.stat(roots); err != nil {
		return true, err
	}
	file, err := os.OpenFile(r.at.path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return true, recordio.OpenError(r.at.path, err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return true, err
	}
	if err := recordio.CheckRegular(r.at.path, info.Mode()); err != nil {
		return true, err
	}
	n := skip
	records, err := r.at.records(source{ctx, file}, info.Size(), skip)
	if err == nil {
		for record, bad := range records {
			if err = bad; err == nil {
				err = r.at.checkSize(n, record)
			}
			if err != nil {
				break
			}
			if !yield(record, nil) {
				return false, nil
			}
			if n++; n == r.at.count {
				break
			}
		}
	}
	// A replaced file explains any error.
	if changed := r.Check(); changed != nil {
		return true, changed
	}
	if errors.Is(err, recordio.ErrTooLarge) {
		err = fmt.Errorf("%w: %w: write smaller chunks and records", ErrTooLarge, err)
	}
	if err == nil && n < r.at.count {
		err = fmt.Errorf("%s: %w: expected record %d, found the end after %d records", recordio.DisplayName(r.at.path), ErrFewerRecords, r.at.start+r.at.count-1, r.at.start+n)
	}
	return true, err
}

// checkSize refuses a record that fits no message.
func (r *run) checkSize(n int64, record []byte) error {
	if len(record) > MaxRecord {
		return fmt.Errorf("%s: record %d: %w: expected at most %d bytes, found %d: write smaller records",
			recordio.DisplayName(r.path), r.start+n, ErrTooLarge, MaxRecord, len(record))
	}
	return nil
}

// records yields the records of the file from a record of the run on, to the end of the file.
func (r *run) records(from io.ReaderAt, size, skip int64) (iter.Seq2[[]byte, error], error) {
	skip += r.start - r.recordsOffset
	tf := tfrecord.NewFile(from, size, r.path)
	tf.MaxRecordBytes = MaxRecord
	isTF := r.format == pb.FileFormat_FILE_FORMAT_TFRECORD
	if r.format == pb.FileFormat_FILE_FORMAT_UNSPECIFIED {
		var err error
		if isTF, err = tf.Recognize(); err != nil {
			return nil, err
		}
	}
	if isTF {
		return tf.RecordsFrom(r.offset, r.recordsOffset, skip), nil
	}
	file := recordio.NewFile(from, size, r.path)
	file.MaxChunkBytes = MaxChunk
	return file.RecordsFrom(r.offset, skip), nil
}

// source is a file whose reads end with a context.
type source struct {
	ctx  context.Context //nolint:containedctx // io.ReaderAt has none
	file *os.File
}

func (s source) ReadAt(p []byte, offset int64) (int, error) {
	if s.ctx.Err() != nil {
		return 0, context.Cause(s.ctx)
	}
	return s.file.ReadAt(p, offset)
}
