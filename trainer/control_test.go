package trainer_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/internal/freeport"
	"trainmaster/internal/grpcdial"
	"trainmaster/master"
	"trainmaster/master/mastertest"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
	"trainmaster/trainer"
)

// controlled joins a trainer with a port for control, and returns a client of the port.
func controlled(t *testing.T, r *mastertest.Running, model func(context.Context) (int64, []byte, error)) (*trainer.Client, pb.TrainerControlClient, string) {
	t.Helper()
	return controlledBy(t, r, trainer.Config{Model: model})
}

func controlledBy(t *testing.T, r *mastertest.Running, config trainer.Config) (*trainer.Client, pb.TrainerControlClient, string) {
	t.Helper()
	addr, err := freeport.Addr("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	logger, _ := logtest.NewNullLogger()
	config.ID, config.Locate, config.Log, config.Control = "a", trainer.At(r.Addr), logrus.NewEntry(logger), addr
	config.Heartbeat = cmp.Or(config.Heartbeat, time.Hour) // no command comes with a heartbeat
	c, err := trainer.Join(within(t), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return c, pb.NewTrainerControlClient(conn), addr
}

func TestStopTaskStopsTheNamedDispatchOnly(t *testing.T) {
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{Queue: taskqueue.Options{SessionTTL: time.Hour}})
	r.Register(3)
	c, control, _ := controlled(t, r, nil)
	task := next(t, c, nil)
	running, release := c.UntilStopped(t.Context(), task)
	defer release()
	id := int64(task.Token.ID())
	other := &pb.Token{Epoch: 1, Kind: pb.TaskKind_TASK_KIND_TRAINING, Pass: 1, Attempt: 2}
	for _, request := range []*pb.StopTaskRequest{{TaskId: id + 1}, {TaskId: -id}, {TaskId: id, Token: other}} {
		if _, err := control.StopTask(t.Context(), request); err != nil || running.Err() != nil {
			t.Fatalf("stop of %v: %v, %v", request, err, context.Cause(running))
		}
	}
	c.Progressed(10, 0.5)
	if p, err := control.GetProgress(t.Context(), &pb.GetProgressRequest{}); err != nil || p.GetTaskId() != id || p.GetEpoch() != 1 || p.GetIteration() != 1 {
		t.Errorf("progress: %v, %v", p, err)
	}
	if _, err := control.StopTask(t.Context(), &pb.StopTaskRequest{TaskId: id}); err != nil {
		t.Fatal(err)
	}
	<-running.Done()
	if cause := context.Cause(running); !errors.Is(cause, trainer.ErrStopped) {
		t.Errorf("cause: %v", cause)
	}
	newer := next(t, c, nil)
	running, release = c.UntilStopped(t.Context(), newer)
	defer release()
	if _, err := control.StopTask(t.Context(), &pb.StopTaskRequest{TaskId: id}); err != nil || running.Err() != nil {
		t.Errorf("late stop: %v, %v", err, context.Cause(running))
	}
	if _, err := control.StopTask(t.Context(), &pb.StopTaskRequest{}); err != nil {
		t.Fatal(err)
	}
	<-running.Done() // a stop without a number is about what runs
}

func TestCopyOfAModelIsWhole(t *testing.T) {
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{Queue: taskqueue.Options{SessionTTL: time.Hour}})
	want := bytes.Repeat([]byte("model"), 700_000)
	began := false
	_, control, addr := controlled(t, r, func(context.Context) (int64, []byte, error) {
		if !began {
			began = true
			return 0, nil, trainer.ErrNoModel
		}
		return 12, want, nil
	})
	if _, err := trainer.CopyModel(t.Context(), addr, new(bytes.Buffer)); status.Code(errors.Unwrap(err)) != codes.Unavailable && !errors.Is(err, trainer.ErrIncompleteModel) {
		t.Errorf("copy before the first model: %v", err)
	}
	var copied bytes.Buffer
	if version, err := trainer.CopyModel(t.Context(), addr, &copied); err != nil || version != 12 || !bytes.Equal(copied.Bytes(), want) {
		t.Errorf("copy: version %d, %d bytes, %v", version, copied.Len(), err)
	}
	stream, err := control.GetModel(t.Context(), &pb.GetModelRequest{})
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256(want)
	for left := len(want); left > 0; {
		part, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		left -= len(part.GetContent())
		if last := left == 0; len(part.GetContent()) > 1<<20 || (len(part.GetDigest()) > 0) != last || last && !bytes.Equal(part.GetDigest(), digest[:]) {
			t.Errorf("part of %d bytes, %d left: digest %x", len(part.GetContent()), left, part.GetDigest())
		}
	}
}

// A client that does not read its copy loses its place, and another client gets the model.
func TestCopyOfAClientThatDoesNotReadEnds(t *testing.T) {
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{Queue: taskqueue.Options{SessionTTL: time.Hour}})
	want := bytes.Repeat([]byte("model"), 700_000)
	config := trainer.Config{Model: func(context.Context) (int64, []byte, error) { return 12, want, nil }}
	_, _, addr := controlledBy(t, r, trainer.WithCopyStall(config, 100*time.Millisecond))
	conn, err := grpcdial.Open(addr) // with windows that are smaller than the model
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stalled, err := pb.NewTrainerControlClient(conn).GetModel(t.Context(), &pb.GetModelRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stalled.Recv(); err != nil { // its copy has begun
		t.Fatal(err)
	}
	ctx := within(t)
	for {
		var copied bytes.Buffer
		_, err := trainer.CopyModel(ctx, addr, &copied)
		if err == nil && bytes.Equal(copied.Bytes(), want) {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("the copy of another client: %v", err)
		}
	}
}

// parts is a trainer that sends these parts of a model.
type parts struct {
	pb.UnimplementedTrainerControlServer
	list []*pb.Model
	err  error
}

func (p parts) GetModel(_ *pb.GetModelRequest, stream grpc.ServerStreamingServer[pb.Model]) error {
	for _, part := range p.list {
		if err := stream.Send(part); err != nil {
			return err
		}
	}
	return p.err
}

func TestIncompleteModelIsRefused(t *testing.T) {
	content := []byte("model")
	digest := sha256.Sum256(content)
	for name, trainerOf := range map[string]parts{
		"no digest":              {list: []*pb.Model{{Content: content}}},
		"nothing":                {},
		"another digest":         {list: []*pb.Model{{Content: content[1:], Digest: digest[:]}}},
		"a digest in the middle": {list: []*pb.Model{{Content: content, Digest: digest[:]}, {Content: content}}},
		"an error at the end":    {list: []*pb.Model{{Content: content, Digest: digest[:]}}, err: fmt.Errorf("disk")},
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			server := grpc.NewServer()
			pb.RegisterTrainerControlServer(server, trainerOf)
			ended := make(chan error)
			go func() { ended <- server.Serve(listener) }()
			defer func() {
				server.Stop()
				<-ended
			}()
			if _, err := trainer.CopyModel(t.Context(), listener.Addr().String(), new(bytes.Buffer)); !errors.Is(err, trainer.ErrIncompleteModel) {
				t.Errorf("found %v, expected an incomplete model", err)
			}
		})
	}
}
