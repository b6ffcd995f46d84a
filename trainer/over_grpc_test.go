package trainer

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"trainmaster/internal/grpcserver"
	"trainmaster/master/netrpc/wire"
	pb "trainmaster/proto/trainmaster/v1"
)

// onePanic is a master whose first stream ends with a panic. Other streams answer that there is no task.
type onePanic struct {
	pb.UnimplementedCoordinatorServer
	streams atomic.Int32
}

// Work implements the service.
func (m *onePanic) Work(stream pb.Coordinator_WorkServer) error {
	first := m.streams.Add(1) == 1
	for {
		in, err := stream.Recv()
		if err != nil {
			return err
		}
		if first {
			return grpcserver.Common.Status(grpcserver.ErrPanic, "")
		}
		wait := &pb.TaskSpec{Task: &pb.TaskSpec_Wait{Wait: &pb.WaitTaskSpec{}}}
		if err := stream.Send(&pb.WorkReply{Id: in.GetId(), Content: &pb.WorkReply_Task{Task: wait}}); err != nil {
			return err
		}
	}
}

// refusing is a program that refuses each call with a code, without a reason of a master.
type refusing struct {
	pb.UnimplementedCoordinatorServer
	code  codes.Code
	calls atomic.Int32
	ended func()
}

// Join implements the service.
func (r *refusing) Join(context.Context, *pb.JoinRequest) (*pb.JoinReply, error) {
	if r.calls.Add(1) == 3 {
		r.ended()
	}
	return nil, status.Error(r.code, "not this call")
}

// An error that a repetition would get again ends the call with the code, the text and the address. An error that can pass is repeated.
func TestPermanentErrorEndsTheCall(t *testing.T) {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		t.Run(code.String(), func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			server, program := grpc.NewServer(), &refusing{code: code, ended: cancel}
			pb.RegisterCoordinatorServer(server, program)
			served := make(chan error, 1)
			go func() { served <- server.Serve(listener) }()
			log, _ := logtest.NewNullLogger()
			l := &link{locate: At(listener.Addr().String()), patience: time.Minute, log: logrus.NewEntry(log), protocol: GRPC}
			_, err = call[wire.JoinReply](ctx, l, "Join", wire.JoinRequest{})
			l.close()
			server.Stop()
			if err := <-served; err != nil {
				t.Error(err)
			}
			mayPass := map[codes.Code]bool{
				codes.Canceled: true, codes.Unknown: true, codes.DeadlineExceeded: true, codes.Unimplemented: true, codes.Aborted: true, codes.Internal: true, codes.Unavailable: true,
				codes.PermissionDenied: true, codes.Unauthenticated: true,
			}
			switch calls := program.calls.Load(); {
			case mayPass[code]:
				if calls < 3 || !errors.Is(err, context.Canceled) {
					t.Errorf("expected repetitions, found %d calls and %v", calls, err)
				}
			case calls != 1 || err == nil || !strings.Contains(err.Error(), "not this call"):
				t.Errorf("expected one call and its error, found %d calls and %v", calls, err)
			}
		})
	}
}

// A stream that the master has ended is not used again, also if its end is an answer.
func TestEndedStreamIsNotUsedAgain(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pb.RegisterCoordinatorServer(server, &onePanic{})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	log, _ := logtest.NewNullLogger()
	l := &link{locate: At(listener.Addr().String()), patience: time.Minute, log: logrus.NewEntry(log), protocol: GRPC}
	for i := range uint64(3) {
		_, err := call[wire.NextReply](t.Context(), l, "Next", &wire.NextRequest{Seq: i + 1, Want: true})
		if failed := err != nil; failed != (i == 0) {
			t.Errorf("request %d: found %v, expected an error of the first request alone", i+1, err)
		}
	}
	l.close()
	server.Stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
