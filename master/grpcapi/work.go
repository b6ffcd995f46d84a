package grpcapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"

	"github.com/sirupsen/logrus"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"trainmaster/internal/grpcserver"
	"trainmaster/master"
	"trainmaster/master/trainercontrol"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

const maxUnanswered = 16 // requests of a stream, of at most largemsg.MaxShort bytes

// workStream is a stream of requests and answers. Its memory is bounded by the unanswered requests: a request is answered when its
// answer is accepted by the flow control of the stream.
type workStream struct {
	coordinator *coordinator
	stream      pb.Coordinator_WorkServer
	ctx         context.Context // ends with the stream
	end         context.CancelCauseFunc
	unanswered  chan struct{} // a token for each unanswered request
	sending     sync.Mutex    // one answer at a time

	workers sync.WaitGroup
	ready   chan work     // to the worker that waits for a request
	spare   chan struct{} // a token if a worker waits: at most one does

	pushing sync.Mutex // held while commands are sent

	mu      sync.Mutex
	follows map[workTrainer]func()            // trainers that receive commands on the stream, with the end of that
	ended   bool                              // no trainer is added
	waiting map[workTrainer][]*pb.WorkRequest // behind the request in progress of their trainer; no key: there is none in progress
}

// work is a request that no other request of its trainer precedes.
type work struct {
	by workTrainer
	in *pb.WorkRequest
}

// workTrainer is the trainer of a request.
type workTrainer struct {
	ordinal     taskqueue.Ordinal
	incarnation uint64
	plain       int32 // without a session: its trainer_id
	result      int64 // without a session, of a result that asks for no task: the number of the task
}

// Work implements the service.
func (c *coordinator) Work(stream pb.Coordinator_WorkServer) error {
	//guard:term-end-ends-work
	termOver := c.master.TermDone()
	if !c.master.Leading() {
		return master.ErrNotLeader
	}
	//guard:unanswered-work-limit
	unanswered := make(chan struct{}, maxUnanswered)
	w := &workStream{
		coordinator: c, stream: stream, unanswered: unanswered, ready: make(chan work), spare: make(chan struct{}, 1), waiting: map[workTrainer][]*pb.WorkRequest{}, follows: map[workTrainer]func(){},
	}
	w.ctx, w.end = context.WithCancelCause(stream.Context())
	defer w.end(nil)
	c.streams.Go(func() {
		w.contain(w.receive)
		w.unfollow()
		w.workers.Wait()
	})
	select {
	case <-termOver:
		return master.ErrNotLeader
	case <-w.ctx.Done():
	}
	if err := context.Cause(w.ctx); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// receive takes requests until the stream ends. After the last request of the client, it waits for the answers.
func (w *workStream) receive() error {
	for {
		in, err := w.stream.Recv()
		if errors.Is(err, io.EOF) {
			close(w.ready)
			w.unfollow()
			w.workers.Wait()
			return io.EOF
		}
		if err != nil {
			return err
		}
		if err := checkWorkRequest(in); err != nil {
			return err
		}
		select {
		case w.unanswered <- struct{}{}:
		case <-w.ctx.Done():
			return context.Cause(w.ctx)
		}
		w.accept(in)
	}
}

func checkWorkRequest(in *pb.WorkRequest) error {
	switch {
	case in.GetId() == 0:
		return badArgument("id", "expected the number of the request from 1, found 0")
	case in.GetGetTask() == nil && in.GetPushResult() == nil:
		return badArgument("call", "expected get_task or push_result, found neither")
	}
	// A list of small messages takes many times its size in memory while the request waits.
	info, request := in.GetGetTask(), in.GetGetTask().GetRequest()
	if push := in.GetPushResult(); push != nil {
		info, request = push.GetAsk(), push.GetRequest()
	}
	for _, r := range []*pb.Request{request, info.GetRequest()} {
		//guard:work-request-lists-limit
		if n := len(r.GetHeld()); n > master.MaxHeld {
			return badArgument("request.held", "expected at most %d tasks, found %d", master.MaxHeld, n)
		}
	}
	return nil
}

// trainerOf returns the trainer of a request.
func trainerOf(in *pb.WorkRequest) workTrainer {
	info, request := in.GetGetTask(), in.GetGetTask().GetRequest()
	if push := in.GetPushResult(); push != nil {
		info, request = push.GetAsk(), push.GetRequest()
	}
	switch {
	case request != nil:
	case info == nil:
		return workTrainer{result: in.GetPushResult().GetTaskId()}
	default:
		return workTrainer{plain: info.GetTrainerId()}
	}
	o, incarnation := sessionOf(request)
	return workTrainer{ordinal: o, incarnation: incarnation}
}

// accept starts a request when the request of its trainer before it is answered.
func (w *workStream) accept(in *pb.WorkRequest) {
	by := trainerOf(in)
	w.mu.Lock()
	behind, busy := w.waiting[by]
	//guard:work-requests-in-order
	if busy {
		w.waiting[by] = append(behind, in)
		w.mu.Unlock()
		return
	}
	w.waiting[by] = nil
	w.mu.Unlock()
	next := work{by, in}
	select {
	case w.ready <- next:
	default:
		w.workers.Go(func() { w.contain(func() error { return w.work(next) }) })
	}
}

// work serves requests until the stream ends, or until another worker waits already. A goroutine for each request would cost a tenth of
// the processor time, because its stack must grow.
func (w *workStream) work(next work) error {
	for {
		if err := w.serve(next.by, next.in); err != nil {
			return err
		}
		select {
		case w.spare <- struct{}{}:
		default:
			return nil
		}
		var more bool
		select {
		case next, more = <-w.ready:
		case <-w.ctx.Done():
		}
		<-w.spare
		if !more {
			return nil
		}
	}
}

// serve answers a request of a trainer, and then the requests that have arrived behind it.
func (w *workStream) serve(by workTrainer, in *pb.WorkRequest) error {
	for {
		// The end of the stream ends the wait for an answer, and never a session: the trainer continues on its next stream.
		//guard:work-end-keeps-session
		out, err := w.answer(in)
		if err != nil {
			return err
		}
		if err := w.send(out); err != nil {
			return err
		}
		//guard:stream-has-commands
		if by.ordinal != 0 && out.GetError() == nil {
			w.follow(by)
		}
		<-w.unanswered
		w.mu.Lock()
		behind := w.waiting[by]
		if len(behind) == 0 {
			delete(w.waiting, by)
			w.mu.Unlock()
			return nil
		}
		in, w.waiting[by] = behind[0], behind[1:]
		w.mu.Unlock()
	}
}

// follow lets a trainer with a session, whose request was answered, receive commands on the stream.
func (w *workStream) follow(by workTrainer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.follows[by]; ok || w.ended {
		return
	}
	w.follows[by] = w.coordinator.master.OpenStream(by.ordinal, func(list []trainercontrol.Command) { w.command(by, list) })
}

// unfollow ends the commands.
func (w *workStream) unfollow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	for _, release := range w.follows {
		release()
	}
	clear(w.follows)
}

// command sends commands to a trainer. A stream whose client does not read keeps one list of commands: heartbeats repeat the others.
func (w *workStream) command(to workTrainer, list []trainercontrol.Command) {
	if !w.pushing.TryLock() {
		return
	}
	w.workers.Go(func() {
		defer w.pushing.Unlock()
		w.contain(func() error {
			for _, c := range list {
				session := &pb.Session{Ordinal: uint32(to.ordinal), Incarnation: to.incarnation}
				if err := w.send(&pb.WorkReply{Content: &pb.WorkReply_Command{Command: commandToProto(c)}, Session: session}); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func (w *workStream) send(out *pb.WorkReply) error {
	w.sending.Lock()
	defer w.sending.Unlock()
	return w.stream.Send(out)
}

// answer makes the call of a request. An error ends the stream.
func (w *workStream) answer(in *pb.WorkRequest) (*pb.WorkReply, error) {
	out := &pb.WorkReply{Id: in.GetId()}
	var err error
	if info := in.GetGetTask(); info != nil {
		var spec *pb.TaskSpec
		spec, err = w.coordinator.GetTask(w.ctx, info)
		out.Content = &pb.WorkReply_Task{Task: spec}
	} else {
		var reply *pb.PushResultResponse
		reply, err = w.coordinator.PushResult(w.ctx, in.GetPushResult())
		out.Content = &pb.WorkReply_Result{Result: reply}
	}
	if err != nil {
		refusal := table.Status(err, "")
		if endsWork(refusal) {
			return nil, err
		}
		out.Content = &pb.WorkReply_Error{Error: workError(refusal)}
	}
	return out, nil
}

// endsWork reports whether the client must look for another master, or has gone.
func endsWork(refusal error) bool {
	switch status.Code(refusal) {
	case codes.Canceled, codes.DeadlineExceeded:
		return true
	case codes.Unavailable:
		reason := grpcserver.Reason(refusal)
		return reason == "NOT_LEADER" || reason == "STOPPING"
	}
	return false
}

// workError translates a status.
func workError(refusal error) *pb.WorkError {
	s := status.Convert(refusal)
	out := &pb.WorkError{Code: int32(s.Code()), Text: s.Message()}
	for _, detail := range s.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			out.Reason = d.GetReason()
		case *errdetails.RetryInfo:
			out.RetryAfter = d.GetRetryDelay().AsDuration().Seconds()
		case *errdetails.BadRequest:
			out.Field = d.GetFieldViolations()[0].GetField()
		}
	}
	return out
}

// contain runs a goroutine of the stream. Its error, or its panic, ends this stream alone.
func (w *workStream) contain(run func() error) {
	defer func() {
		if r := recover(); r != nil {
			w.coordinator.log.WithFields(logrus.Fields{"method": "Work", "panic": r, "stack": string(debug.Stack())}).Error("a stream was dropped")
			//guard:panic-ends-stream
			w.end(fmt.Errorf("%w: %v; the stack is in the log of the master", grpcserver.ErrPanic, r))
		}
	}()
	if err := run(); err != nil {
		w.end(err)
	}
}
