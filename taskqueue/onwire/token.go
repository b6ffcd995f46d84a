// Package onwire converts the tokens of the task queue into protobuf messages and back.
package onwire

import (
	"math"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

// TokenOf returns the token of a message. A message with numbers out of range becomes a token of no dispatch.
func TokenOf(in *pb.Token) taskqueue.Token {
	if in == nil {
		return taskqueue.Token{}
	}
	kind := taskqueue.Kind(math.MaxUint8)
	if k := in.GetKind(); k >= pb.TaskKind_TASK_KIND_TRAINING && k <= pb.TaskKind_TASK_KIND_PREDICTION {
		kind = taskqueue.Kind(k - pb.TaskKind_TASK_KIND_TRAINING)
	}
	return taskqueue.Token{
		Epoch: in.GetEpoch(), Kind: kind, Dataset: int(in.GetDataset()), Pass: taskqueue.Pass(in.GetPass()),
		Position: int(min(in.GetPosition(), math.MaxInt64)), Attempt: taskqueue.Attempt(in.GetAttempt()),
	}
}

// Token returns the message of a token.
func Token(t taskqueue.Token) *pb.Token {
	return &pb.Token{
		Epoch: t.Epoch, Kind: pb.TaskKind(t.Kind) + pb.TaskKind_TASK_KIND_TRAINING, Dataset: uint32(t.Dataset), Pass: uint32(t.Pass),
		Position: uint64(t.Position), Attempt: uint32(t.Attempt),
	}
}

// StopTask returns the request to stop a dispatch.
func StopTask(t taskqueue.Token) *pb.StopTaskRequest {
	return &pb.StopTaskRequest{TaskId: int64(t.ID()), Token: Token(t)}
}
