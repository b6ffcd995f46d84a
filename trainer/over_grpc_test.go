package trainer

import (
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"google.golang.org/grpc"

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
