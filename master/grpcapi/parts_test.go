package grpcapi_test

import (
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"trainmaster/master"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

// A master without a task manager refuses datasets and trainers.
func TestJobWithoutTasksRefusesTrainers(t *testing.T) {
	s := serve(t, 0, master.Config{NoTasks: true, NoTrainingService: true})
	for name, call := range map[string]func() error{
		"dataset": func() error { return s.ReportDataset(t.Context(), []string{"/data/a"}) },
		"session": func() error { _, err := s.Join(t.Context(), "a", "127.0.0.1:1"); return err },
		"task":    func() error { _, err := s.PlainAsk(t.Context(), &taskqueue.PlainAsk{}); return err },
	} {
		if err := call(); !errors.Is(err, master.ErrNoTasks) {
			t.Errorf("%s: expected %v, found %v", name, master.ErrNoTasks, err)
		}
	}
}

func TestMasterWithoutTheTrainingService(t *testing.T) {
	s := serve(t, 2, master.Config{NoTrainingService: true})
	if _, err := pb.NewCoordinatorClient(s.conn).GetTask(t.Context(), &pb.TrainerInfo{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("expected %v, found %v", codes.Unimplemented, err)
	}
	health := healthpb.NewHealthClient(s.conn)
	if _, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: pb.Coordinator_ServiceDesc.ServiceName}); status.Code(err) != codes.NotFound {
		t.Errorf("health of the service: expected %v, found %v", codes.NotFound, err)
	}
	if _, err := pb.NewAdminClient(s.conn).Status(t.Context(), &pb.StatusRequest{}); err != nil {
		t.Error(err)
	}
}
