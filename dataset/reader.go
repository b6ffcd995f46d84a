package dataset

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"trainmaster/dataset/parquet"
	"trainmaster/dataset/tfrecord"
	"trainmaster/recordio"
)

// Reader reads a file in its format. Exactly one of RecordIO, TFRecord and Parquet is not nil.
type Reader struct {
	RecordIO *recordio.File
	TFRecord *tfrecord.File
	Parquet  *parquet.File

	file   readerAt
	object *Object // file, if it is in an object store
}

// Open opens a RecordIO, TFRecord or Parquet file. The content decides: a Parquet file begins with PAR1, and the first record of a
// TFRecord file has a checksum of its length. A file that has no such beginning is treated as TFRecord if its name has ".tfrecord", so that errors are about this format.
func Open(path string) (*Reader, error) { return DefaultStores.OpenReader(context.Background(), path) }

// OpenReader is Open for the Stores. Reads of an object end with ctx.
func (s *Stores) OpenReader(ctx context.Context, path string) (*Reader, error) {
	return s.openVersion(ctx, fileVersion{path: path})
}

// openVersion is OpenReader. If the stamp is not zero, an object must have it.
func (s *Stores) openVersion(ctx context.Context, v fileVersion) (*Reader, error) {
	path := v.path
	file, object, size, err := s.open(ctx, path, v.stamp)
	if err != nil {
		return nil, err
	}
	t, r := tfrecord.NewFile(file, size, path), recordio.NewFile(file, size, path)
	recognized, err := t.Recognize()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	if !recognized {
		p := parquet.NewFile(file, size, path)
		if is, err := p.Recognize(); is || err != nil {
			if err != nil {
				return nil, errors.Join(err, file.Close())
			}
			return &Reader{Parquet: p, file: file, object: object}, nil
		}
	}
	if !recognized && strings.Contains(filepath.Base(path), ".tfrecord") {
		_, err := r.Layout()
		recognized = err != nil
	}
	if recognized {
		return &Reader{TFRecord: t, file: file, object: object}, nil
	}
	return &Reader{RecordIO: r, file: file, object: object}, nil
}

// OpenAs opens the file of a chunk of an index, in the format of that chunk. An object in a store must have the stamp, unless it is zero.
func OpenAs(path string, l recordio.Layout, stamp Stamp) (*Reader, error) {
	return DefaultStores.OpenReaderAs(context.Background(), path, l, stamp)
}

// OpenReaderAs is OpenAs for the Stores. Reads of an object end with ctx.
func (s *Stores) OpenReaderAs(ctx context.Context, path string, l recordio.Layout, stamp Stamp) (*Reader, error) {
	//guard:range-is-not-opened
	if l == recordio.Range {
		return nil, fmt.Errorf("%s: %w: expected the reader of the trainer to resolve its record numbers", recordio.DisplayName(path), ErrNoFile)
	}
	file, object, size, err := s.open(ctx, path, stamp)
	if err != nil {
		return nil, err
	}
	//guard:chunk-read-in-its-format
	if l == recordio.TFRecord {
		return &Reader{TFRecord: tfrecord.NewFile(file, size, path), file: file, object: object}, nil
	}
	if l == recordio.Parquet {
		return &Reader{Parquet: parquet.NewFile(file, size, path), file: file, object: object}, nil
	}
	return &Reader{RecordIO: recordio.NewFile(file, size, path), file: file, object: object}, nil
}

// Close closes the file.
func (r *Reader) Close() error { return r.file.Close() }

// Size is the number of bytes of the file when it was opened.
func (r *Reader) Size() int64 {
	if r.TFRecord != nil {
		return r.TFRecord.Size()
	}
	if r.Parquet != nil {
		return r.Parquet.Size()
	}
	return r.RecordIO.Size()
}

// Records yields all records of the file, as the File of its format does. A Parquet file has none: the error wraps [parquet.ErrRows].
func (r *Reader) Records() iter.Seq2[[]byte, error] {
	if r.Parquet != nil {
		return r.rows()
	}
	r.expect(0, r.Size())
	if r.TFRecord != nil {
		return r.TFRecord.Records()
	}
	return r.RecordIO.Records()
}

// Index lists the chunks of the file. A chunk of a TFRecord file has up to recordio.DefaultChunkBytes, or one larger record; the same
// bytes always give the same chunks. A chunk of a Parquet file is a row group. Index ends with ctx if the file is TFRecord.
func (r *Reader) Index(ctx context.Context) ([]recordio.Index, error) {
	if r.Parquet != nil {
		return r.groups()
	}
	if r.TFRecord == nil {
		return r.RecordIO.Index()
	}
	r.expect(0, r.Size()) // nearly all bytes, unless the records are large
	chunks, err := r.TFRecord.Index(ctx, tfrecord.IndexOptions{})
	if err != nil {
		return nil, err
	}
	index, err := indexOf(chunks)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", recordio.DisplayName(r.TFRecord.Name()), err)
	}
	return index, nil
}

// indexOf returns the index of a TFRecord file as that of any file.
func indexOf(chunks []tfrecord.Chunk) ([]recordio.Index, error) {
	index := make([]recordio.Index, len(chunks))
	for i, c := range chunks {
		//guard:tfrecord-chunk-size-limit
		if c.Size > math.MaxUint32 || c.Records > math.MaxUint32 {
			return nil, fmt.Errorf("%w: expected a chunk of less than 4 GiB and 2^32 records, found %d bytes and %d records at byte %d: split the file, or store it without compression",
				recordio.ErrTooLarge, c.Size, c.Records, c.Offset)
		}
		index[i] = recordio.Index{
			Offset: c.Offset, Size: uint32(c.Size), Records: uint32(c.Records),
			Compression: compressions[c.Compression], Layout: recordio.TFRecord, Checksum: c.Checksum,
		}
	}
	return index, nil
}

// Chunk yields the records of the chunk that ix describes, as the File of its format does. The layout of ix must be of this format.
// Damaged bytes of a cache are read again from the store.
func (r *Reader) Chunk(ix recordio.Index) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		n, again := 0, false
		for record, err := range r.chunk(ix) {
			//guard:damaged-cache-read-again
			if again = err != nil && r.object.Reread(err); again || !yield(record, err) {
				break
			}
			n++
		}
		if !again {
			return
		}
		for record, err := range r.chunk(ix) {
			if n--; n >= 0 && err == nil {
				continue // yielded before
			}
			if !yield(record, err) {
				return
			}
		}
	}
}

func (r *Reader) chunk(ix recordio.Index) iter.Seq2[[]byte, error] {
	if r.Parquet != nil {
		return r.rows()
	}
	r.Expect(ix)
	if r.TFRecord == nil {
		return r.RecordIO.Chunk(ix)
	}
	return r.TFRecord.Chunk(tfrecord.Chunk{
		Offset: ix.Offset, Size: int64(ix.Size), First: tfrecord.UnknownFirst, Records: int64(ix.Records),
		Compression: tfrecord.Compression(slices.Index(compressions, ix.Compression)), Checksum: ix.Checksum,
	})
}

// compressions are the compressions of TFRecord files in an index.
var compressions = []recordio.Compression{tfrecord.None: recordio.None, tfrecord.Gzip: recordio.Gzip, tfrecord.Zlib: recordio.Zlib}
