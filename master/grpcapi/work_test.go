package grpcapi_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/component"
	"trainmaster/master/grpcapi"
	"trainmaster/master/mastertest"
	"trainmaster/master/trainercontrol"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

// worker is a client of Work.
type worker struct {
	t      *testing.T
	stream pb.Coordinator_WorkClient
	id     uint64
	cancel context.CancelFunc
}

func work(t *testing.T, conn *grpc.ClientConn) *worker {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	stream, err := pb.NewCoordinatorClient(conn).Work(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return &worker{t: t, stream: stream, cancel: cancel}
}

func (w *worker) send(in *pb.WorkRequest) {
	w.t.Helper()
	w.id++
	in.Id = w.id
	if err := w.stream.Send(in); err != nil {
		w.t.Fatal(err)
	}
}

func (w *worker) sendGet(info *pb.TrainerInfo) {
	w.send(&pb.WorkRequest{Call: &pb.WorkRequest_GetTask{GetTask: info}})
}

func (w *worker) sendPush(result *pb.TaskResult) {
	w.send(&pb.WorkRequest{Call: &pb.WorkRequest_PushResult{PushResult: result}})
}

func (w *worker) receive() *pb.WorkReply {
	w.t.Helper()
	out, err := w.stream.Recv()
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

func (w *worker) get(info *pb.TrainerInfo) *pb.TaskSpec {
	w.t.Helper()
	w.sendGet(info)
	return w.receive().GetTask()
}

func (w *worker) push(result *pb.TaskResult) *pb.PushResultResponse {
	w.t.Helper()
	w.sendPush(result)
	return w.receive().GetResult()
}

// ends returns the error that ends the stream.
func (w *worker) ends() error {
	w.t.Helper()
	for {
		if _, err := w.stream.Recv(); err != nil {
			return err
		}
	}
}

// joinOver begins a session, and returns a function that makes its requests.
func joinOver(t *testing.T, conn *grpc.ClientConn, id string) func(seq, ack uint64, held ...*pb.TaskSpec) *pb.Request {
	t.Helper()
	joined, err := pb.NewCoordinatorClient(conn).Join(t.Context(), &pb.JoinRequest{Id: id})
	if err != nil {
		t.Fatal(err)
	}
	return func(seq, ack uint64, held ...*pb.TaskSpec) *pb.Request {
		r := &pb.Request{Session: joined.GetSession(), Seq: seq, Ack: ack}
		for _, task := range held {
			r.Held = append(r.Held, task.GetToken())
		}
		return r
	}
}

// A trainer with a session and two without train a job on one stream. The session prefetches: it trains one task and holds the next.
func TestWorkTrainsAJob(t *testing.T) {
	const tasks = 60
	s := serve(t, tasks, master.Config{Queue: taskqueue.Options{Passes: 1}})
	request := joinOver(t, s.conn, "a")
	w := work(t, s.conn)
	trained := map[int64]int{}
	finish := func(spec *pb.TaskSpec, result *pb.TaskResult) *pb.TaskSpec {
		trained[spec.GetTaskId()]++
		reply := w.push(result)
		if reply.GetStatus() != pb.PushResultResponse_STATUS_COUNTED {
			t.Fatalf("result of task %d: %v", spec.GetTaskId(), reply)
		}
		return reply.GetNext()
	}
	for id := range int32(2) { // without a session
		spec := w.get(&pb.TrainerInfo{TrainerId: id})
		for range 9 {
			spec = finish(spec, &pb.TaskResult{TaskId: spec.GetTaskId(), Ask: &pb.TrainerInfo{TrainerId: id}})
		}
		finish(spec, &pb.TaskResult{TaskId: spec.GetTaskId()})
	}
	running := w.get(&pb.TrainerInfo{Request: request(1, 1)})
	next := w.get(&pb.TrainerInfo{Request: request(2, 2, running)})
	for seq := uint64(3); next.GetTrainingTask() != nil; seq++ {
		after := finish(running, &pb.TaskResult{Token: running.GetToken(), Request: request(seq, seq, next), Ask: &pb.TrainerInfo{}})
		running, next = next, after
	}
	end := finish(running, &pb.TaskResult{Token: running.GetToken(), Request: request(100, 100), Ask: &pb.TrainerInfo{}})
	if end.GetEnd().GetReason() != pb.EndTaskSpec_REASON_PASSES_DONE {
		t.Errorf("after the last task: %v", end)
	}
	if len(trained) != tasks {
		t.Errorf("expected %d trained tasks, found %d", tasks, len(trained))
	}
	for id, n := range trained {
		if n != 1 {
			t.Errorf("task %d was dispatched %d times", id, n)
		}
	}
	if err := w.stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := w.ends(); !errors.Is(err, io.EOF) {
		t.Errorf("end of the stream: got %v, expected EOF", err)
	}
}

// An error is an answer: the stream continues.
func TestWorkAnswersErrors(t *testing.T) {
	s := serve(t, 3, master.Config{})
	request := joinOver(t, s.conn, "a")
	w := work(t, s.conn)
	w.sendPush(&pb.TaskResult{})
	if e := w.receive().GetError(); codes.Code(e.GetCode()) != codes.InvalidArgument || e.GetReason() != "BAD_ARGUMENT" || e.GetField() != "task_id" || !strings.Contains(e.GetText(), "task_id") {
		t.Errorf("result without a task: %v", e)
	}
	gone := request(1, 1)
	gone.Session = &pb.Session{Ordinal: 77, Incarnation: 5}
	w.sendGet(&pb.TrainerInfo{Request: gone})
	if e := w.receive().GetError(); codes.Code(e.GetCode()) != codes.FailedPrecondition || e.GetReason() != "REJOIN" || e.GetRetryAfter() != 0 {
		t.Errorf("unknown session: %v", e)
	}
	if spec := w.get(&pb.TrainerInfo{Request: request(1, 1)}); spec.GetTrainingTask() == nil {
		t.Errorf("after the errors: %v", spec)
	}
}

// The requests of a trainer are processed in their order, also if they wait for each other.
func TestWorkKeepsTheOrderOfATrainer(t *testing.T) {
	s := serve(t, 3, master.Config{})
	request := joinOver(t, s.conn, "a")
	w := work(t, s.conn)
	seq := uint64(0)
	for range 20 {
		for range 16 {
			seq++
			w.sendPush(&pb.TaskResult{Token: &pb.Token{Epoch: 9}, Request: request(seq, seq)})
		}
		for i := range uint64(16) {
			if id := w.receive().GetId(); id != seq-15+i {
				t.Fatalf("answer to request %d: found the answer to request %d", seq-15+i, id)
			}
		}
	}
}

// A trainer that waits for a task does not delay another trainer of the stream.
func TestWorkAnswersTrainersIndependently(t *testing.T) {
	s := serve(t, 1, master.Config{})
	w := work(t, s.conn)
	spec := w.get(&pb.TrainerInfo{TrainerId: 1})
	w.sendGet(&pb.TrainerInfo{TrainerId: 2}) // waits: the only task is dispatched
	waiting := w.id
	w.sendPush(&pb.TaskResult{TaskId: spec.GetTaskId(), Error: "torn"})
	for range 2 { // the answers have no order
		switch out := w.receive(); {
		case out.GetId() == waiting && out.GetTask().GetToken().GetAttempt() == 2:
		case out.GetId() == w.id && out.GetResult().GetStatus() == pb.PushResultResponse_STATUS_RETURNED:
		default:
			t.Errorf("got %v, expected the returned task as the answer to request %d, and the status of request %d", out, waiting, w.id)
		}
	}
}

// A stream has at most 16 unanswered requests: the master does not read a 17th.
func TestWorkBoundsUnansweredRequests(t *testing.T) {
	s := serve(t, 0, master.Config{})
	w := work(t, s.conn)
	for i := range int32(16) {
		w.sendGet(&pb.TrainerInfo{TrainerId: i}) // waits for a dataset
	}
	w.sendPush(&pb.TaskResult{Ask: &pb.TrainerInfo{TrainerId: 100}}) // invalid: it would be answered immediately
	answers := make(chan *pb.WorkReply, 17)
	go func() {
		for range 17 {
			out, err := w.stream.Recv()
			if err != nil {
				t.Error(err)
				break
			}
			answers <- out
		}
		close(answers)
	}()
	select {
	case out := <-answers:
		t.Errorf("answer before a dataset: %v", out)
	case <-time.After(300 * time.Millisecond):
	}
	s.report(t, 16)
	n := 0
	for out := range answers {
		if n++; n == 1 && out.GetTask() == nil {
			t.Errorf("first answer: got %v, expected a task", out)
		}
	}
	if n != 17 {
		t.Errorf("expected 17 answers, found %d", n)
	}
}

// The end of a stream ends no session, and no trainer of the connection. The requests without an answer are repeated on the next
// stream, and get the same answers.
func TestEndOfWorkKeepsSessionsAndTasks(t *testing.T) {
	s := serve(t, 5, master.Config{})
	request := joinOver(t, s.conn, "a")
	w := work(t, s.conn)
	first := w.get(&pb.TrainerInfo{Request: request(1, 1)})
	plain := w.get(&pb.TrainerInfo{TrainerId: 7})
	w.sendPush(&pb.TaskResult{Token: first.GetToken(), Request: request(2, 2), Ask: &pb.TrainerInfo{}})
	mastertest.Eventually(t, "a counted task", func() bool { return counted(t, s) == 1 })
	w.cancel()
	w.ends()

	again := work(t, s.conn)
	reply := again.push(&pb.TaskResult{Token: first.GetToken(), Request: request(2, 2), Ask: &pb.TrainerInfo{}})
	if reply.GetStatus() != pb.PushResultResponse_STATUS_ALREADY_COUNTED || reply.GetNext().GetToken().GetAttempt() != 1 || reply.GetNext().GetTaskId() == plain.GetTaskId() {
		t.Errorf("repeated request: %v", reply)
	}
	if same := again.get(&pb.TrainerInfo{TrainerId: 7}); same.GetTaskId() != plain.GetTaskId() {
		t.Errorf("trainer without a session: got %v, expected its task %v", same, plain)
	}
	if err := again.stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	again.ends()
	if beat, err := pb.NewCoordinatorClient(s.conn).Heartbeat(t.Context(), &pb.HeartbeatRequest{Session: request(1, 1).GetSession()}); err != nil {
		t.Errorf("session after the end of two streams: %v, %v", beat, err)
	}
}

// The end of a term ends the streams, also those without a request in progress. The next term has the session and its answers.
func TestTermEndEndsWork(t *testing.T) {
	s := serve(t, 5, master.Config{})
	request := joinOver(t, s.conn, "a")
	w, idle := work(t, s.conn), work(t, s.conn)
	first := w.get(&pb.TrainerInfo{Request: request(1, 1)})
	idle.get(&pb.TrainerInfo{TrainerId: 1})
	bids, _, err := s.store.Prefixed(t.Context(), "/master/lock/")
	if err != nil {
		t.Fatal(err)
	}
	for key := range bids {
		if _, err := s.store.Client().Delete(t.Context(), s.store.Prefix()+key); err != nil {
			t.Fatal(err)
		}
	}
	for _, stream := range []*worker{w, idle} {
		ended := make(chan error, 1)
		go func() { ended <- stream.ends() }()
		select {
		case err := <-ended:
			wants(t, err, codes.Unavailable, "NOT_LEADER")
			if _, retry, _ := details(err); retry == nil {
				t.Errorf("%v: expected a RetryInfo", err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("the stream is open after the end of the term")
		}
	}
	mastertest.Eventually(t, "the next term", s.Leading)
	if same := work(t, s.conn).get(&pb.TrainerInfo{Request: request(1, 1)}); same.GetTaskId() != first.GetTaskId() {
		t.Errorf("repeated request in the next term: got %v, expected %v", same, first)
	}
}

// A master that does not lead refuses the stream.
func TestWorkOfAStandby(t *testing.T) {
	m, err := master.New(master.Config{Store: etcdtest.Store(t), Log: quiet(), Advertise: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() { ended <- grpcapi.New(m, quiet()).Serve(ctx, l) }()
	wants(t, work(t, dial(t, l.Addr().String())).ends(), codes.Unavailable, "NOT_LEADER")
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// An invalid message ends its stream and nothing else.
func TestMalformedMessageEndsOneStream(t *testing.T) {
	s := serve(t, 5, master.Config{})
	other := work(t, s.conn)
	spec := other.get(&pb.TrainerInfo{TrainerId: 1})
	for name, tt := range map[string]struct {
		in   *pb.WorkRequest
		code codes.Code
	}{
		"no number": {&pb.WorkRequest{Call: &pb.WorkRequest_GetTask{GetTask: &pb.TrainerInfo{}}}, codes.InvalidArgument},
		"no call":   {&pb.WorkRequest{Id: 1}, codes.InvalidArgument},
		"too large": {&pb.WorkRequest{Id: 1, Call: &pb.WorkRequest_PushResult{PushResult: &pb.TaskResult{TaskId: 1, Error: strings.Repeat("x", 64<<10)}}}, codes.ResourceExhausted},
		"5 MiB":     {&pb.WorkRequest{Id: 1, Call: &pb.WorkRequest_PushResult{PushResult: &pb.TaskResult{TaskId: 1, Error: strings.Repeat("x", 5<<20)}}}, codes.ResourceExhausted},
	} {
		w := work(t, s.conn)
		if err := w.stream.Send(tt.in); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if err := w.ends(); status.Code(err) != tt.code {
			t.Errorf("%s: got %v, expected %v", name, err, tt.code)
		}
	}
	stream, err := s.conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, pb.Coordinator_Work_FullMethodName, grpc.ForceCodecV2(raw{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg([]byte{0x0a, 0x7f, 'x'}); err != nil {
		t.Fatal(err)
	}
	var reply []byte
	if err := stream.RecvMsg(&reply); status.Code(err) != codes.Internal {
		t.Errorf("a field that ends early: %v", err)
	}
	if reply := other.push(&pb.TaskResult{TaskId: spec.GetTaskId()}); reply.GetStatus() != pb.PushResultResponse_STATUS_COUNTED {
		t.Errorf("another stream of the connection: %v", reply)
	}
}

// panicking is a stream that panics in the goroutine that receives.
type panicking struct{ grpc.ServerStream }

func (panicking) Context() context.Context       { return context.Background() }
func (panicking) Send(*pb.WorkReply) error       { return nil }
func (panicking) Recv() (*pb.WorkRequest, error) { panic("no such index") }
func (panicking) RecvMsg(any) error              { panic("no such index") }
func (panicking) SendMsg(any) error              { return nil }

// A panic ends its stream, with the stack in the log.
func TestPanicEndsOneStream(t *testing.T) {
	s := serve(t, 1, master.Config{})
	var lines strings.Builder
	log := logrus.New()
	log.SetOutput(&lines)
	ended := make(chan error, 1)
	go func() { ended <- grpcapi.Work(s.Master, logrus.NewEntry(log), panicking{}) }()
	select {
	case err := <-ended:
		wants(t, grpcapi.StatusOf(err, ""), codes.Internal, "PANIC", "no such index")
	case <-time.After(20 * time.Second):
		t.Fatal("the stream is open after the panic")
	}
	for _, want := range []string{"no such index", "work.go"} {
		if !strings.Contains(lines.String(), want) {
			t.Errorf("log: expected %q", want)
		}
	}
}

// padded returns a request for a task with a field of a number of bytes that the master does not know.
func padded(id uint64, trainer int32, bytes int) *pb.WorkRequest {
	info := &pb.TrainerInfo{TrainerId: trainer}
	info.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType), make([]byte, bytes)))
	return &pb.WorkRequest{Id: id, Call: &pb.WorkRequest_GetTask{GetTask: info}}
}

// A client that sends requests and reads no answers takes bounded memory: the master stops reading.
func TestWorkOfASilentReaderIsBounded(t *testing.T) {
	s := serve(t, 0, master.Config{})
	w := work(t, s.conn)
	sent := make(chan int, 1)
	go func() {
		n := 0
		for ; n < 10_000; n++ {
			if err := w.stream.Send(padded(uint64(n)+1, int32(n%16), 50_000)); err != nil {
				break
			}
		}
		sent <- n
	}()
	select {
	case n := <-sent:
		t.Errorf("the master read %d requests of 50 KB without an answer", n)
	case <-time.After(500 * time.Millisecond):
	}
	w.cancel()
	if n := <-sent; n > 16+10 {
		t.Errorf("expected at most 16 requests and the window of the connection, found %s", fmt.Sprint(n))
	}
}

// A result without ask does not name its trainer: it waits for no call of another trainer of the connection.
func TestResultWithoutAskWaitsForNoTrainer(t *testing.T) {
	for range 3 { // a slow machine may answer the wait of trainer 0 first
		s := serve(t, 1, master.Config{})
		w := work(t, s.conn)
		spec := w.get(&pb.TrainerInfo{TrainerId: 5})
		w.sendGet(&pb.TrainerInfo{})       // trainer 0 waits for a task, and gets the task of the next pass
		time.Sleep(200 * time.Millisecond) // until trainer 0 waits: no client sees when. The wait takes 500 ms
		w.sendPush(&pb.TaskResult{TaskId: spec.GetTaskId()})
		if w.receive().GetTask().GetWait() == nil {
			return
		}
	}
	t.Error("the result is answered after the wait of trainer 0, expected no wait for it")
}

// A list of small messages would take up to 45 times its size in the memory of the master while its request waits.
func TestLongListsAreRefused(t *testing.T) {
	s := serve(t, 3, master.Config{})
	held := joinOver(t, s.conn, "a")(1, 1)
	held.Held = slices.Repeat([]*pb.Token{{}}, master.MaxHeld+1)
	many := joinOver(t, s.conn, "c")(1, 1)
	many.Finished = slices.Repeat([]*pb.Finish{{}}, master.MaxFinished)
	results := map[string]*pb.TaskResult{"at most 15 tasks, found 16": {TaskId: 1, Request: many}}
	maps.Copy(results, map[string]*pb.TaskResult{
		"at most 64 tasks, found 65":         {TaskId: 1, Ask: &pb.TrainerInfo{Request: held}},
		"at most 8 kinds of tasks, found 9":  {TaskId: 1, Ask: &pb.TrainerInfo{Accepts: make([]pb.TaskKind, 9)}},
		"at most 64, found 65":               {TaskId: 1, Metrics: slices.Repeat([]*pb.Metric{{}}, 65)},
		"at most 64 tasks, found 65 ":        {TaskId: 1, Request: held},
		"at most 8 kinds of tasks, found 10": {Request: joinOver(t, s.conn, "b")(1, 1), Token: &pb.Token{}, Ask: &pb.TrainerInfo{Accepts: make([]pb.TaskKind, 10)}},
	})
	for text, push := range results {
		refused := func(what string, err error) {
			t.Helper()
			if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), strings.TrimSpace(text)) {
				t.Errorf("%s: found %v, expected %s", what, err, text)
			}
		}
		w := work(t, s.conn)
		w.sendPush(push)
		_, err := w.stream.Recv()
		refused("result on a stream", err)
		client := pb.NewCoordinatorClient(s.conn)
		_, err = client.PushResult(t.Context(), push)
		refused("result", err)
		if ask := push.GetAsk(); ask != nil {
			w = work(t, s.conn)
			w.sendGet(ask)
			_, err = w.stream.Recv()
			refused("request on a stream", err)
			_, err = client.GetTask(t.Context(), ask)
			refused("request", err)
		}
	}
}

// The requests that wait on all streams of a connection take bounded memory: the master does not receive more. They are answered when others leave
// the memory.
func TestWaitingRequestsOfAConnectionAreBounded(t *testing.T) {
	const streams, each, size = 240, 16, 30_000
	const limit = streams*(each/2) + 4<<20/size // half of the requests of a stream fit the buffers of both sides
	s := serve(t, 0, master.Config{})
	conn := dial(t, s.addr, grpc.WithDisableRetry()) // the client keeps no messages
	var sent atomic.Int64
	var workers []*worker
	for range streams {
		w := work(t, conn)
		workers = append(workers, w)
		go func() {
			for id := range uint64(each) {
				if w.stream.Send(padded(id+1, 1, size)) != nil {
					return
				}
				sent.Add(1)
			}
		}()
	}
	time.Sleep(2 * time.Second) // the clients have this time to send more than they may
	if n := sent.Load(); n > limit {
		t.Errorf("one connection: %d of %d requests were sent, expected at most %d", n, streams*each, limit)
	}
	last := workers[streams-1]
	for _, w := range workers[:streams-1] {
		w.cancel()
	}
	s.report(t, 1)
	for range each {
		last.receive()
	}
}

// A trainer without a port receives commands on its stream: the stop of a task that another trainer has, and the request to report progress
// before that. The commands of another trainer do not arrive there.
func TestStreamHasTheCommandsOfItsTrainers(t *testing.T) {
	streams := &trainercontrol.Streams{}
	config := master.Config{
		Queue:      taskqueue.Options{Passes: 1, FirstTimeout: time.Second, TimeoutMin: time.Second, SessionTTL: time.Hour},
		Streams:    streams,
		Components: []component.Component{trainercontrol.New(trainercontrol.Config{Streams: streams, Log: quiet()})},
	}
	r := mastertest.Start(t, etcdtest.Store(t), config)
	r.Register(1)
	conn := dial(t, r.Addr)
	join := func(id string) *pb.Request {
		joined, err := pb.NewCoordinatorClient(conn).Join(t.Context(), &pb.JoinRequest{Id: id})
		if err != nil {
			t.Fatal(err)
		}
		return &pb.Request{Session: joined.GetSession(), JobId: joined.GetJobId(), Seq: 1, Ack: 1}
	}
	slow, other := work(t, conn), work(t, conn)
	first, second := join("slow"), join("other")
	task := slow.get(&pb.TrainerInfo{Request: first})
	other.sendGet(&pb.TrainerInfo{Request: second})
	command := func(what string) *pb.Command {
		t.Helper()
		out := slow.receive()
		if out.GetId() != 0 || out.GetSession().GetOrdinal() != first.GetSession().GetOrdinal() || out.GetCommand() == nil {
			t.Fatalf("%s: found %v", what, out)
		}
		return out.GetCommand()
	}
	if c := command("progress"); c.GetReportProgress().GetTaskId() != task.GetTaskId() {
		t.Errorf("found %v, expected the progress of %d", c, task.GetTaskId())
	}
	if again := other.receive().GetTask(); again.GetToken().GetAttempt() != 2 {
		t.Fatalf("another trainer: %v", again)
	}
	if c := command("stop"); c.GetStopTask().GetTaskId() != task.GetTaskId() || c.GetStopTask().GetToken().GetAttempt() != 1 {
		t.Errorf("found %v, expected the stop of %d", c, task.GetTaskId())
	}
	if err := slow.stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if out, err := slow.stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v, %v", out, err)
	}
	streams.Send(taskqueue.Ordinal(first.GetSession().GetOrdinal()), trainercontrol.Command{}) // to no stream
}

// Commands to a stream that is not read are dropped, and delay no answer on another stream of the connection.
func TestCommandsToAnUnreadStreamAreDropped(t *testing.T) {
	const sent = 5000
	streams := &trainercontrol.Streams{}
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{Streams: streams})
	r.Register(3)
	conn := dial(t, r.Addr, grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(1<<20))
	request := joinOver(t, conn, "a")
	unread, other := work(t, conn), work(t, conn)
	unread.get(&pb.TrainerInfo{Request: request(1, 1)})
	mastertest.Eventually(t, "the stream receives commands", func() bool { return streams.Len() == 1 })
	trainer := taskqueue.Ordinal(request(1, 1).GetSession().GetOrdinal())
	progress := func(position int) trainercontrol.Command {
		return trainercontrol.Command{Progress: taskqueue.Token{Epoch: 1, Pass: 1, Position: position, Attempt: 1}}
	}
	streams.Send(trainer, slices.Repeat([]trainercontrol.Command{progress(1)}, sent)...) // more than the windows have room for
	for range 1000 {
		streams.Send(trainer, progress(2)) // dropped
	}
	if task := other.get(&pb.TrainerInfo{TrainerId: 1}); task.GetTrainingTask() == nil {
		t.Errorf("another stream: %v", task)
	}
	for i := range sent {
		if at := unread.receive().GetCommand().GetReportProgress().GetToken().GetPosition(); at != 1 {
			t.Fatalf("command %d is about position %d, expected 1", i, at)
		}
	}
	received := make(chan *pb.WorkReply, 1)
	go func() { received <- unread.receive() }()
	mastertest.Eventually(t, "a command to the stream that was read", func() bool {
		streams.Send(trainer, progress(3))
		return len(received) == 1
	})
	if at := (<-received).GetCommand().GetReportProgress().GetToken().GetPosition(); at != 3 {
		t.Errorf("a command is about position %d, expected 3: those between are dropped", at)
	}
}

// withStreams starts a master with tasks that sends commands on streams.
func withStreams(t *testing.T) (r *mastertest.Running, streams *trainercontrol.Streams) {
	t.Helper()
	streams = &trainercontrol.Streams{}
	r = mastertest.Start(t, etcdtest.Store(t), master.Config{
		Queue:   taskqueue.Options{SessionTTL: time.Hour},
		Streams: streams, Components: []component.Component{trainercontrol.New(trainercontrol.Config{Streams: streams, Log: quiet()})},
	})
	r.Register(3)
	return r, streams
}

// A stream that has ended receives no commands.
func TestEndedStreamReceivesNoCommands(t *testing.T) {
	r, streams := withStreams(t)
	conn := dial(t, r.Addr)
	w, request := work(t, conn), joinOver(t, conn, "a")
	w.get(&pb.TrainerInfo{Request: request(1, 1)})
	mastertest.Eventually(t, "the stream receives commands", func() bool { return streams.Len() == 1 })
	w.cancel()
	mastertest.Eventually(t, "the ended stream receives none", func() bool { return streams.Len() == 0 })
}

// A stream forgets the sessions that have ended. Otherwise a client that joins thousands of times would take memory.
func TestStreamForgetsEndedSessions(t *testing.T) {
	r, streams := withStreams(t)
	conn := dial(t, r.Addr)
	w := work(t, conn)
	for i := range 50 {
		request := joinOver(t, conn, fmt.Sprint("t", i))
		w.get(&pb.TrainerInfo{Request: request(1, 1)})
		if _, err := pb.NewCoordinatorClient(conn).Leave(t.Context(), &pb.LeaveRequest{Session: request(1, 1).GetSession()}); err != nil {
			t.Fatal(err)
		}
	}
	last := joinOver(t, conn, "last")
	w.get(&pb.TrainerInfo{Request: last(1, 1)})
	// A trainer that leaves before the master notes its stream is forgotten at the end of the next session.
	if _, err := pb.NewCoordinatorClient(conn).Leave(t.Context(), &pb.LeaveRequest{Session: joinOver(t, conn, "left")(1, 1).GetSession()}); err != nil {
		t.Fatal(err)
	}
	mastertest.Eventually(t, "the stream of the last session alone", func() bool { return streams.Len() == 1 })
}
