package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"

	"trainmaster/dataset"
	"trainmaster/dataset/parquet"
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
	at    *run      // that is read
	file  *openFile // of the current run, or nil
}

// Read returns a reader that begins at a record, at most Len.
func (s *Spec) Read(start int64) *Reader { return &Reader{spec: s, start: start} }

// Records yields the records in order. A record is valid until the body of the loop returns. After an error, which is the last
// pair, nothing is read.
func (r *Reader) Records(ctx context.Context) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		defer r.close()
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
	if err := r.open(ctx); err != nil {
		return true, err
	}
	n := skip
	more, err = r.from(&n, yield)
	//guard:proxy-damaged-cache-read-again
	if err != nil && r.file.object.Reread(err) {
		if err = r.file.recognize(ctx); err == nil {
			more, err = r.from(&n, yield)
		}
	}
	if !more {
		return false, nil
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

// from yields the records of the current run from its record n on, and counts n up.
func (r *Reader) from(n *int64, yield func([]byte, error) bool) (more bool, err error) {
	r.file.expect(r.at)
	for record, err := range r.file.records(r.at, *n) {
		if err == nil {
			err = r.at.checkSize(*n, record)
		}
		if err != nil {
			return true, err
		}
		if !yield(record, nil) {
			return false, nil
		}
		if *n++; *n == r.at.count {
			break
		}
	}
	return true, nil
}

// open opens the file of the current run, unless the previous run has opened it: the layout of a file is read once.
func (r *Reader) open(ctx context.Context) error {
	if r.file != nil && r.file.isOf(r.at) {
		return r.Check()
	}
	r.close()
	roots, err := dataset.NewRoots(r.spec.roots)
	if err != nil {
		return err
	}
	if err := r.at.stat(ctx, r.spec.stores, roots); err != nil {
		return err
	}
	r.file, err = openRun(ctx, r.spec.stores, r.at)
	return err
}

func (r *Reader) close() {
	if r.file != nil {
		r.file.Close()
		r.file = nil
	}
}

// checkSize refuses a record that fits no message.
func (r *run) checkSize(n int64, record []byte) error {
	if len(record) > MaxRecord {
		return fmt.Errorf("%s: record %d: %w: expected at most %d bytes, found %d: write smaller records",
			recordio.DisplayName(r.path), r.start+n, ErrTooLarge, MaxRecord, len(record))
	}
	return nil
}

// openFile is an open file in one of the formats; the field of the other format is nil.
type openFile struct {
	file     file
	size     int64
	object   *dataset.Object // file, if it is in an object store
	path     string
	format   pb.FileFormat // of the specification
	tfRecord *tfrecord.File
	recordIO *recordio.File
}

type file interface {
	io.ReaderAt
	io.Closer
}

// objectWindow is the number of bytes that a reader reads ahead in an object, in bytes.
const objectWindow = 4 << 20

// openRun opens the file of a run: a regular file, or an object. Its reads end with ctx.
func openRun(ctx context.Context, stores *dataset.Stores, r *run) (*openFile, error) {
	f := &openFile{path: r.path, format: r.format}
	if dataset.IsURL(r.path) {
		object, err := cmp.Or(stores, dataset.DefaultStores).Open(ctx, r.path, r.stamp, objectWindow)
		if err != nil {
			return nil, err
		}
		f.file, f.object, f.size = object, object, object.Size()
	} else {
		local, size, err := recordio.OpenRegular(r.path)
		if err != nil {
			return nil, err
		}
		f.file, f.size = local, size
	}
	if err := f.recognize(ctx); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// isOf reports whether the records of a run are in the open file.
func (f *openFile) isOf(r *run) bool {
	if f.path != r.path || f.format != r.format {
		return false
	}
	//guard:proxy-second-run-stamp
	return f.object == nil || r.stamp == (dataset.Stamp{}) || r.stamp.Compare(r.path, f.object.Stamp()) == nil
}

// Close closes the file.
func (f *openFile) Close() error { return f.file.Close() }

// expect announces the bytes of a run to an object.
func (f *openFile) expect(r *run) {
	if f.object == nil {
		return
	}
	length := r.length
	if length == 0 {
		length = f.size - r.offset
	}
	f.object.Expect(r.offset, length)
}

// recognize sets the format, by the first bytes of the file if it is not specified.
func (f *openFile) recognize(ctx context.Context) error {
	from := source{ctx, f.file}
	t := tfrecord.NewFile(from, f.size, f.path)
	t.MaxRecordBytes = MaxRecord
	isTF := f.format == pb.FileFormat_FILE_FORMAT_TFRECORD
	if f.format == pb.FileFormat_FILE_FORMAT_UNSPECIFIED {
		var err error
		if isTF, err = t.Recognize(); err != nil {
			return err
		}
	}
	if isTF {
		f.tfRecord = t
		return nil
	}
	if f.format == pb.FileFormat_FILE_FORMAT_UNSPECIFIED {
		if is, err := parquet.NewFile(from, f.size, f.path).Recognize(); err != nil || is {
			return cmp.Or(err, fmt.Errorf("%s: %w: read it with a Parquet library", recordio.DisplayName(f.path), parquet.ErrRows))
		}
	}
	f.recordIO = recordio.NewFile(from, f.size, f.path)
	f.recordIO.MaxChunkBytes = MaxChunk
	return nil
}

// records yields the records from a record of the run on, to the end of the file.
func (f *openFile) records(r *run, skip int64) iter.Seq2[[]byte, error] {
	skip += r.start - r.recordsOffset
	if f.tfRecord != nil {
		return f.tfRecord.RecordsFrom(r.offset, r.recordsOffset, skip)
	}
	return f.recordIO.RecordsFrom(r.offset, skip)
}

// source is a file whose reads end with a context.
type source struct {
	ctx  context.Context //nolint:containedctx // io.ReaderAt has none
	file file
}

func (s source) ReadAt(p []byte, offset int64) (int, error) {
	if s.ctx.Err() != nil {
		return 0, context.Cause(s.ctx)
	}
	return s.file.ReadAt(p, offset)
}
