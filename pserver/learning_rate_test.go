package pserver_test

import (
	"math"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver"
	"trainmaster/trainer/params"
)

// Asynchronous updates of tensors and tables use the factor that the leader sent, or that the server read at its start. A late message
// of an earlier change, and a message of a former leader, do nothing.
func TestAsynchronousUpdatesUseTheCommittedLearningRate(t *testing.T) {
	users := params.Table{Name: "users", Dim: 2, Init: params.Zeros}
	b := newBook(1)
	b.job.Rate = pserver.Rate{Number: 1, Scale: 0.5}
	s := startServer(t, b, 0, pserver.Config{})
	c := connect(t, b, params.Config{Mode: params.Async, Tables: []params.Table{users}})
	values := tensors(constant(0))
	mustInit(t, c, values)
	step, total := uint64(0), float32(0)
	push := func(scale float32) {
		t.Helper()
		step++
		total -= plainSGD.LearningRate * scale
		mustPushOnes(t, c, step, values)
		if err := differ(values, tensors(constant(total))); err != nil {
			t.Error(err)
		}
		must(t, c.PushRows(within(t), users.Name, step, 1, []int64{7}, []float32{1, 1}))
		if row := rowsOf(t, c, users, []int64{7}, 0); row[0] != total || row[1] != total {
			t.Errorf("row of a table: expected %v, found %v", total, row)
		}
	}
	push(0.5)
	server := control(t, s.addr)
	for _, try := range []struct {
		request *pb.SetLearningRateRequest
		code    codes.Code
		scale   float32 // after it
	}{
		{&pb.SetLearningRateRequest{Term: 5, Number: 3, Scale: 0.25}, codes.OK, 0.25},
		{&pb.SetLearningRateRequest{Term: 5, Number: 3, Scale: 0.25}, codes.OK, 0.25},
		{&pb.SetLearningRateRequest{Term: 5, Number: 2, Scale: 8}, codes.OK, 0.25},
		{&pb.SetLearningRateRequest{Term: 4, Number: 4, Scale: 8}, codes.FailedPrecondition, 0.25},
		{&pb.SetLearningRateRequest{Term: 6, Number: 4, Scale: 2}, codes.OK, 2},
		{&pb.SetLearningRateRequest{Term: 6, Scale: 8}, codes.InvalidArgument, 2},
		{&pb.SetLearningRateRequest{Term: 6, Number: 5}, codes.InvalidArgument, 2},
		{&pb.SetLearningRateRequest{Term: 6, Number: 5, Scale: -1}, codes.InvalidArgument, 2},
		{&pb.SetLearningRateRequest{Term: 6, Number: 5, Scale: float32(math.Inf(1))}, codes.InvalidArgument, 2},
		{&pb.SetLearningRateRequest{Term: 6, Number: 5, Scale: float32(math.NaN())}, codes.InvalidArgument, 2},
	} {
		if _, err := server.SetLearningRate(within(t), try.request); status.Code(err) != try.code {
			t.Errorf("%v: expected %v, found %v", try.request, try.code, err)
		}
		d, err := server.Describe(within(t), &pb.DescribeRequest{Brief: true})
		if err != nil || d.GetLearningRateScale() != try.scale || d.GetLearningRate() != plainSGD.LearningRate {
			t.Errorf("after %v: expected the factor %v of %v, found %v, %v", try.request, try.scale, plainSGD.LearningRate, d, err)
		}
		push(try.scale)
	}
}

// A synchronous shard takes the factor of each version with its step.
func TestSynchronousShardRefusesALearningRate(t *testing.T) {
	b := startServers(t, 1, pserver.Config{})
	mustInit(t, connect(t, b, params.Config{Mode: params.Sync}), tensors(constant(0)))
	if _, err := control(t, b.addrs[0]).SetLearningRate(within(t), &pb.SetLearningRateRequest{Term: 1, Number: 1, Scale: 0.5}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("expected a refusal, found %v", err)
	}
}
