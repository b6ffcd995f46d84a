package onwire

import (
	"slices"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

// Data says where the records of a task come from. proxy is the address of a data proxy; "": trainers read the files.
func Data(files *pb.DataFilesSpec, proxy string) *pb.DataSpec {
	//guard:range-bypasses-data-proxy
	own := slices.ContainsFunc(files.Files, func(f *pb.DataFileSpec) bool {
		return f.Format == pb.FileFormat_FILE_FORMAT_RANGE || f.Format == pb.FileFormat_FILE_FORMAT_PARQUET
	})
	//guard:task-names-data-proxy
	if proxy == "" || own {
		return &pb.DataSpec{Data: &pb.DataSpec_Files{Files: files}}
	}
	return &pb.DataSpec{Data: &pb.DataSpec_Stream{Stream: &pb.DataStreamSpec{DataProxyLocation: proxy, Files: files}}}
}

// EvaluationTask describes an evaluation task. Without a model in the round, the trainer evaluates its own.
func EvaluationTask(round *taskqueue.Round, data *pb.DataSpec) *pb.EvaluationTaskSpec {
	spec := &pb.EvaluationTaskSpec{Data: data}
	if round != nil {
		spec.Round, spec.ModelVersion = round.Number, round.Version
		if round.Model != "" {
			spec.Model = &pb.ModelSpec{ModelPath: round.Model}
		}
	}
	return spec
}

// Files returns the files of a task. The chunks are the chunks of the ranges, in their order.
func Files(ranges []taskqueue.RecordRange, chunks []taskqueue.Chunk) *pb.DataFilesSpec {
	out := &pb.DataFilesSpec{Files: make([]*pb.DataFileSpec, len(ranges))}
	for i, r := range ranges {
		f := &pb.DataFileSpec{Path: r.Path, StartRecord: r.First, NumRecord: r.Records, Format: pb.FileFormat_FILE_FORMAT_RECORDIO, ByteOffset: r.Offset, ByteLength: r.Length}
		length := r.Length
		if r.IsTFRecord() {
			f.Format = pb.FileFormat_FILE_FORMAT_TFRECORD
		}
		if r.IsRange() {
			f.Format, length = pb.FileFormat_FILE_FORMAT_RANGE, r.Records
		} else {
			if r.IsParquet() {
				f.Format, f.RowGroup, length = pb.FileFormat_FILE_FORMAT_PARQUET, r.RowGroup, 1
			}
			f.Stamp = &pb.FileStamp{Size: r.Size, ModifiedNanos: r.ModTime, Etag: r.ETag}
		}
		n := 0
		for extent := int64(0); n < len(chunks) && extent < length; n++ {
			ix := &chunks[n].Index
			extent += ix.Layout.Extent(ix.Size, ix.Records)
		}
		out.Files[i], f.Chunks, chunks = f, chunksToProto(chunks[:n]), chunks[n:]
	}
	return out
}

func chunksToProto(chunks []taskqueue.Chunk) *pb.StoredChunks {
	n := len(chunks)
	if n == 0 {
		return nil
	}
	out := &pb.StoredChunks{
		First: int64(chunks[0].Idx), Layout: uint32(chunks[0].Index.Layout),
		Sizes: make([]uint32, n), Records: make([]uint32, n), Checksums: make([]uint32, n), Compressions: make([]byte, n),
	}
	for i, c := range chunks {
		out.Sizes[i], out.Records[i], out.Checksums[i], out.Compressions[i] = c.Index.Size, c.Index.Records, c.Index.Checksum, byte(c.Index.Compression)
	}
	return out
}
