package psclient_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/onwire"
	"trainmaster/pserver/placement"
)

func (s *server) SetPlacement(_ context.Context, r *pb.SetPlacementRequest) (*pb.SetPlacementReply, error) {
	if s.place == nil {
		return &pb.SetPlacementReply{}, nil
	}
	return s.place(r)
}

// A server that requests a second call gets the model when all other servers have the placement, and not before.
func TestPlacementReachesSourceAfterDestination(t *testing.T) {
	placed, err := placement.New([]placement.Tensor{{Name: "w"}}, 2)
	if err != nil {
		t.Fatal(err)
	}
	source, destination := serve(t), serve(t)
	for _, s := range []*server{source, destination} {
		s.described = &pb.DescribeReply{State: pb.DescribeReply_STATE_READY, Model: &pb.ParameterModel{Shards: 2}, Placement: onwire.PlacementToProto(placed)}
	}
	var calls []string // the client calls one server at a time
	refuse := errors.New("busy")
	note := func(name string, r *pb.SetPlacementRequest) {
		calls = append(calls, fmt.Sprintf("%s %v", name, r.GetModel() != nil))
	}
	source.place = func(r *pb.SetPlacementRequest) (*pb.SetPlacementReply, error) {
		note("source", r)
		return &pb.SetPlacementReply{Wanted: r.GetModel() == nil}, nil
	}
	destination.place = func(r *pb.SetPlacementRequest) (*pb.SetPlacementReply, error) {
		note("destination", r)
		return &pb.SetPlacementReply{}, refuse
	}
	c := client(t, nil)
	c.Registered = func(context.Context) ([]string, error) { return []string{source.addr, destination.addr}, nil }
	stored := []byte(`{"format":2,"epoch":2,"shards":2,"goal":2,"owners":"1"}`)
	if err := c.SendPlacement(within(t), 1, stored); err == nil {
		t.Error("expected the error of the destination")
	}
	if want := []string{"source false", "destination false"}; !slices.Equal(calls, want) {
		t.Errorf("destination refuses: expected %v, found %v", want, calls)
	}
	calls, refuse = nil, nil
	if err := c.SendPlacement(within(t), 1, stored); err != nil {
		t.Error(err)
	}
	if want := []string{"source false", "destination false", "source true"}; !slices.Equal(calls, want) {
		t.Errorf("expected %v, found %v", want, calls)
	}
}
