package shards_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	pb "trainmaster/proto/trainmaster/v1"
)

// ready is a server that can begin a cut.
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

// BeginCut waits where the test says so.
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

// A hung server is named with its address and the time, in words; a healthy one is not named, and hears that the cut is off.
func TestHungServerIsNamedAlone(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and says nothing
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
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // enough for new connections on a busy machine
			defer cancel()
			_, err := c.Begin(ctx, 1, 1, func(uint64) uint64 { return 1 })
			if codeOf(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), "parameter server 1 ("+addr+"): no answer in ") || !strings.Contains(err.Error(), "is it hung?") {
				t.Errorf("found %v", err)
			}
			if strings.Contains(err.Error(), healthy.addr) || strings.Contains(err.Error(), "rpc error") {
				t.Errorf("found the healthy server, or words of a library: %v", err)
			}
		})
	}
	healthy.mu.Lock()
	defer healthy.mu.Unlock()
	if healthy.aborted == 0 {
		t.Error("the healthy server was not told that the cut is off")
	}
}
