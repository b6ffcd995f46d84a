package proxy

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"sort"
	"strings"

	"trainmaster/dataset"
	"trainmaster/internal/grpcserver"
	pb "trainmaster/proto/trainmaster/v1"
)

// Spec is a valid sequence of runs of records.
type Spec struct {
	runs  []run
	total int64 // records
	roots []string
	// stores opens URLs; nil means dataset.DefaultStores.
	stores *dataset.Stores
}

// run is a run of records of one file.
type run struct {
	path          string
	first         int64 // number in the stream of its first record
	start, count  int64 // number in the file of its first record, and number of records
	format        pb.FileFormat
	stamp         dataset.Stamp // zero: any file is accepted
	offset        int64         // of the record start; 0: of the record 0
	recordsOffset int64         // number of the record at offset
	length        int64         // bytes of the run from offset on; 0: not known
}

// maxPath is the maximum length of a path, as of Linux.
const maxPath = 4096

// NewSpec returns the specification of a message. It reads no file. An error names the field of the message.
func NewSpec(message *pb.DataFilesSpec, roots []string) (*Spec, error) {
	if len(message.GetFiles()) == 0 {
		return nil, grpcserver.BadArgument("spec.files", "expected 1 file at least, found 0")
	}
	s := &Spec{runs: make([]run, len(message.Files)), roots: roots}
	for i, f := range message.Files {
		path := f.GetPath()
		isURL := dataset.IsURL(path) // compared with the roots later
		field := func(name string) string { return fmt.Sprintf("spec.files[%d].%s", i, name) }
		switch {
		//guard:proxy-refuses-ranges
		case dataset.IsRange(path) || f.Format == pb.FileFormat_FILE_FORMAT_RANGE:
			return nil, grpcserver.BadArgument(field("format"), "expected records in files, found a range: the reader of the trainer resolves its record numbers")
		//guard:proxy-refuses-parquet
		case f.Format == pb.FileFormat_FILE_FORMAT_PARQUET:
			return nil, grpcserver.BadArgument(field("format"), "expected records, found the rows of a Parquet file: read them with a Parquet library")
		case len(path) > maxPath:
			return nil, grpcserver.BadArgument(field("path"), "expected at most %d bytes, found %d", maxPath, len(path))
		case !isURL && (!filepath.IsAbs(path) || filepath.Clean(path) != path) || strings.ContainsRune(path, 0):
			return nil, grpcserver.BadArgument(field("path"), "expected an absolute path without %q, %q, double slashes and zero bytes, found %q", ".", "..", path)
		case f.StartRecord < 0:
			return nil, grpcserver.BadArgument(field("start_record"), "expected 0 or more, found %d", f.StartRecord)
		case f.NumRecord < 1:
			return nil, grpcserver.BadArgument(field("num_record"), "expected 1 or more, found %d", f.NumRecord)
		case f.NumRecord > math.MaxInt64-f.StartRecord, f.NumRecord > math.MaxInt64-s.total:
			return nil, grpcserver.BadArgument(field("num_record"), "expected a sum of at most %d, found %d more records", math.MaxInt64, f.NumRecord)
		case pb.FileFormat_name[int32(f.Format)] == "":
			return nil, grpcserver.BadArgument(field("format"), "expected a format, found %v", f.Format)
		case f.ByteOffset < 0 || f.ByteLength < 0:
			return nil, grpcserver.BadArgument(field("byte_offset"), "expected an offset and a length of 0 or more, found %d and %d", f.ByteOffset, f.ByteLength)
		}
		r := run{path: path, first: s.total, start: f.StartRecord, count: f.NumRecord, format: f.Format}
		if f.Stamp != nil {
			r.stamp = dataset.Stamp{Size: f.Stamp.Size, ModTime: f.Stamp.ModifiedNanos, ETag: f.Stamp.Etag}
		}
		if f.ByteLength > 0 && f.ByteOffset > 0 {
			r.offset, r.recordsOffset = f.ByteOffset, f.StartRecord
		}
		if f.ByteOffset > 0 || f.StartRecord == 0 {
			r.length = f.ByteLength
		}
		s.runs[i] = r
		s.total += f.NumRecord
	}
	return s, nil
}

// Len is the number of records.
func (s *Spec) Len() int64 { return s.total }

// bytes is the memory of the specification.
func (s *Spec) bytes() int64 {
	n := int64(0)
	for i := range s.runs {
		n += 128 + int64(len(s.runs[i].path))
	}
	return n
}

// Stat checks each file: its place inside the roots, its type and its stamp. It opens no file.
func (s *Spec) Stat(ctx context.Context) error {
	roots, err := dataset.NewRoots(s.roots)
	if err != nil {
		return err
	}
	for i := range s.runs {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := s.runs[i].stat(ctx, s.stores, roots); err != nil {
			return err
		}
	}
	return nil
}

// stat checks the file of a run.
func (r *run) stat(ctx context.Context, stores *dataset.Stores, roots *dataset.Roots) error {
	found, err := roots.Stat(ctx, stores, r.path)
	//guard:proxy-roots
	if err != nil {
		return err
	}
	if dataset.IsURL(r.path) && r.stamp != (dataset.Stamp{}) {
		return r.stamp.Compare(r.path, found)
	}
	return r.check()
}

// check is nil while the file has the stamp of the specification.
func (r *run) check() error {
	if r.stamp == (dataset.Stamp{}) {
		return nil
	}
	//guard:proxy-stamp
	return dataset.Check(r.path, r.stamp)
}

// find returns the run that has a record of the stream.
func (s *Spec) find(record int64) int {
	return sort.Search(len(s.runs), func(i int) bool { return s.runs[i].first+s.runs[i].count > record })
}
