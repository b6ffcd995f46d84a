package tool

import (
	"context"
	"errors"
	"iter"
	"path/filepath"
	"strings"

	"trainmaster/dataset/tfrecord"
	"trainmaster/recordio"
)

// file is an open file of records, in one of the formats that the commands read.
type file interface {
	Records() iter.Seq2[[]byte, error]
	Size() int64
	Close() error
	// chunks lists the chunks, without their path and number.
	chunks(ctx context.Context, o tfrecord.IndexOptions) ([]ChunkRow, error)
}

// layoutTFRecord stands for the layout of TFRecord files in the output of commands.
const layoutTFRecord = "tfrecord"

// open opens a RecordIO or TFRecord file. The content decides: the first record of a TFRecord file has a checksum of its length. A file
// that has neither format is treated as TFRecord if its name has ".tfrecord", so that errors are about this format.
func open(path string) (file, error) {
	t, err := tfrecord.Open(path)
	if err != nil {
		return nil, err
	}
	recognized, err := t.Recognize()
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	if recognized {
		return tfRecordFile{t}, nil
	}
	r, err := recordio.Open(path)
	if err == nil && strings.Contains(filepath.Base(path), ".tfrecord") {
		if _, bad := r.Layout(); bad != nil {
			return tfRecordFile{t}, r.Close()
		}
	}
	if err := errors.Join(err, t.Close()); err != nil {
		return nil, err
	}
	return recordIOFile{r}, nil
}

type recordIOFile struct{ *recordio.File }

func (f recordIOFile) chunks(context.Context, tfrecord.IndexOptions) ([]ChunkRow, error) {
	index, err := f.Index()
	rows := make([]ChunkRow, len(index))
	for i, ix := range index {
		rows[i] = ChunkRow{
			Offset: ix.Offset, Size: int64(ix.Size), Records: int64(ix.Records),
			Compression: ix.Compression.String(), Layout: ix.Layout.String(),
		}
	}
	return rows, err
}

type tfRecordFile struct{ *tfrecord.File }

func (f tfRecordFile) chunks(ctx context.Context, o tfrecord.IndexOptions) ([]ChunkRow, error) {
	index, err := f.Index(ctx, o)
	rows := make([]ChunkRow, len(index))
	for i, c := range index {
		rows[i] = ChunkRow{Offset: c.Offset, Size: c.Size, Records: c.Records, Compression: c.Compression.String(), Layout: layoutTFRecord}
	}
	return rows, err
}
