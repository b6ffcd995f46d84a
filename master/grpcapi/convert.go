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

// kindsOf returns the kinds that a trainer accepts. Of a kind that this master does not know, there are no tasks.
func kindsOf(in []pb.TaskKind) (k taskqueue.Kinds) {
	for _, kind := range in {
		if kind >= pb.TaskKind_TASK_KIND_TRAINING && kind <= pb.TaskKind_TASK_KIND_PREDICTION {
			k |= taskqueue.KindsOf(taskqueue.Kind(kind - pb.TaskKind_TASK_KIND_TRAINING))
			continue
		}
		//guard:unknown-kinds-are-no-training
		k |= taskqueue.OtherKinds
	}
	return k
}

func progressOf(in *pb.TrainerProgress) taskqueue.Progress {
	return taskqueue.Progress{Records: in.GetRecords(), Loss: in.GetLoss()}
}
