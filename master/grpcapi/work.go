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

// The bounds of unanswered requests. A request has at most largemsg.MaxShort bytes, and takes up to eight times as much memory.
const (
	maxUnanswered  = 16      // requests of a stream
	maxWaitingWork = 4 << 20 // bytes of the requests of a connection, without short requests
	shortWork      = 512     // bytes
)

// workStream is a stream of requests and answers. Its memory is bounded by the unanswered requests, and that of all streams of a connection by
// their bytes. A request is answered when its answer is accepted by the flow control of the stream.
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
	follows map[workTrainer]func() // release of each trainer that receives commands on the stream
	ended   bool                   // no trainer is added
	counted int64                  // bytes without an answer, in work of the connection

	// waiting has the requests behind the request in progress of their trainer. Without a key, there is none in progress.
	waiting map[workTrainer][]work
}

// work is a request.
type work struct {
	by    workTrainer
	in    *pb.WorkRequest
	bytes int64 // counted
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
		coordinator: c, stream: stream, unanswered: unanswered, ready: make(chan work), spare: make(chan struct{}, 1), waiting: map[workTrainer][]work{}, follows: map[workTrainer]func(){},
	}
	w.ctx, w.end = context.WithCancelCause(stream.Context())
	defer w.end(nil)
	c.streams.Go(func() {
		w.contain(w.receive)
		w.unfollow()
		w.workers.Wait()
		w.uncount(w.counted)
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
		next, err := w.next()
		if errors.Is(err, io.EOF) {
			close(w.ready)
			w.unfollow()
			w.workers.Wait()
			return io.EOF
		}
		if err != nil {
			return err
		}
		if err := checkWorkRequest(next.in); err != nil {
			return err
		}
		select {
		case w.unanswered <- struct{}{}:
		case <-w.ctx.Done():
			return context.Cause(w.ctx)
		}
		w.accept(next)
	}
}

// next receives a request. A large one waits, before it is decoded, until the unanswered requests of the connection leave it enough memory.
func (w *workStream) next() (next work, err error) {
	next.in = new(pb.WorkRequest)
	err = w.stream.RecvMsg(&grpcserver.Admitted{Message: next.in, Admit: func(bytes int) error {
		//guard:waiting-work-bytes
		if bytes <= shortWork {
			return nil
		}
		if err := connectionOf(w.ctx).work.Acquire(w.ctx, int64(bytes)); err != nil {
			return context.Cause(w.ctx)
		}
		next.bytes = int64(bytes)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.counted += next.bytes
		return nil
	}})
	next.by = trainerOf(next.in)
	return next, err
}

// uncount gives the memory of answered requests back.
func (w *workStream) uncount(bytes int64) {
	if bytes == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counted -= bytes
	connectionOf(w.ctx).work.Release(bytes)
}

func checkWorkRequest(in *pb.WorkRequest) error {
	switch {
	case in.GetId() == 0:
		return badArgument("id", "expected the number of the request from 1, found 0")
	case in.GetGetTask() == nil && in.GetPushResult() == nil:
		return badArgument("call", "expected get_task or push_result, found neither")
	}
	if push := in.GetPushResult(); push != nil {
		return checkLists(push.GetAsk(), push.GetRequest(), push)
	}
	return checkLists(in.GetGetTask(), nil, nil)
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
func (w *workStream) accept(next work) {
	w.mu.Lock()
	behind, busy := w.waiting[next.by]
	//guard:work-requests-in-order
	if busy {
		w.waiting[next.by] = append(behind, next)
		w.mu.Unlock()
		return
	}
	w.waiting[next.by] = nil
	w.mu.Unlock()
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
		if err := w.serve(next); err != nil {
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
func (w *workStream) serve(next work) error {
	for by := next.by; ; {
		// The end of the stream ends the wait for an answer, and never a session: the trainer continues on its next stream.
		//guard:work-end-keeps-session
		out, err := w.answer(next.in)
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
		w.uncount(next.bytes)
		<-w.unanswered
		w.mu.Lock()
		behind := w.waiting[by]
		if len(behind) == 0 {
			delete(w.waiting, by)
			w.mu.Unlock()
			return nil
		}
		next, behind[0] = behind[0], work{}
		w.waiting[by] = behind[1:]
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
	send := func(list []trainercontrol.Command) { w.command(by, list) }
	w.follows[by] = w.coordinator.master.OpenStream(by.ordinal, by.incarnation, send, func() { w.forget(by) })
}

// forget ends the commands to a trainer whose session has ended.
func (w *workStream) forget(by workTrainer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.follows, by)
}

// unfollow ends the commands.
func (w *workStream) unfollow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	//guard:ended-stream-released
	for _, release := range w.follows {
		release()
	}
	clear(w.follows)
}

// command sends commands to a trainer. A stream whose client does not read keeps one list of commands: heartbeats repeat the others.
func (w *workStream) command(to workTrainer, list []trainercontrol.Command) {
	//guard:unread-stream-drops-commands
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
