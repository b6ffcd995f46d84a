package trainer

import (
	"reflect"
	"testing"

	"trainmaster/dataset"
	"trainmaster/master/netrpc/wire"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

// F198: a task over gRPC has the chunks and the stamps of its files, with the version of an object. A task that names a data proxy has the
// same files.
func TestFilesOfATaskOverGRPC(t *testing.T) {
	files := &pb.DataFilesSpec{Files: []*pb.DataFileSpec{{
		Path: "s3://bucket/part", ByteOffset: 100, ByteLength: 44 + 2*recordio.HeaderSize, Stamp: &pb.FileStamp{Size: 900, ModifiedNanos: 7, Etag: `"version"`},
		Chunks: &pb.StoredChunks{First: 3, Layout: 2, Sizes: []uint32{20, 24}, Records: []uint32{5, 6}, Checksums: []uint32{8, 9}, Compressions: []byte{0, 1}},
	}}}
	token := taskqueue.Token{Epoch: 1, Pass: 2, Position: 4, Attempt: 1}
	want := &wire.NextReply{
		Task: taskqueue.Task{Index: 6, Token: token, Chunks: []taskqueue.Chunk{
			{Idx: 3, Path: "s3://bucket/part", Index: recordio.Index{Offset: 100, Size: 20, Records: 5, Layout: 2, Checksum: 8}},
			{Idx: 4, Path: "s3://bucket/part", Index: recordio.Index{Offset: 120 + recordio.HeaderSize, Size: 24, Records: 6, Layout: 2, Compression: 1, Checksum: 9}},
		}},
		Stamps: []dataset.Stamp{{Size: 900, ModTime: 7, ETag: `"version"`}}, Base: 2, Commit: 12, CommitProof: []byte("proof"),
	}
	for name, data := range map[string]*pb.DataSpec{
		"files":      {Data: &pb.DataSpec_Files{Files: files}},
		"data proxy": {Data: &pb.DataSpec_Stream{Stream: &pb.DataStreamSpec{DataProxyLocation: "127.0.0.1:8082", Files: files}}},
	} {
		t.Run(name, func(t *testing.T) {
			spec := &pb.TaskSpec{
				TaskId: int64(token.ID()), Token: tokenToProto(token), Index: 6, Base: 2, Commit: 12, CommitProof: []byte("proof"),
				Task: &pb.TaskSpec_TrainingTask{TrainingTask: &pb.TrainingTaskSpec{Data: data}},
			}
			found := &wire.NextReply{}
			if err := applyWorkReply(&pb.WorkReply{Content: &pb.WorkReply_Task{Task: spec}}, found); err != nil || !reflect.DeepEqual(found, want) {
				t.Errorf("found %+v, %v, expected %+v", found, err, want)
			}
		})
	}
}
