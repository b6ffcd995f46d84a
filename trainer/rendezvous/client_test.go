package rendezvous

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/trainer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// closingMaster is the leader of a ring that is closed. The member learns it from its stream, before the answer to Close.
type closingMaster struct {
	pb.UnimplementedRendezvousServer
	closed  chan struct{} // the stream has the end of the ring
	answer  chan error    // of Close
	answers atomic.Int32
}

func (m *closingMaster) Join(context.Context, *pb.RingJoinRequest) (*pb.RingJoinReply, error) {
	return &pb.RingJoinReply{}, nil
}

func (m *closingMaster) Watch(_ *pb.RingWatchRequest, stream pb.Rendezvous_WatchServer) error {
	select {
	case <-m.closed:
		return stream.Send(&pb.RingUpdate{State: pb.RingState_RING_STATE_CLOSED})
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
}

func (m *closingMaster) Close(ctx context.Context, _ *pb.RingCloseRequest) (*pb.RingCloseReply, error) {
	if m.answers.Add(1) == 1 {
		close(m.closed)
	}
	select {
	case err := <-m.answer:
		return &pb.RingCloseReply{}, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// F311: the member that closes the ring may know its end before the answer to Close, or without one.
func TestCloseReturnsAfterTheEndOfTheMember(t *testing.T) {
	for name, answer := range map[string]error{
		"answered":     nil,
		"not answered": status.Error(codes.Unavailable, "the master has ended"),
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			m := &closingMaster{closed: make(chan struct{}), answer: make(chan error, 1)}
			server := grpc.NewServer()
			pb.RegisterRendezvousServer(server, m)
			go func() { _ = server.Serve(l) }()
			t.Cleanup(server.Stop)
			c := &Client{Locate: trainer.At(l.Addr().String()), Member: &pb.RingMember{Id: "a"}}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			ran, closed := make(chan error, 1), make(chan error, 1)
			go func() { ran <- c.Run(ctx) }()
			go func() { closed <- c.Close(ctx, "enough") }()
			if err := <-ran; err != nil {
				t.Fatalf("member: %v", err)
			}
			if answer != nil {
				server.Stop()
			}
			select {
			case err := <-closed:
				if answer == nil || err != nil {
					t.Errorf("close ended before its answer, or failed: %v", err)
				}
				return
			case <-time.After(200 * time.Millisecond):
			}
			m.answer <- answer
			if err := <-closed; err != nil {
				t.Errorf("close: %v", err)
			}
			if n := m.answers.Load(); n != 1 {
				t.Errorf("expected one call, found %d", n)
			}
		})
	}
}
