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
	if f.Parquet != nil {
		footer, err := f.Parquet.Footer()
		if err != nil {
			return nil, err
		}
		for _, g := range footer.Groups {
			rows = append(rows, ChunkRow{Offset: g.Offset, Size: g.Size, Records: g.Rows, Compression: recordio.None.String(), Layout: recordio.Parquet.String()})
		}
		return rows, nil
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
