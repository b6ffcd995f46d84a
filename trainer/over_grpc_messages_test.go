package trainer

import (
	"errors"
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"

	"trainmaster/dataset"
	"trainmaster/master/netrpc/wire"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
	"trainmaster/taskqueue/onwire"
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
				TaskId: int64(token.ID()), Token: onwire.Token(token), Index: 6, Base: 2, Commit: 12, CommitProof: []byte("proof"),
				Task: &pb.TaskSpec_TrainingTask{TrainingTask: &pb.TrainingTaskSpec{Data: data}},
			}
			found := &wire.NextReply{}
			if err := applyWorkReply(&pb.WorkReply{Content: &pb.WorkReply_Task{Task: spec}}, found); err != nil || !reflect.DeepEqual(found, want) {
				t.Errorf("found %+v, %v, expected %+v", found, err, want)
			}
		})
	}
}

// F174: a request over gRPC has what the trainer accepts, and all of a result. The task of a round has its model.
func TestEvaluationOverGRPC(t *testing.T) {
	token := taskqueue.Token{Epoch: 1, Kind: taskqueue.Evaluation, Dataset: 1, Pass: 2, Position: 4, Attempt: 1}
	kinds := []pb.TaskKind{pb.TaskKind_TASK_KIND_TRAINING, pb.TaskKind_TASK_KIND_EVALUATION}
	request := &wire.NextRequest{Want: true, Accepts: taskqueue.KindsOf(taskqueue.Training, taskqueue.Evaluation)}
	if found := workRequest(1, request).GetGetTask().GetAccepts(); !reflect.DeepEqual(found, kinds) {
		t.Errorf("request for a task: found %v, expected %v", found, kinds)
	}
	request.Finished = []taskqueue.Result{{Token: token, Metrics: []byte("metrics"), Model: taskqueue.Model{Path: "models/3", Version: 30}, NotFinite: "loss"}}
	found := workRequest(2, request).GetPushResult()
	want := &pb.TaskResult{
		TaskId: int64(token.ID()), Token: onwire.Token(token), Request: found.GetRequest(), Ask: &pb.TrainerInfo{Accepts: kinds},
		EncodedMetrics: []byte("metrics"), ModelPath: "models/3", ModelId: 30, NotFiniteMetric: "loss",
	}
	if !proto.Equal(found, want) {
		t.Errorf("result: found %v, expected %v", found, want)
	}
	spec := &pb.TaskSpec{Token: onwire.Token(token), Task: &pb.TaskSpec_EvaluationSpec{EvaluationSpec: &pb.EvaluationTaskSpec{
		Round: 7, ModelVersion: 30, Model: &pb.ModelSpec{ModelPath: "models/3"},
	}}}
	reply := &wire.NextReply{}
	round := taskqueue.Round{Number: 7, Set: 1, Pass: 2, Version: 30, Model: "models/3"}
	if err := applyWorkReply(&pb.WorkReply{Content: &pb.WorkReply_Task{Task: spec}}, reply); err != nil || reply.Task.Token != token || !reflect.DeepEqual(reply.Round, round) {
		t.Errorf("task: found %+v, %v, expected token %v of %+v", reply, err, token, round)
	}
}

// F173: each reason of the end of a job is a success or a failure. A reason of a newer master is a success.
func TestEndOfTheJobOverGRPC(t *testing.T) {
	for reason, want := range map[pb.EndTaskSpec_Reason]error{
		pb.EndTaskSpec_REASON_PASSES_DONE: wire.ErrJobFinished, pb.EndTaskSpec_REASON_TARGET_REACHED: wire.ErrJobFinished,
		pb.EndTaskSpec_REASON_NO_PROGRESS: wire.ErrJobFinished, pb.EndTaskSpec_REASON_STOPPED: wire.ErrJobFinished, 99: wire.ErrJobFinished,
		pb.EndTaskSpec_REASON_FAILED: wire.ErrJobFailed, pb.EndTaskSpec_REASON_DIVERGED: wire.ErrJobFailed,
	} {
		spec := &pb.TaskSpec{Task: &pb.TaskSpec_End{End: &pb.EndTaskSpec{Reason: reason, Text: "the text"}}}
		if err := applyWorkReply(&pb.WorkReply{Content: &pb.WorkReply_Task{Task: spec}}, &wire.NextReply{}); !errors.Is(err, want) || err.Error() != "the text" {
			t.Errorf("%v: found %v, expected %v with the text", reason, err, want)
		}
	}
}
