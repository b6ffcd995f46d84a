package tool

import (
	"context"
	"errors"

	"trainmaster/dataset"
	"trainmaster/dataset/tfrecord"
	"trainmaster/recordio"
)

// eachFile opens each file and calls look. It continues after a bad file; its error has the errors of all files.
func eachFile(ctx context.Context, paths []string, look func(path string, f *dataset.Reader) error) error {
	paths, err := expand(ctx, paths)
	if err != nil {
		return err
	}
	var bad []error
	for _, path := range paths {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		f, err := dataset.DefaultStores.OpenReader(ctx, path)
		if err == nil {
			err = errors.Join(look(path, f), f.Close())
		}
		if err != nil {
			bad = append(bad, err)
		}
	}
	return errors.Join(bad...)
}

// expand replaces URLs of patterns and prefixes by the URLs of their objects. The shell expands other patterns.
func expand(ctx context.Context, paths []string) (all []string, err error) {
	for _, path := range paths {
		found := []string{path}
		if dataset.IsURL(path) {
			if found, err = (dataset.Source{AnyURL: true}).Paths(ctx, found); err != nil {
				return nil, err
			}
		}
		all = append(all, found...)
	}
	return all, nil
}

// Stat describes a file by its chunks.
type Stat struct {
	Path        string `json:"path"`
	Layout      string `json:"layout"`      // "first", "second" or "fluid" of RecordIO, "tfrecord" or "parquet"
	Compression string `json:"compression"` // of its chunks, or "mixed"
	Chunks      int    `json:"chunks"`
	Records     int64  `json:"records"`
	Bytes       int64  `json:"bytes"` // of the file
}

// StatFiles reads the chunk headers of RecordIO files, and the lengths of records of TFRecord files. Its error has the errors of all files.
func StatFiles(ctx context.Context, paths []string) (stats []Stat, err error) {
	stats = []Stat{}
	err = eachFile(ctx, paths, func(path string, f *dataset.Reader) error {
		chunks, err := chunksOf(ctx, f, tfrecord.IndexOptions{})
		if err != nil {
			return err
		}
		s := Stat{Path: path, Layout: recordio.TFRecord.String(), Compression: tfrecord.None.String(), Chunks: len(chunks), Bytes: f.Size()}
		if f.Parquet != nil {
			s.Layout = recordio.Parquet.String()
		}
		for i, c := range chunks {
			s.Records += c.Records
			switch {
			case i == 0:
				s.Layout, s.Compression = c.Layout, c.Compression
			case c.Compression != s.Compression:
				s.Compression = "mixed"
			}
		}
		stats = append(stats, s)
		return nil
	})
	return stats, err
}

// Verification is the result of reading a file from beginning to end.
type Verification struct {
	Path    string `json:"path"`
	OK      bool   `json:"ok"`
	Records int64  `json:"records"`          // read before the error, if there was one
	Offset  *int64 `json:"offset,omitempty"` // of the damaged chunk, or record of a TFRecord file
	Error   string `json:"error,omitempty"`
}

// VerifyFiles reads files from beginning to end. Its error has the errors of all files.
func VerifyFiles(ctx context.Context, paths []string) (checks []Verification, err error) {
	if paths, err = expand(ctx, paths); err != nil {
		return nil, err
	}
	var bad []error
	for _, path := range paths {
		n, err := countRecords(ctx, path)
		if ctx.Err() != nil {
			return nil, err
		}
		check := Verification{Path: path, OK: err == nil, Records: n}
		if err != nil {
			bad = append(bad, err)
			check.Error = err.Error()
			if where, ok := errors.AsType[*recordio.Error](err); ok && where.Offset >= 0 {
				check.Offset = &where.Offset
			}
			if where, ok := errors.AsType[*tfrecord.Error](err); ok && where.Offset >= 0 {
				check.Offset = &where.Offset
			}
		}
		checks = append(checks, check)
	}
	return checks, errors.Join(bad...)
}

// countRecords reads a file whole.
func countRecords(ctx context.Context, path string) (n int64, err error) {
	err = eachFile(ctx, []string{path}, func(_ string, f *dataset.Reader) error {
		for _, err := range f.Records() {
			if err != nil {
				return err
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			n++
		}
		return nil
	})
	return n, err
}

// ChunkRow is one chunk of a file.
type ChunkRow struct {
	Path        string `json:"path"`
	Chunk       int    `json:"chunk"` // its number in the file, from 0
	Offset      int64  `json:"offset"`
	Size        int64  `json:"size"` // of its payload, or of all its bytes in a TFRecord file
	Records     int64  `json:"records"`
	Compression string `json:"compression"`
	Layout      string `json:"layout"`
}

// IndexFiles lists the chunks of files. The options set the size of chunks of TFRecord files. Its error has the errors of all files.
func IndexFiles(ctx context.Context, paths []string, o tfrecord.IndexOptions) (rows []ChunkRow, err error) {
	rows = []ChunkRow{}
	err = eachFile(ctx, paths, func(path string, f *dataset.Reader) error {
		chunks, err := chunksOf(ctx, f, o)
		for i := range chunks {
			chunks[i].Path, chunks[i].Chunk = path, i
		}
		rows = append(rows, chunks...)
		return err
	})
	return rows, err
}
