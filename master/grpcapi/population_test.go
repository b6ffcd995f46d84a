package grpcapi_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"trainmaster/master"
	"trainmaster/master/grpcapi"
	"trainmaster/master/strategy"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

// A training task names the model of another trainer: the address of its service, or the file. The status has the trainers.
func TestPopulationOverGRPC(t *testing.T) {
	file := []byte("population: {every: 1pass, figure: \"loss:min\", hyper-parameters: {rate: {min: 1, max: 2}}}")
	parsed, err := strategy.Parse(file)
	if err != nil {
		t.Fatal(err)
	}
	config := master.Config{}
	config.Queue.Strategy = parsed.OfJob(file, false)
	s := serve(t, 3, config)
	task := s.plain(t, 1).get().GetTrainingTask()
	if rate := task.GetHyperParameter().GetValues()["rate"].GetNumber(); rate < 1 || rate > 2 || task.GetModel() != nil {
		t.Errorf("a trainer without a session: %v", task)
	}
	do(t, pb.NewCoordinatorClient(s.conn).Join, &pb.JoinRequest{Id: "a"})
	status := do(t, pb.NewAdminClient(s.conn).Status, &pb.StatusRequest{}).GetPopulation()
	want := &pb.PopulationStatus{Figure: "loss:min", Members: []*pb.PopulationMember{{Trainer: "a", Values: status.GetMembers()[0].GetValues()}}}
	if !proto.Equal(status, want) || len(want.Members[0].Values) != 1 {
		t.Errorf("expected %v, found %v", want, status)
	}
	for _, c := range []struct {
		from taskqueue.ModelSource
		want *pb.ModelSpec
	}{
		{taskqueue.ModelSource{}, nil},
		{taskqueue.ModelSource{Path: "/models/b"}, &pb.ModelSpec{ModelPath: "/models/b"}},
		{taskqueue.ModelSource{Address: "10.0.0.1:9000", Ordinal: 4}, &pb.ModelSpec{TrainerIp: "10.0.0.1:9000", TrainerId: 4}},
	} {
		if found := grpcapi.ModelSpec(c.from); !proto.Equal(found, c.want) {
			t.Errorf("%+v: expected %v, found %v", c.from, c.want, found)
		}
	}
	overview := taskqueue.Overview{Population: &taskqueue.PopulationOverview{
		Generation: 3, Open: true, Figure: "loss:min",
		Members: []taskqueue.PopulationMember{{
			Trainer: "a", Values: map[string]float64{"rate": 1}, Figure: new(0.5), FigureGeneration: 3, From: "b", FromGeneration: 1, Next: "c", Note: "n",
		}},
		Decisions: []taskqueue.PopulationDecision{{Generation: 2, Trainer: "a", From: "c", Reason: "r", Clock: 1500}},
	}}
	all := &pb.PopulationStatus{
		Generation: 3, Open: true, Figure: "loss:min",
		Members: []*pb.PopulationMember{{
			Trainer: "a", Values: map[string]float64{"rate": 1}, Figure: new(0.5), FigureGeneration: 3, From: "b", FromGeneration: 1, Next: "c", Note: "n",
		}},
		Decisions: []*pb.PopulationDecision{{Generation: 2, Trainer: "a", From: "c", Reason: "r", JobSeconds: 1.5}},
	}
	if found := grpcapi.StatusReply(&overview).GetPopulation(); !proto.Equal(found, all) {
		t.Errorf("expected %v, found %v", all, found)
	}
}
