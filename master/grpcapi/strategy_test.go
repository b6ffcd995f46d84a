package grpcapi_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"trainmaster/master"
	"trainmaster/master/strategy"
	pb "trainmaster/proto/trainmaster/v1"
)

// A trainer receives the hyper-parameters with its task, and the reason of the rule that ends the job. The status has the decisions.
func TestStrategyOverGRPC(t *testing.T) {
	file := []byte("hyper-parameters: {dropout: {schedule: constant, value: 0.25}}\nstop: [{when: job.records >= 7}]")
	parsed, err := strategy.Parse(file)
	if err != nil {
		t.Fatal(err)
	}
	config := master.Config{}
	config.Queue.Strategy = parsed.OfJob(file, false)
	s := serve(t, 3, config)
	p := s.plain(t, 1)
	task := p.get()
	want := &pb.HyperParameter{Values: map[string]*pb.HyperParameter_Value{"dropout": {Value: &pb.HyperParameter_Value_Number{Number: 0.25}}}}
	if found := task.GetTrainingTask().GetHyperParameter(); !proto.Equal(found, want) {
		t.Errorf("expected %v, found %v", want, found)
	}
	status := do(t, pb.NewAdminClient(s.conn).Status, &pb.StatusRequest{}).GetStrategy()
	wanted := &pb.StrategyStatus{
		Parameters: []*pb.HyperParameterStatus{{Name: "dropout", Value: 0.25, Reason: "constant"}},
		Decisions:  []*pb.StrategyDecision{{Parameter: "dropout", Value: 0.25, Reason: "constant", JobSeconds: 0.001}},
	}
	if !proto.Equal(status, wanted) {
		t.Errorf("expected %v, found %v", wanted, status)
	}
	next := p.push(&pb.TaskResult{TaskId: task.GetTaskId(), Stat: &pb.RunStats{Records: 7}, Ask: &pb.TrainerInfo{TrainerId: 1}}).GetNext()
	if end := next.GetEnd(); end.GetReason() != pb.EndTaskSpec_REASON_STOPPED || end.GetText() != "job finished: stopped: job.records >= 7: job.records is 7" {
		t.Errorf("found %v", end)
	}
}
