package psclient_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"trainmaster/master/pscontrol"
	pb "trainmaster/proto/trainmaster/v1"
)

// Describe returns a server that can begin a cut.
func (s *server) Describe(_ context.Context, r *pb.DescribeRequest) (*pb.DescribeReply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !r.GetBrief() {
		s.whole++
	}
	if s.described != nil {
		return s.described, nil
	}
	return &pb.DescribeReply{State: pb.DescribeReply_STATE_READY, KeepsCheckpoints: true}, nil
}

// BeginCut blocks if the test sets hangs.
func (s *server) BeginCut(ctx context.Context, _ *pb.BeginCutRequest) (*pb.BeginCutReply, error) {
	s.mu.Lock()
	hangs := s.hangs
	s.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &pb.BeginCutReply{}, nil
}

func (s *server) AbortCut(ctx context.Context, _ *pb.AbortCutRequest) (*pb.AbortCutReply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.aborted++
	return &pb.AbortCutReply{}, nil
}

// The error of a hung server has its address and the time. A healthy server is not in the error and receives
// AbortCut.
func TestHungServerIsNamedAlone(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and does not answer
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	healthy, hung := serve(t), serve(t)
	hung.hangs = true
	for name, addr := range map[string]string{"at describe": silent.Addr().String(), "at begin": hung.addr} {
		t.Run(name, func(t *testing.T) {
			addrs := func(context.Context) ([]string, error) { return []string{healthy.addr, addr}, nil }
			c := client(t, addrs)
			c.Present = addrs
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // for new connections on a busy machine
			defer cancel()
			_, err := c.Begin(ctx, pscontrol.CutRequest{Term: 1, Epoch: 1, Number: func(uint64) uint64 { return 1 }})
			if codeOf(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), "parameter server 1 ("+addr+"): no answer in ") || !strings.Contains(err.Error(), "is it hung?") {
				t.Errorf("found %v", err)
			}
			if strings.Contains(err.Error(), healthy.addr) || strings.Contains(err.Error(), "rpc error") {
				t.Errorf("expected neither the healthy server nor a library error, found %v", err)
			}
		})
	}
	healthy.mu.Lock()
	defer healthy.mu.Unlock()
	if healthy.aborted == 0 {
		t.Error("healthy server: expected AbortCut")
	}
}
