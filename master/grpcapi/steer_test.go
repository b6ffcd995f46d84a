package grpcapi_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"trainmaster/master"
	"trainmaster/master/mastertest"
	"trainmaster/master/pscontrol"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

// do makes a call that must succeed.
func do[Request, Reply any](t *testing.T, call func(context.Context, Request, ...grpc.CallOption) (Reply, error), req Request) Reply {
	t.Helper()
	reply, err := call(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

// outcome is the result of a request for a task.
type outcome struct {
	reply master.Reply
	err   error
}

// asking sends a request that finishes tasks and wants a task. The request may take long.
func (c *client) asking(results ...taskqueue.Result) chan outcome {
	c.req.Seq++
	c.req.Ack, c.req.Want = c.req.Seq, true
	req := c.req
	req.Finished = results
	got := make(chan outcome, 1)
	go func() {
		reply, err := c.s.Next(c.t.Context(), &req)
		got <- outcome{reply, err}
	}()
	return got
}

func TestPauseAndResume(t *testing.T) {
	s := serve(t, 10, master.Config{})
	o := pb.NewAdminClient(s.conn)
	a := s.join(t, "a")
	first := a.next()
	do(t, o.Pause, &pb.PauseRequest{Reason: "a new disk"})
	status := do(t, o.Status, &pb.StatusRequest{})
	if status.Status != pb.JobStatus_JOB_STATUS_PAUSED || status.Reason != "paused by an operator: a new disk" {
		t.Errorf("after Pause: %v", status)
	}

	// A finish counts, and its sender waits for the end of the pause.
	got := a.asking(finished(first))
	mastertest.Eventually(t, "a counted finish", func() bool { return do(t, o.Status, &pb.StatusRequest{}).Datasets[0].Done == 1 })
	select {
	case answer := <-got:
		t.Fatalf("paused job: expected no answer, got %+v", answer)
	default:
	}
	do(t, o.Resume, &pb.ResumeRequest{})
	if answer := <-got; answer.err != nil || answer.reply.Assignment == nil {
		t.Errorf("after Resume: %+v, expected a task", answer)
	}
}

func TestDrain(t *testing.T) {
	s := serve(t, 2, master.Config{})
	o := pb.NewAdminClient(s.conn)
	a, b := s.join(t, "a"), s.join(t, "b")
	running, prefetched := a.next(), a.next()
	waits := b.asking() // no task is left for it
	do(t, o.Drain, &pb.DrainRequest{Trainer: "a"})
	if answer := <-waits; answer.err != nil || answer.reply.Assignment == nil || answer.reply.Assignment.Task.Index != prefetched.Index {
		t.Fatalf("b: got %+v, expected task %d, prefetched by a", answer, prefetched.Index)
	}
	h := taskqueue.Heartbeat{Trainer: a.req.Trainer, Incarnation: a.req.Incarnation}
	if orders, err := s.Heartbeat(t.Context(), &h); err != nil || !orders.Draining {
		t.Errorf("a heartbeat of a: %+v, %v", orders, err)
	}
	for _, trainer := range do(t, o.ListTrainers, &pb.ListTrainersRequest{}).Trainers {
		if trainer.Draining != (trainer.Id == "a") {
			t.Errorf("%v", trainer)
		}
	}
	if answer := <-a.asking(finished(running)); !errors.Is(answer.err, master.ErrDrained) {
		t.Errorf("finish of the last task of a: got %+v, expected ErrDrained", answer)
	}
	if d := do(t, o.Status, &pb.StatusRequest{}).Datasets[0]; d.Done != 1 || d.Pending != 1 {
		t.Errorf("last task of a: expected it to count, found %v", d)
	}

	// A trainer that waits for a task is answered immediately, before the end of its long poll.
	c := s.join(t, "c")
	waits = c.asking()
	began := time.Now()
	do(t, o.Drain, &pb.DrainRequest{Trainer: "c"})
	if answer := <-waits; !errors.Is(answer.err, master.ErrDrained) || time.Since(began) > 5*time.Second {
		t.Errorf("waiting trainer c: got %+v after %v, expected ErrDrained immediately", answer, time.Since(began))
	}
}

func TestRetryAndDrop(t *testing.T) {
	s := serve(t, 100, master.Config{Queue: taskqueue.Options{MaxFailures: 1}})
	o := pb.NewAdminClient(s.conn)
	a := s.join(t, "a")
	task := a.next()
	for range 80 { // the second failure exceeds the limit
		task = a.next(failed(task, "torn"))
	}
	list := func() (aside, dropped []uint64) {
		t.Helper()
		reply := do(t, o.ListTasks, &pb.ListTasksRequest{States: []pb.TaskState{pb.TaskState_TASK_STATE_SET_ASIDE}})
		for _, e := range reply.Tasks {
			if aside = append(aside, e.Index); e.Dropped {
				dropped = append(dropped, e.Index)
			}
		}
		return aside, dropped
	}
	aside, _ := list()
	if len(aside) != 40 {
		t.Fatalf("set aside: found %v, expected 40", aside)
	}
	do(t, o.DropTask, &pb.DropTaskRequest{Index: aside[0]})
	if _, dropped := list(); len(dropped) != 1 || dropped[0] != aside[0] {
		t.Errorf("dropped: found %v, expected task %d", dropped, aside[0])
	}
	_, err := o.RetryTask(t.Context(), &pb.RetryTaskRequest{Which: &pb.RetryTaskRequest_Index{Index: aside[0]}})
	wants(t, err, codes.FailedPrecondition, "DROPPED", "stays set aside")
	if n := do(t, o.RetryTask, &pb.RetryTaskRequest{Which: &pb.RetryTaskRequest_Index{Index: aside[1]}}).Retried; n != 1 {
		t.Errorf("retried: found %d, expected 1", n)
	}
	_, err = o.DropTask(t.Context(), &pb.DropTaskRequest{Index: aside[1]})
	wants(t, err, codes.FailedPrecondition, "NOT_SET_ASIDE", "and 19 more")
	if n := do(t, o.RetryTask, &pb.RetryTaskRequest{Which: &pb.RetryTaskRequest_All{All: true}}).Retried; n != 38 {
		t.Errorf("retried: found %d, expected the other 38", n)
	}
	if left, _ := list(); len(left) != 1 || left[0] != aside[0] {
		t.Errorf("set aside: found %v, expected the dropped task", left)
	}
}

func TestSteeringErrors(t *testing.T) {
	s := serve(t, 1, master.Config{Job: "digits", Queue: taskqueue.Options{Passes: 1}})
	o := pb.NewAdminClient(s.conn)
	a := s.join(t, "a")
	_, err := o.Drain(t.Context(), &pb.DrainRequest{})
	wants(t, err, codes.InvalidArgument, "BAD_ARGUMENT", "trainer")
	_, err = o.Drain(t.Context(), &pb.DrainRequest{Trainer: "b"})
	wants(t, err, codes.NotFound, "NO_SUCH_TRAINER", `"b"`, "there are a")
	_, err = o.Pause(t.Context(), &pb.PauseRequest{Job: "mnist"})
	wants(t, err, codes.NotFound, "OTHER_JOB")
	_, err = o.RetryTask(t.Context(), &pb.RetryTaskRequest{})
	wants(t, err, codes.InvalidArgument, "BAD_ARGUMENT", "index", "all")
	_, err = o.RetryTask(t.Context(), &pb.RetryTaskRequest{Which: &pb.RetryTaskRequest_Index{Index: 1 << 63}})
	wants(t, err, codes.InvalidArgument, "BAD_ARGUMENT", "index")
	_, err = o.DropTask(t.Context(), &pb.DropTaskRequest{Dataset: 7})
	wants(t, err, codes.FailedPrecondition, "NOT_SET_ASIDE", "dataset 7", "1 datasets")
	task := a.next()
	if answer := <-a.asking(finished(task)); !errors.Is(answer.err, master.ErrJobFinished) {
		t.Fatalf("%+v, expected the end of the job", answer)
	}
	_, err = o.Pause(t.Context(), &pb.PauseRequest{})
	wants(t, err, codes.FailedPrecondition, "JOB_OVER", "ended")
	_, err = o.Resume(t.Context(), &pb.ResumeRequest{})
	wants(t, err, codes.FailedPrecondition, "JOB_OVER", "ended")
}

// rated are parameter servers with a learning rate.
type rated struct{ pscontrol.None }

func (rated) States(context.Context) ([]pscontrol.ServerState, error) {
	return []pscontrol.ServerState{{Present: true, LearningRate: 0.5}}, nil
}

func reason(err error) string {
	info, _, _ := details(err)
	return info.GetReason()
}

func TestSetJob(t *testing.T) {
	s := serve(t, 2, master.Config{Servers: pscontrol.New(pscontrol.Config{Servers: rated{}})})
	o := pb.NewAdminClient(s.conn)
	want := &pb.LearningRate{Rate: 0.25, Scale: 0.5}
	reply := do(t, o.SetJob, &pb.SetJobRequest{LearningRate: new(float32(0.25)), Weights: map[string]uint32{"training": 7}})
	if !proto.Equal(reply.LearningRate, want) {
		t.Errorf("expected %v, found %v", want, reply)
	}
	if status := do(t, o.Status, &pb.StatusRequest{}); !proto.Equal(status.LearningRate, want) {
		t.Errorf("status: expected %v, found %v", want, status.LearningRate)
	}
	for name, request := range map[string]*pb.SetJobRequest{
		"BAD_ARGUMENT": {},
		"BAD_SETTING":  {LearningRate: new(float32(0.1)), Weights: map[string]uint32{"books": 7}},
		"OTHER_JOB":    {Job: "other", LearningRate: new(float32(0.1))},
	} {
		if _, err := o.SetJob(t.Context(), request); reason(err) != name {
			t.Errorf("%v: expected %s, found %v", request, name, err)
		}
	}
	for _, rate := range []float32{0, -1, float32(math.NaN()), float32(math.Inf(1))} {
		if _, err := o.SetJob(t.Context(), &pb.SetJobRequest{LearningRate: &rate}); reason(err) != "BAD_ARGUMENT" {
			t.Errorf("learning rate %v: expected BAD_ARGUMENT, found %v", rate, err)
		}
	}
	if status := do(t, o.Status, &pb.StatusRequest{}); !proto.Equal(status.LearningRate, want) {
		t.Errorf("after refused requests: expected %v, found %v", want, status.LearningRate)
	}
}

// Requests about datasets that cannot grow have their own reasons.
func TestAppendAndCloseDataset(t *testing.T) {
	s := serve(t, 2, master.Config{})
	o := pb.NewAdminClient(s.conn)
	for name, request := range map[string]*pb.AppendDatasetRequest{
		"BAD_ARGUMENT":    {Name: "training"},
		"NO_SUCH_DATASET": {Name: "books", Paths: []string{"/data/none"}},
		"NOT_ONLINE":      {Name: "training", Paths: []string{"/data/none"}},
		"OTHER_JOB":       {Job: "other", Name: "training", Paths: []string{"/data/none"}},
	} {
		if _, err := o.AppendDataset(t.Context(), request); reason(err) != name {
			t.Errorf("%v: expected %s, found %v", request, name, err)
		}
	}
	for name, request := range map[string]*pb.CloseDatasetRequest{
		"BAD_ARGUMENT": {}, "NO_SUCH_DATASET": {Name: "books"}, "NOT_ONLINE": {Name: "training"}, "OTHER_JOB": {Job: "other", Name: "training"},
	} {
		if _, err := o.CloseDataset(t.Context(), request); reason(err) != name {
			t.Errorf("%v: expected %s, found %v", request, name, err)
		}
	}
	if err := s.ReportSet(t.Context(), taskqueue.SetSpec{Name: "clicks", Online: true}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := o.CloseDataset(t.Context(), &pb.CloseDatasetRequest{Name: "clicks"}); reason(err) != "EMPTY_DATASET" {
		t.Errorf("close of an empty dataset: got %v", err)
	}
	if d := do(t, o.Status, &pb.StatusRequest{}).Datasets; !d[1].Online || d[1].Closed || d[0].Online || !d[0].Closed {
		t.Errorf("found %v", d)
	}
}
