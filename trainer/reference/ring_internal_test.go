package reference

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/trainer"
	"trainmaster/trainer/rendezvous"
)

// stateMaster is the leader of a ring that sends one state.
type stateMaster struct {
	pb.UnimplementedRendezvousServer
	state pb.RingState
}

func (stateMaster) Join(context.Context, *pb.RingJoinRequest) (*pb.RingJoinReply, error) {
	return &pb.RingJoinReply{}, nil
}

func (m stateMaster) Watch(_ *pb.RingWatchRequest, stream pb.Rendezvous_WatchServer) error {
	if err := stream.Send(&pb.RingUpdate{State: m.state}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}

// F340: a member that waits without a generation is idle immediately.
func TestMemberWithoutAGenerationIsIdle(t *testing.T) {
	for _, state := range []pb.RingState{pb.RingState_RING_STATE_WAITING, pb.RingState_RING_STATE_PARKED} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		pb.RegisterRendezvousServer(server, stateMaster{state: state})
		go func() { _ = server.Serve(l) }()
		m := &memberships{ended: make(chan struct{}), client: &rendezvous.Client{Locate: trainer.At(l.Addr().String()), Member: &pb.RingMember{Id: "a"}}}
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			m.err = m.client.Run(ctx)
			close(m.ended)
		}()
		isIdle := errors.New("idle")
		limit := time.AfterFunc(20*time.Second, func() { cancel(errors.New("no call of idle")) })
		if _, err := m.Next(ctx, 0, func() { cancel(isIdle) }); !errors.Is(err, isIdle) {
			t.Errorf("%v: %v", state, err)
		}
		limit.Stop()
		<-m.ended
		server.Stop()
	}
}
