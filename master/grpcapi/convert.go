package grpcapi

import (
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
	"trainmaster/taskqueue/onwire"
)

// sessionOf returns the session that a request names; ordinal 0 if it names none.
func sessionOf(in interface{ GetSession() *pb.Session }) (taskqueue.Ordinal, uint64) {
	return taskqueue.Ordinal(in.GetSession().GetOrdinal()), in.GetSession().GetIncarnation()
}

// tokenOf returns the zero token for nil. A token that no master has sent names no task.
func tokenOf(in *pb.Token) taskqueue.Token { return onwire.TokenOf(in) }

func tokensOf(in []*pb.Token) []taskqueue.Token {
	var list []taskqueue.Token
	for _, t := range in {
		list = append(list, tokenOf(t))
	}
	return list
}

func tokenToProto(t taskqueue.Token) *pb.Token { return onwire.Token(t) }

// kindsOf ignores kinds that this master does not know.
func kindsOf(in []pb.TaskKind) (k taskqueue.Kinds) {
	for _, kind := range in {
		if kind >= pb.TaskKind_TASK_KIND_TRAINING && kind <= pb.TaskKind_TASK_KIND_PREDICTION {
			k |= taskqueue.KindsOf(taskqueue.Kind(kind - pb.TaskKind_TASK_KIND_TRAINING))
		}
	}
	return k
}

func progressOf(in *pb.TrainerProgress) taskqueue.Progress {
	return taskqueue.Progress{Records: in.GetRecords(), Loss: in.GetLoss()}
}

// filesToProto returns the files of a task. The chunks are the chunks of the ranges, in their order.
func filesToProto(ranges []taskqueue.RecordRange, chunks []taskqueue.Chunk) *pb.DataFilesSpec {
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
