package grpcapi_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"trainmaster/master"
	"trainmaster/master/mastertest"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

// plain is a trainer without a session, on a connection of its own.
type plain struct {
	t      *testing.T
	client pb.CoordinatorClient
	id     int32
	close  func()
}

func (s *served) plain(t *testing.T, id int32) *plain {
	t.Helper()
	conn := dial(t, s.addr)
	return &plain{t, pb.NewCoordinatorClient(conn), id, func() { conn.Close() }}
}

func (p *plain) get() *pb.TaskSpec {
	p.t.Helper()
	spec, err := p.client.GetTask(p.t.Context(), &pb.TrainerInfo{TrainerId: p.id})
	if err != nil {
		p.t.Fatal(err)
	}
	return spec
}

func (p *plain) push(result *pb.TaskResult) *pb.PushResultResponse {
	p.t.Helper()
	reply, err := p.client.PushResult(p.t.Context(), result)
	if err != nil {
		p.t.Fatal(err)
	}
	return reply
}

func counted(t *testing.T, s *served) int {
	t.Helper()
	overview, err := s.Overview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return overview.Sets[0].Done
}

// A trainer without a session trains each task of two passes once, with one call for each task. The files of the tasks are the
// records of the dataset.
func TestTrainerWithoutSession(t *testing.T) {
	const tasks, passes = 20, 2
	s := serve(t, tasks, master.Config{Shuffle: true, Queue: taskqueue.Options{Passes: passes}})
	p := s.plain(t, 7)
	records := map[int64]int{}
	spec := p.get()
	for {
		train := spec.GetTrainingTask()
		if train == nil {
			break
		}
		files := train.GetData().GetFiles().GetFiles()
		if len(files) != 1 || files[0].GetPath() != "/data/a" || files[0].GetNumRecord() != 10 || files[0].GetFormat() != pb.FileFormat_FILE_FORMAT_RECORDIO ||
			files[0].GetByteOffset() != 12*files[0].GetStartRecord() || files[0].GetByteLength() != 120 || files[0].GetStamp().GetSize() != tasks*120 {
			t.Fatalf("files of a task: %v", files)
		}
		records[files[0].GetStartRecord()]++
		if spec.GetTaskId() <= 0 || spec.GetToken().GetAttempt() != 1 {
			t.Fatalf("task %d with token %v", spec.GetTaskId(), spec.GetToken())
		}
		reply := p.push(&pb.TaskResult{TaskId: spec.GetTaskId(), Loss: new(0.25), Stat: &pb.RunStats{Records: 10}, Ask: &pb.TrainerInfo{TrainerId: 7}})
		if reply.GetStatus() != pb.PushResultResponse_STATUS_COUNTED {
			t.Fatalf("result: %v", reply)
		}
		spec = reply.GetNext()
	}
	if spec.GetEnd().GetReason() != pb.EndTaskSpec_REASON_PASSES_DONE {
		t.Errorf("after the last task: %v", spec)
	}
	if len(records) != tasks {
		t.Errorf("expected %d different tasks, found %d", tasks, len(records))
	}
	for first, n := range records {
		if n != passes || first%10 != 0 {
			t.Errorf("the task at record %d was dispatched %d times", first, n)
		}
	}
	if end := p.get().GetEnd(); end == nil {
		t.Error("GetTask after the end of the job: expected the end")
	}
}

// master status shows the records and the loss of a trainer without a session.
func TestProgressOfTrainerWithoutSession(t *testing.T) {
	s := serve(t, 5, master.Config{})
	p := s.plain(t, 1)
	for range 2 {
		p.push(&pb.TaskResult{TaskId: p.get().GetTaskId(), Loss: new(0.5), Stat: &pb.RunStats{Records: 10}, Ask: &pb.TrainerInfo{TrainerId: 1}})
	}
	reply, err := pb.NewAdminClient(s.conn).Status(t.Context(), &pb.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if x := reply.GetTotals(); x.GetRecordsTrained() != 20 || x.GetMeanLoss() != 0.5 {
		t.Errorf("totals: %v", x)
	}
}

// An answer may be lost: a trainer that asks again gets its task again, and other trainers of the connection get others.
func TestTaskIsGivenAgain(t *testing.T) {
	s := serve(t, 5, master.Config{})
	p := s.plain(t, 1)
	first := p.get().GetTaskId()
	if again := p.get().GetTaskId(); again != first {
		t.Errorf("asked again: got %d, expected %d", again, first)
	}
	other := &plain{t, p.client, 2, nil}
	second := other.get().GetTaskId()
	if second == first {
		t.Errorf("another trainer got the same task, %d", first)
	}
	next := p.push(&pb.TaskResult{TaskId: first, Ask: &pb.TrainerInfo{TrainerId: 1}}).GetNext().GetTaskId()
	repeat := p.push(&pb.TaskResult{TaskId: first, Ask: &pb.TrainerInfo{TrainerId: 1}})
	if repeat.GetStatus() != pb.PushResultResponse_STATUS_ALREADY_COUNTED || repeat.GetNext().GetTaskId() != next || next == first || next == second {
		t.Errorf("the same result again: got %v, expected it to be counted already, and task %d", repeat, next)
	}
	if n := counted(t, s); n != 1 {
		t.Errorf("expected 1 counted task, found %d", n)
	}
}

// The task of a connection that ends is dispatched again. A result that arrives late, on another connection, counts once.
func TestConnectionEnds(t *testing.T) {
	s := serve(t, 1, master.Config{Queue: taskqueue.Options{Passes: 2}})
	p := s.plain(t, 1)
	first := p.get()
	p.close()
	other := s.plain(t, 1)
	var second *pb.TaskSpec
	mastertest.Eventually(t, "dispatch of the task", func() bool {
		second = other.get()
		return second.GetTrainingTask() != nil
	})
	if a, b := first.GetToken(), second.GetToken(); a.GetPosition() != b.GetPosition() || b.GetAttempt() != 2 {
		t.Errorf("expected the second dispatch of %v, found %v", a, b)
	}
	late := s.plain(t, 3)
	if reply := late.push(&pb.TaskResult{TaskId: first.GetTaskId()}); reply.GetStatus() != pb.PushResultResponse_STATUS_COUNTED {
		t.Errorf("late result: %v", reply)
	}
	if reply := other.push(&pb.TaskResult{TaskId: second.GetTaskId()}); reply.GetStatus() != pb.PushResultResponse_STATUS_ALREADY_COUNTED {
		t.Errorf("result of the second dispatch: %v", reply)
	}
}

// The task of a session is dispatched again a few seconds after its connection has ended, long before the session ends. A session that
// continues on another connection keeps its task.
func TestConnectionOfASessionEnds(t *testing.T) {
	s := serve(t, 2, master.Config{Queue: taskqueue.Options{Grace: 200 * time.Millisecond, SessionTTL: time.Hour}})
	conn := dial(t, s.addr)
	lost, stays := joinOver(t, conn, "lost"), joinOver(t, conn, "stays")
	ask := func(conn *grpc.ClientConn, r *pb.Request) *pb.TaskSpec {
		t.Helper()
		spec, err := pb.NewCoordinatorClient(conn).GetTask(t.Context(), &pb.TrainerInfo{Request: r})
		if err != nil {
			t.Fatal(err)
		}
		return spec
	}
	first, kept := ask(conn, lost(1, 1)), ask(conn, stays(1, 1))
	conn.Close()
	p := s.plain(t, 1)
	returned := make(chan *pb.TaskSpec, 1)
	go func() { returned <- p.get() }()
	for {
		if again := ask(s.conn, stays(1, 1)); again.GetTaskId() != kept.GetTaskId() {
			t.Fatalf("session on another connection: got %v, expected its task %v", again, kept)
		}
		select {
		case spec := <-returned:
			if a, b := first.GetToken(), spec.GetToken(); a.GetPosition() != b.GetPosition() || b.GetAttempt() != 2 {
				t.Errorf("expected the second dispatch of %v, found %v", a, spec)
			}
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// The end of an earlier connection does not end a session whose last request was answered on a newer connection.
func TestSessionContinuesOnANewerConnection(t *testing.T) {
	const grace = 200 * time.Millisecond
	s := serve(t, 2, master.Config{Queue: taskqueue.Options{Grace: grace, SessionTTL: time.Hour}})
	earlier, newer := dial(t, s.addr), dial(t, s.addr)
	lost, stays := joinOver(t, earlier, "lost"), joinOver(t, earlier, "stays")
	for _, r := range []*pb.Request{lost(1, 1), stays(1, 1)} {
		if _, err := pb.NewCoordinatorClient(earlier).GetTask(t.Context(), &pb.TrainerInfo{Request: r}); err != nil {
			t.Fatal(err)
		}
	}
	beat := func() {
		t.Helper()
		if _, err := pb.NewCoordinatorClient(newer).Heartbeat(t.Context(), &pb.HeartbeatRequest{Session: stays(1, 1).GetSession()}); err != nil {
			t.Errorf("a session with an intact connection: %v", err)
		}
	}
	beat()
	earlier.Close()
	s.plain(t, 1).get()   // of the lost trainer
	time.Sleep(2 * grace) // the sessions of the connection do not end in the same commit
	beat()
}

// A failed task is dispatched again.
func TestFailedTaskReturns(t *testing.T) {
	s := serve(t, 1, master.Config{})
	p := s.plain(t, 1)
	first := p.get()
	reply := p.push(&pb.TaskResult{TaskId: first.GetTaskId(), Error: "record 3 is torn", Ask: &pb.TrainerInfo{TrainerId: 1}})
	if reply.GetStatus() != pb.PushResultResponse_STATUS_RETURNED || reply.GetNext().GetToken().GetAttempt() != 2 {
		t.Errorf("got %v, expected the second dispatch of the task", reply)
	}
	if reply := p.push(&pb.TaskResult{TaskId: first.GetTaskId(), Error: "again"}); reply.GetStatus() != pb.PushResultResponse_STATUS_STALE {
		t.Errorf("the same failure again: %v", reply)
	}
}

// A number that names no dispatched task changes nothing.
func TestUnknownTaskIDs(t *testing.T) {
	s := serve(t, 3, master.Config{})
	p := s.plain(t, 1)
	spec := p.get()
	id, token := spec.GetTaskId(), spec.GetToken()
	for name, r := range map[string]*pb.TaskResult{
		"next attempt":             {TaskId: id + 1},
		"attempt 0":                {TaskId: id - 1},
		"next position":            {TaskId: id + 1<<12},
		"position beyond the last": {TaskId: id + 1000<<12},
		"next pass":                {TaskId: id + 1<<44},
		"next dataset":             {TaskId: id + 1<<57},
		"greatest":                 {TaskId: math.MaxInt64},
		"1":                        {TaskId: 1},
		"another token":            {TaskId: id, Token: &pb.Token{Epoch: 1, Kind: token.GetKind(), Pass: 1, Position: token.GetPosition(), Attempt: 2}},
		"another epoch":            {TaskId: id, Token: &pb.Token{Epoch: 2, Kind: token.GetKind(), Pass: 1, Position: token.GetPosition(), Attempt: 1}},
		"failure, next attempt":    {TaskId: id + 1, Error: "x"},
		"failure, next position":   {TaskId: id + 1<<12, Error: "x"},
	} {
		if reply := p.push(r); reply.GetStatus() != pb.PushResultResponse_STATUS_STALE || reply.GetNext() != nil {
			t.Errorf("%s: got %v, expected STALE", name, reply)
		}
	}
	if n := counted(t, s); n != 0 {
		t.Errorf("expected no counted task, found %d", n)
	}
	if again := p.get().GetTaskId(); again != id {
		t.Errorf("the trainer holds task %d, expected %d", again, id)
	}
	if reply := p.push(&pb.TaskResult{TaskId: id, Token: token}); reply.GetStatus() != pb.PushResultResponse_STATUS_COUNTED {
		t.Errorf("the number and its token: %v", reply)
	}
}

// An invalid field is named, and the task stays held.
func TestInvalidResults(t *testing.T) {
	s := serve(t, 3, master.Config{})
	p := s.plain(t, 1)
	id := p.get().GetTaskId()
	for _, c := range []struct {
		field  string
		result *pb.TaskResult
	}{
		{"loss", &pb.TaskResult{TaskId: id, Loss: new(math.NaN())}},
		{"accuracy", &pb.TaskResult{TaskId: id, Accuracy: new(math.Inf(1))}},
		{"stat.seconds", &pb.TaskResult{TaskId: id, Stat: &pb.RunStats{Seconds: math.Inf(-1)}}},
		{"stat.cpu_seconds", &pb.TaskResult{TaskId: id, Stat: &pb.RunStats{CpuSeconds: math.NaN()}}},
		{"stat.gpu_utilization", &pb.TaskResult{TaskId: id, Stat: &pb.RunStats{GpuUtilization: math.NaN()}}},
		{"stat.records", &pb.TaskResult{TaskId: id, Stat: &pb.RunStats{Records: -1}}},
		{"task_id", &pb.TaskResult{}},
		{"task_id", &pb.TaskResult{TaskId: math.MinInt64}},
		{"token", &pb.TaskResult{TaskId: id, Request: &pb.Request{Seq: 1}}},
		{"request.seq", &pb.TaskResult{TaskId: id, Token: &pb.Token{}, Request: &pb.Request{}}},
	} {
		_, err := p.client.PushResult(t.Context(), c.result)
		_, _, bad := details(err)
		if status.Code(err) != codes.InvalidArgument || bad == nil || bad.FieldViolations[0].Field != c.field {
			t.Errorf("got %v with %v, expected field %q", err, bad, c.field)
		}
	}
	_, err := p.client.PushResult(t.Context(), &pb.TaskResult{TaskId: id, Error: strings.Repeat("x", 5<<20)})
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a message of 5 MiB: got %v", err)
	}
	if again := p.get().GetTaskId(); again != id {
		t.Errorf("the trainer holds task %d, expected %d", again, id)
	}
}

// A connection has a limited number of trainers without a session.
func TestTrainersOfAConnectionAreLimited(t *testing.T) {
	s := serve(t, 1000, master.Config{})
	conn := dial(t, s.addr)
	var err error
	n := int32(0)
	for ; err == nil && n < 1000; n++ {
		_, err = pb.NewCoordinatorClient(conn).GetTask(t.Context(), &pb.TrainerInfo{TrainerId: n})
	}
	if status.Code(err) != codes.ResourceExhausted || n != 257 {
		t.Errorf("got %v at trainer %d, expected RESOURCE_EXHAUSTED at trainer 257", err, n)
	}
}

// A trainer with a session repeats a request, finishes by token, prefetches and leaves.
func TestTrainerWithSession(t *testing.T) {
	s := serve(t, 3, master.Config{Queue: taskqueue.Options{Passes: 1}})
	client := pb.NewCoordinatorClient(s.conn)
	joined, err := client.Join(t.Context(), &pb.JoinRequest{Id: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if joined.GetSession().GetOrdinal() == 0 || joined.GetSessionTtl() != taskqueue.DefaultSessionTTL.Seconds() || joined.GetEpoch() != 1 || len(joined.GetJobId()) != 16 {
		t.Errorf("joined: %v", joined)
	}
	request := func(seq uint64, held ...*pb.TaskSpec) *pb.Request {
		r := &pb.Request{Session: joined.GetSession(), Seq: seq, Ack: seq, Progress: &pb.TrainerProgress{Records: 10, Loss: 0.25}}
		for _, task := range held {
			r.Held = append(r.Held, task.GetToken())
		}
		return r
	}
	get := func(r *pb.Request) *pb.TaskSpec {
		t.Helper()
		spec, err := client.GetTask(t.Context(), &pb.TrainerInfo{Request: r})
		if err != nil {
			t.Fatal(err)
		}
		return spec
	}
	first := get(request(1))
	if again := get(request(1)); again.GetTaskId() != first.GetTaskId() {
		t.Errorf("the same request again: got %v, expected %v", again.GetToken(), first.GetToken())
	}
	second := get(request(2, first)) // a prefetch
	if second.GetTaskId() == first.GetTaskId() || second.GetTrainingTask() == nil {
		t.Errorf("prefetch: got %v", second)
	}
	reply, err := client.PushResult(t.Context(), &pb.TaskResult{Token: first.GetToken(), Request: request(3, second), Ask: &pb.TrainerInfo{}})
	if err != nil || reply.GetStatus() != pb.PushResultResponse_STATUS_COUNTED || reply.GetNext().GetTrainingTask() == nil {
		t.Fatalf("result: %v, %v", reply, err)
	}
	third := reply.GetNext()
	reply, err = client.PushResult(t.Context(), &pb.TaskResult{Token: first.GetToken(), Request: request(4, second, third), Ask: &pb.TrainerInfo{}})
	if err == nil {
		t.Errorf("a third task: got %v, expected an error", reply)
	}
	beat, err := client.Heartbeat(t.Context(), &pb.HeartbeatRequest{Session: joined.GetSession(), Moving: []*pb.Token{second.GetToken()}})
	if err != nil || beat.GetDraining() {
		t.Errorf("heartbeat: %v, %v", beat, err)
	}
	for _, many := range []*pb.HeartbeatRequest{{Moving: make([]*pb.Token, 65)}, {Held: make([]*pb.Token, 65)}} {
		many.Session = joined.GetSession()
		if _, err := client.Heartbeat(t.Context(), many); status.Code(err) != codes.InvalidArgument {
			t.Errorf("heartbeat with 65 tasks: %v", err)
		}
	}
	beat, err = client.Heartbeat(t.Context(), &pb.HeartbeatRequest{Session: joined.GetSession(), Held: []*pb.Token{second.GetToken(), first.GetToken()}})
	if err != nil || len(beat.GetCommands()) != 1 {
		t.Fatalf("heartbeat with a counted task: %v, %v", beat, err)
	}
	if stop := beat.GetCommands()[0].GetStopTask(); stop.GetTaskId() != first.GetTaskId() || !proto.Equal(stop.GetToken(), first.GetToken()) {
		t.Errorf("command: %v, expected the stop of task %d, %v", stop, first.GetTaskId(), first.GetToken())
	}
	saver, err := client.SaveModel(t.Context(), &pb.SaveModelRequest{Session: joined.GetSession()})
	if err != nil || !saver.GetElected() {
		t.Errorf("save model: %v, %v", saver, err)
	}
	if _, err := client.Leave(t.Context(), &pb.LeaveRequest{Session: joined.GetSession()}); err != nil {
		t.Error(err)
	}
	_, err = client.GetTask(t.Context(), &pb.TrainerInfo{Request: request(5)})
	wants(t, err, codes.FailedPrecondition, "REJOIN")
	if n := counted(t, s); n != 1 {
		t.Errorf("expected 1 counted task, found %d", n)
	}
}

// The calls of jobs with explicit commits have the meaning that they have over net/rpc.
func TestExplicitCommitsOverGRPC(t *testing.T) {
	s := serve(t, 4, master.Config{Queue: taskqueue.Options{Passes: 1, ExplicitCommit: true}})
	client := pb.NewCoordinatorClient(s.conn)
	_, err := client.GetTask(t.Context(), &pb.TrainerInfo{})
	wants(t, err, codes.FailedPrecondition, "EXPLICIT")
	joined, err := client.Join(t.Context(), &pb.JoinRequest{Id: "a"})
	if err != nil || !joined.GetExplicitCommits() {
		t.Fatal(joined, err)
	}
	me := joined.GetSession()
	at, err := client.LastStep(t.Context(), &pb.LastStepRequest{Session: me})
	if err != nil || !at.GetDone() || at.GetStep() != 0 {
		t.Fatal(at, err)
	}
	if at, err = client.Rollback(t.Context(), &pb.StepRequest{Session: me, Generation: 1}); err != nil || at.GetGeneration() != 1 {
		t.Fatal(at, err)
	}
	spec, err := client.GetTask(t.Context(), &pb.TrainerInfo{Request: &pb.Request{Session: me, Seq: 1, Ack: 1, Epoch: at.GetEpoch()}})
	if err != nil || spec.GetTrainingTask() == nil {
		t.Fatal(spec, err)
	}
	reply, err := client.PushResult(t.Context(), &pb.TaskResult{Token: spec.GetToken(), Step: 1, Request: &pb.Request{Session: me, Seq: 2, Ack: 2, Epoch: at.GetEpoch()}})
	if err != nil || reply.GetStatus() != pb.PushResultResponse_STATUS_COUNTED {
		t.Fatal(reply, err)
	}
	if n := counted(t, s); n != 0 {
		t.Errorf("before the commit: expected no counted task, found %d", n)
	}
	if at, err = client.Flushed(t.Context(), &pb.FlushedRequest{Session: me, Generation: 1, Step: 1}); err != nil || !at.GetDone() {
		t.Fatal(at, err)
	}
	if at, err = client.Commit(t.Context(), &pb.StepRequest{Session: me, Generation: 1, Step: 1}); err != nil || !at.GetDone() || at.GetStep() != 1 {
		t.Fatal(at, err)
	}
	if n := counted(t, s); n != 1 {
		t.Errorf("after the commit: expected 1 counted task, found %d", n)
	}
	_, err = client.Flushed(t.Context(), &pb.FlushedRequest{Session: me, Positions: make([]*pb.TaskPosition, 513)})
	wants(t, err, codes.InvalidArgument, "BAD_ARGUMENT")
	_, err = client.Staged(t.Context(), &pb.StagedRequest{Session: me, Version: 1})
	wants(t, err, codes.FailedPrecondition, "NOT_SYNC")
}

// Requests with invalid values are refused with a reason.
func TestInvalidRequests(t *testing.T) {
	s := serve(t, 1, master.Config{Job: "digits"})
	client := pb.NewCoordinatorClient(s.conn)
	_, err := client.Join(t.Context(), &pb.JoinRequest{Id: "a b"})
	wants(t, err, codes.InvalidArgument, "BAD_ARGUMENT")
	_, err = client.Join(t.Context(), &pb.JoinRequest{Id: "a", Job: "flights"})
	wants(t, err, codes.NotFound, "OTHER_JOB")
	_, err = client.ReportDataset(t.Context(), &pb.ReportDatasetRequest{Paths: []string{"/nowhere/*"}})
	wants(t, err, codes.InvalidArgument, "NO_FILES")
	_, err = client.GetTask(t.Context(), &pb.TrainerInfo{Request: &pb.Request{Seq: 1, Held: make([]*pb.Token, 65)}})
	wants(t, err, codes.InvalidArgument, "BAD_ARGUMENT")
	_, err = client.CutWatch(t.Context(), &pb.CutWatchRequest{})
	wants(t, err, codes.FailedPrecondition, "REJOIN")
}
