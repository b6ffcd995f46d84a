package grpcapi_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"trainmaster/master"
	pb "trainmaster/proto/trainmaster/v1"
)

// F232: a result of more than 64 KiB is answered without a wait for the next task, and without a task: its memory is free then.
func TestLargeResultDoesNotWait(t *testing.T) {
	s := serve(t, 5, master.Config{})
	p := s.plain(t, 1)
	request := joinOver(t, s.conn, "a")
	session, err := p.client.GetTask(t.Context(), &pb.TrainerInfo{Request: request(1, 1)})
	if err != nil {
		t.Fatal(err)
	}
	large := strings.Repeat("x", 100<<10)
	for name, result := range map[string]*pb.TaskResult{
		"without a session": {TaskId: p.get().GetTaskId(), Error: large, Ask: &pb.TrainerInfo{TrainerId: 1}},
		"with a session":    {Token: session.GetToken(), Error: large, Request: request(2, 2), Ask: &pb.TrainerInfo{}},
	} {
		if reply := p.push(result); reply.GetStatus() != pb.PushResultResponse_STATUS_RETURNED || reply.GetNext().GetWait() == nil {
			t.Errorf("%s: found %v, expected a wait", name, reply)
		}
	}
	if p.get().GetTrainingTask() == nil {
		t.Error("GetTask after the result: expected a task")
	}
}

// F232: methods with short messages refuse others before they are decoded.
func TestLargeMessagesOfOtherMethodsAreRefused(t *testing.T) {
	s := serve(t, 0, master.Config{})
	client := pb.NewCoordinatorClient(s.conn)
	held := make([]*pb.Token, 40<<10)
	for i := range held {
		held[i] = &pb.Token{}
	}
	_, err := client.GetTask(t.Context(), &pb.TrainerInfo{Request: &pb.Request{Seq: 1, Held: held}})
	wants(t, err, codes.ResourceExhausted, "TOO_LARGE", "at most 65536 bytes")
}
