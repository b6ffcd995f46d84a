package tool

import (
	"context"

	"trainmaster/dataset"
	"trainmaster/dataset/tfrecord"
	"trainmaster/recordio"
)

// chunksOf lists the chunks of a file, without their path and number. The options set the size of chunks of a TFRecord file.
func chunksOf(ctx context.Context, f *dataset.Reader, o tfrecord.IndexOptions) (rows []ChunkRow, err error) {
	if f.TFRecord != nil {
		index, err := f.TFRecord.Index(ctx, o)
		for _, c := range index {
			rows = append(rows, ChunkRow{Offset: c.Offset, Size: c.Size, Records: c.Records, Compression: c.Compression.String(), Layout: recordio.TFRecord.String()})
		}
		return rows, err
	}
	index, err := f.RecordIO.Index()
	for _, ix := range index {
		rows = append(rows, ChunkRow{
			Offset: ix.Offset, Size: int64(ix.Size), Records: int64(ix.Records),
			Compression: ix.Compression.String(), Layout: ix.Layout.String(),
		})
	}
	return rows, err
}
