package trainer_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"net"
	"strings"
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
	"trainmaster/recordio"
	"trainmaster/taskqueue"
	"trainmaster/taskqueue/onwire"
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

// evaluationSpec is a task that a leader sends. Its file does not exist.
func evaluationSpec(position int) *pb.TaskSpec {
	tok := taskqueue.Token{Epoch: 1, Kind: taskqueue.Evaluation, Dataset: 1, Pass: 1, Position: position, Attempt: 1}
	chunks := []taskqueue.Chunk{{Path: "none", Index: recordio.Index{Size: 10, Records: 3, Layout: 1}}}
	ranges := []taskqueue.RecordRange{{File: taskqueue.File{Path: "none"}, Records: 3, Length: chunks[0].Index.Layout.Extent(10, 3)}}
	return &pb.TaskSpec{TaskId: int64(tok.ID()), Token: onwire.Token(tok), Task: &pb.TaskSpec_EvaluationSpec{
		EvaluationSpec: onwire.EvaluationTask(&taskqueue.Round{Number: 1}, onwire.Data(onwire.Files(ranges, chunks), "")),
	}}
}

func TestEvaluationOfTheOwnModelIsChecked(t *testing.T) {
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{Queue: taskqueue.Options{SessionTTL: time.Hour}})
	_, control, _ := controlled(t, r, nil)
	for name, test := range map[string]struct {
		change func(*pb.TaskSpec)
		code   codes.Code
		words  string
	}{
		"whole":            {func(*pb.TaskSpec) {}, codes.Unimplemented, "Config.Evaluate"},
		"a model":          {func(s *pb.TaskSpec) { s.GetEvaluationSpec().Model = &pb.ModelSpec{ModelPath: "set-1"} }, codes.InvalidArgument, "evaluation_spec.model"},
		"another trainer":  {func(s *pb.TaskSpec) { s.GetEvaluationSpec().Model = &pb.ModelSpec{TrainerIp: "10.0.0.7:1"} }, codes.InvalidArgument, "evaluation_spec.model"},
		"an empty model":   {func(s *pb.TaskSpec) { s.GetEvaluationSpec().Model = &pb.ModelSpec{} }, codes.Unimplemented, "Config.Evaluate"},
		"a training task":  {func(s *pb.TaskSpec) { s.Task = &pb.TaskSpec_TrainingTask{} }, codes.InvalidArgument, "expected an evaluation task"},
		"no task":          {func(s *pb.TaskSpec) { s.Task = nil }, codes.InvalidArgument, "expected an evaluation task"},
		"no token":         {func(s *pb.TaskSpec) { s.Token = nil }, codes.InvalidArgument, "token"},
		"no kind":          {func(s *pb.TaskSpec) { s.Token.Kind += 256 }, codes.InvalidArgument, "token"},
		"token of another": {func(s *pb.TaskSpec) { s.Token.Position++ }, codes.InvalidArgument, "token"},
		"token of training": {func(s *pb.TaskSpec) {
			s.Token.Kind = pb.TaskKind_TASK_KIND_TRAINING
			s.TaskId = int64(onwire.TokenOf(s.Token).ID())
		}, codes.InvalidArgument, "token"},
	} {
		spec := evaluationSpec(0)
		test.change(spec)
		if _, err := control.EvaluateCurrentModel(t.Context(), spec); status.Code(err) != test.code || !strings.Contains(err.Error(), test.words) {
			t.Errorf("%s: found %v, expected %v with %q", name, err, test.code, test.words)
		}
	}
}

// A task is evaluated once, also if the leader repeats its call. A stop of the task ends the evaluation, and no other one.
func TestEvaluationOfTheOwnModelRunsOnce(t *testing.T) {
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{Queue: taskqueue.Options{SessionTTL: time.Hour}})
	began := make(chan *taskqueue.Task, 10)
	ended := make(chan error, 10)
	_, control, _ := controlledBy(t, r, trainer.Config{Evaluate: func(ctx context.Context, task *taskqueue.Task, records iter.Seq2[[]byte, error]) ([]byte, error) {
		for _, err := range records {
			if err == nil {
				t.Error("expected a missing file")
			}
		}
		began <- task
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return nil, context.Cause(ctx)
	}})
	first, second := evaluationSpec(0), evaluationSpec(1)
	for _, spec := range []*pb.TaskSpec{first, second} {
		for _, call := range []*pb.TaskSpec{first, spec, spec} {
			if _, err := control.EvaluateCurrentModel(t.Context(), call); err != nil {
				t.Fatal(err)
			}
		}
		task := <-began
		if task.Token != onwire.TokenOf(spec.GetToken()) || len(task.Chunks) != 1 {
			t.Fatalf("task %+v, expected %v", task, spec.GetToken())
		}
		if _, err := control.StopTask(t.Context(), &pb.StopTaskRequest{TaskId: spec.GetTaskId()}); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-ended:
			if !errors.Is(err, trainer.ErrStopped) {
				t.Errorf("end: %v", err)
			}
		case <-within(t).Done():
			t.Fatal("the stop ended no evaluation")
		}
	}
	if _, err := control.EvaluateCurrentModel(t.Context(), first); err != nil || len(began) > 0 {
		t.Errorf("a late call: %v, %d evaluations", err, len(began))
	}
}

// A client of the port cannot make a trainer keep tasks without limit.
func TestPendingEvaluationsAreLimited(t *testing.T) {
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{Queue: taskqueue.Options{SessionTTL: time.Hour}})
	_, control, _ := controlledBy(t, r, trainer.Config{Evaluate: func(ctx context.Context, _ *taskqueue.Task, _ iter.Seq2[[]byte, error]) ([]byte, error) {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}})
	accepted := 0
	var err error
	for ; err == nil && accepted < 10; accepted++ {
		_, err = control.EvaluateCurrentModel(t.Context(), evaluationSpec(accepted))
	}
	if status.Code(err) != codes.Unavailable || accepted != 5 || !strings.Contains(err.Error(), "at most 4 tasks") {
		t.Errorf("call %d: %v, expected the refusal of call 5", accepted, err)
	}
	if _, err := control.EvaluateCurrentModel(t.Context(), evaluationSpec(0)); err != nil {
		t.Errorf("a repeated call: %v", err)
	}
}

// A client that does not read its copy loses its place after the time limit, and another client gets the model.
func TestCopyOfAClientThatDoesNotReadEnds(t *testing.T) {
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{Queue: taskqueue.Options{SessionTTL: time.Hour}})
	want := bytes.Repeat([]byte("model"), 700_000)
	config := trainer.Config{Model: func(context.Context) (int64, []byte, error) { return 12, want, nil }}
	_, _, addr := controlledBy(t, r, trainer.WithCopyStall(config, 100*time.Millisecond))
	conn, err := grpcdial.OpenStatic(addr) // with windows that are smaller than the model
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
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("the copy of another client: %v", err)
		}
	}
	for err == nil { // the parts that were sent before
		_, err = stalled.Recv()
	}
	if status.Code(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), "no part read for 100ms") {
		t.Errorf("the client that has not read: found %v, expected DEADLINE_EXCEEDED with the time limit", err)
	}
	if trainer.CopyStall != 10*time.Second {
		t.Errorf("time limit: found %v, expected 10 s", trainer.CopyStall)
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
