package trainerclient

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

// stopped is a trainer that notes what it stops.
type stopped struct {
	pb.UnimplementedTrainerControlServer
	requests chan *pb.StopTaskRequest
}

func (s stopped) StopTask(_ context.Context, in *pb.StopTaskRequest) (*pb.StopTaskReply, error) {
	s.requests <- in
	return &pb.StopTaskReply{}, nil
}

func (stopped) GetProgress(context.Context, *pb.GetProgressRequest) (*pb.Progress, error) {
	return &pb.Progress{Epoch: 2, Iteration: 40, TaskId: 7}, nil
}

// A call goes to the address itself: no name is resolved, and no proxy of the environment is used.
func TestCallGoesToAnAddressOnly(t *testing.T) {
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	t.Setenv("HTTPS_PROXY", "http://"+proxy.Addr().String())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	trainer, server := stopped{requests: make(chan *pb.StopTaskRequest, 1)}, grpc.NewServer()
	pb.RegisterTrainerControlServer(server, trainer)
	ended := make(chan error)
	go func() { ended <- server.Serve(listener) }()
	defer func() {
		server.Stop()
		<-ended
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	task := taskqueue.Token{Epoch: 1, Pass: 3, Position: 7, Attempt: 2}
	if err := (Client{}).Stop(ctx, listener.Addr().String(), task); err != nil {
		t.Fatal(err)
	}
	if in := <-trainer.requests; in.GetTaskId() != int64(task.ID()) || in.GetToken().GetPosition() != 7 || in.GetToken().GetAttempt() != 2 {
		t.Errorf("request: %v, expected task %d", in, task.ID())
	}
	if task, iteration, err := (Client{}).Progress(ctx, listener.Addr().String()); err != nil || task != 7 || iteration != 40 {
		t.Errorf("progress: task %d, iteration %d, %v", task, iteration, err)
	}
	for _, name := range []string{"localhost:9000", "dns:///localhost:9000", "unix:///tmp/socket", "127.0.0.1", ""} {
		if err := (Client{}).Stop(ctx, name, task); err == nil || !strings.Contains(err.Error(), "expected ip:port") {
			t.Errorf("call to %q: %v", name, err)
		}
	}
}
