package rendezvous

import (
	"context"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
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

// Each goroutine that waits for an update receives it.
func TestUpdateWakesAllThatWait(t *testing.T) {
	c := &Client{}
	var waiting sync.WaitGroup
	for range 3 {
		_, changed := c.Update()
		waiting.Go(func() {
			select {
			case <-changed:
			case <-time.After(20 * time.Second):
				t.Error("expected an update")
			}
		})
	}
	c.set(&pb.RingUpdate{Reason: "new"})
	waiting.Wait()
	if u, _ := c.Update(); u.GetReason() != "new" {
		t.Errorf("found %v", u)
	}
}

// refusingMaster refuses each member.
type refusingMaster struct {
	pb.UnimplementedRendezvousServer
	err error
}

func (m refusingMaster) Join(context.Context, *pb.RingJoinRequest) (*pb.RingJoinReply, error) {
	return nil, m.err
}

// The error of a member that cannot take part says what to do, without words of gRPC.
func TestRefusedMemberNamesTheAction(t *testing.T) {
	refusal := func(code codes.Code, reason, text string) error {
		s, err := status.New(code, text).WithDetails(&errdetails.ErrorInfo{Domain: "trainmaster", Reason: reason})
		if err != nil {
			t.Fatal(err)
		}
		return s.Err()
	}
	if found := explain(refusal(codes.FailedPrecondition, "OLD_GENERATION", ErrOldGeneration.Error()+": expected 7, found 1")).Error(); found != "another generation is current: expected 7, found 1" {
		t.Errorf("expected the reason once, found %q", found)
	}
	if err := explain(status.Error(codes.Unimplemented, "unexpected HTTP status code received from server: 404 (Not Found)")); final(err) {
		t.Errorf("404 of a proxy: expected another attempt, found %v", err)
	}
	for want, err := range map[string]error{
		"the job has no ring: start the master again with it":                                      refusal(codes.FailedPrecondition, "NO_RING", "the job has no ring"),
		"no such job here: give the --job or the --addr of the job of this member":                 refusal(codes.NotFound, "OTHER_JOB", "no such job here"),
		"expected at most 16 ports: correct the flags of this member":                              refusal(codes.InvalidArgument, "BAD_ARGUMENT", "expected at most 16 ports"),
		"check the address, and start a master of this version":                                    status.Error(codes.Unimplemented, "unknown service"),
		"another process has joined with the id of this member: give each member an id of its own": refusal(codes.FailedPrecondition, "REPLACED", "x"),
	} {
		l, listening := net.Listen("tcp", "127.0.0.1:0")
		if listening != nil {
			t.Fatal(listening)
		}
		server := grpc.NewServer()
		pb.RegisterRendezvousServer(server, refusingMaster{err: err})
		go func() { _ = server.Serve(l) }()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		found := (&Client{Locate: trainer.At(l.Addr().String()), Member: &pb.RingMember{Id: "a"}}).Run(ctx)
		if found == nil || !strings.Contains(found.Error(), want) || strings.Contains(found.Error(), "rpc error") {
			t.Errorf("expected %q, found %v", want, found)
		}
		cancel()
		server.Stop()
	}
}
