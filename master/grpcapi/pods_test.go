package grpcapi_test

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"trainmaster/master"
	pb "trainmaster/proto/trainmaster/v1"
)

func TestJobWithoutPodsListsNone(t *testing.T) {
	s := serve(t, 1, master.Config{})
	_, err := pb.NewAdminClient(s.conn).ListPods(t.Context(), &pb.ListPodsRequest{})
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("expected FAILED_PRECONDITION, found %v", err)
	}
	if _, err = pb.NewAdminClient(s.conn).ListPods(t.Context(), &pb.ListPodsRequest{Job: "another"}); status.Code(err) != codes.NotFound {
		t.Errorf("another job: expected NOT_FOUND, found %v", err)
	}
}
