package grpcapi_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/internal/portsplit"
	"trainmaster/master"
	"trainmaster/master/grpcapi"
	"trainmaster/master/mastertest"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

func quiet() *logrus.Entry {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return logrus.NewEntry(l)
}

// served is a master with its gRPC API on a real port.
type served struct {
	*master.Master
	store *etcdstore.Store
	addr  string
	conn  *grpc.ClientConn
	stop  context.CancelFunc // stops the API, not the master
	ended chan error         // end of the API
}

// serve starts a master as the leader of a job with n tasks.
func serve(t *testing.T, n int, config master.Config) *served {
	t.Helper()
	s := &served{store: etcdtest.Store(t), ended: make(chan error, 1)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr().String()
	config.Advertise = s.addr
	config.Store, config.Log = s.store, quiet()
	if s.Master, err = master.New(config); err != nil {
		t.Fatal(err)
	}
	leading, abdicate := context.WithCancel(context.Background())
	serving, stop := context.WithCancel(context.Background())
	s.stop = stop
	ran, split := make(chan error, 1), portsplit.New(l, portsplit.Config{Log: quiet()})
	branch, closed := split.Branch(portsplit.HTTP2), make(chan error, 1)
	go func() { ran <- s.Run(leading) }()
	go func() { closed <- split.Run(serving) }()
	go func() { s.ended <- grpcapi.New(s.Master, quiet()).Serve(serving, branch) }()
	t.Cleanup(func() {
		abdicate()
		stop()
		for name, end := range map[string]chan error{"master": ran, "split": closed, "gRPC": s.ended} {
			if err := <-end; err != nil && !errors.Is(err, master.ErrJobFailed) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
	mastertest.Eventually(t, "leadership", s.Leading)
	s.conn = dial(t, s.addr)
	if n > 0 {
		s.report(t, n)
	}
	return s
}

func (s *served) report(t *testing.T, n int) {
	t.Helper()
	table := taskqueue.NewTable(n)
	var chunks []recordio.Index
	for i := range n {
		chunks = append(chunks, recordio.Index{Offset: int64(i) * (recordio.HeaderSize + 100), Size: 100, Records: 10, Layout: 1})
	}
	if err := table.Add(taskqueue.File{Path: "/data/a", Size: int64(n) * 120}, chunks); err != nil {
		t.Fatal(err)
	}
	if err := s.Register(t.Context(), table, sha256.Sum256([]byte("x"))); err != nil {
		t.Fatal(err)
	}
}

func dial(t *testing.T, addr string, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// client is the session of a trainer.
type client struct {
	t    *testing.T
	s    *served
	req  taskqueue.Request
	held []taskqueue.Task
}

func (s *served) join(t *testing.T, id string) *client {
	t.Helper()
	session, err := s.Join(t.Context(), id, "10.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	return &client{t: t, s: s, req: taskqueue.Request{Trainer: session.Ordinal, Incarnation: session.Incarnation}}
}

// next reports results and takes a task.
func (c *client) next(results ...taskqueue.Result) taskqueue.Task {
	c.t.Helper()
	c.req.Seq++
	c.req.Ack, c.req.Want = c.req.Seq, true
	req := c.req
	req.Finished = results
	for _, r := range results {
		c.held = slices.DeleteFunc(c.held, func(task taskqueue.Task) bool { return task.Token == r.Token })
	}
	for _, task := range c.held {
		req.Held = append(req.Held, task.Token)
	}
	reply, err := c.s.Next(c.t.Context(), &req)
	if err != nil || reply.Assignment == nil {
		c.t.Fatalf("expected a task, found %+v, %v", reply, err)
	}
	c.held = append(c.held, reply.Assignment.Task)
	return reply.Assignment.Task
}

func finished(task taskqueue.Task) taskqueue.Result { return taskqueue.Result{Token: task.Token} }

func failed(task taskqueue.Task, text string) taskqueue.Result {
	return taskqueue.Result{Token: task.Token, Error: text}
}

func TestStatus(t *testing.T) {
	s := serve(t, 20, master.Config{Job: "digits", Queue: taskqueue.Options{Passes: 3, MaxFailures: 1}})
	a, b := s.join(t, "a"), s.join(t, "b")
	first := a.next()
	second := a.next(finished(first))
	a.next(failed(second, "disk"))
	b.req.Progress = taskqueue.Progress{Records: 120, Loss: 0.5}
	b.next()

	reply, err := pb.NewAdminClient(s.conn).Status(t.Context(), &pb.StatusRequest{Job: "digits"})
	if err != nil {
		t.Fatal(err)
	}
	overview, err := s.Overview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if reply.Job != "digits" || reply.Status != pb.JobStatus_JOB_STATUS_RUNNING || reply.LeaderAddress != s.addr || reply.Term == 0 ||
		reply.Epoch != 1 || reply.Commit == 0 || reply.Commit != overview.Commit {
		t.Errorf("head: %v", reply)
	}
	if len(reply.Datasets) != 1 {
		t.Fatalf("%d datasets, want 1", len(reply.Datasets))
	}
	d := reply.Datasets[0]
	// The failed task is dispatched before a new task.
	if d.Kind != pb.TaskKind_TASK_KIND_TRAINING || d.Pass != 1 || d.Passes != 3 || d.Tasks != 20 || d.Done != 1 || d.Pending != 2 || d.Retry != 0 || d.SetAside != 0 ||
		d.Todo != 17 || d.Cursor != 3 || d.Chunks != 20 || d.Records != 200 || d.ChunksPerTask != 1 {
		t.Errorf("dataset: %v", d)
	}
	if digest := sha256.Sum256([]byte("x")); string(d.Digest) != string(digest[:]) {
		t.Errorf("digest %x, want %x", d.Digest, digest)
	}
	if d.AverageTaskSeconds <= 0 || d.TimeoutSeconds != 30 {
		t.Errorf("average %v s, timeout %v s, want more than 0 and 30", d.AverageTaskSeconds, d.TimeoutSeconds)
	}
	x := reply.Totals
	if x.Trainers != 2 || x.RecordsTrained != 120 || x.MeanLoss == nil || *x.MeanLoss != 0.5 || x.Commits == 0 || x.UptimeSeconds <= 0 {
		t.Errorf("totals: %v", x)
	}
}

func TestStatusReportsRate(t *testing.T) {
	s := serve(t, 100, master.Config{})
	c := s.join(t, "a")
	client := pb.NewAdminClient(s.conn)
	for records := int64(10); ; records += 10 {
		c.req.Progress = taskqueue.Progress{Records: records, Loss: 0.25}
		h := taskqueue.Heartbeat{Trainer: c.req.Trainer, Incarnation: c.req.Incarnation, Progress: c.req.Progress}
		if _, err := s.Heartbeat(t.Context(), &h); err != nil {
			t.Fatal(err)
		}
		status, err := client.Status(t.Context(), &pb.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		trainers, err := client.ListTrainers(t.Context(), &pb.ListTrainersRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if records > 10 {
			if status.Totals.RecordsPerSecond <= 0 || status.Totals.GetMeanLoss() != 0.25 || trainers.Trainers[0].RecordsPerSecond <= 0 {
				t.Errorf("totals %v, trainers %v: want a rate, and a loss of 0.25", status.Totals, trainers.Trainers)
			}
			return
		}
	}
}

func TestListTasks(t *testing.T) {
	s := serve(t, 20, master.Config{Queue: taskqueue.Options{MaxFailures: 1}})
	a, b := s.join(t, "a"), s.join(t, "b")
	poison := a.next()
	for range 2 { // the second failure exceeds the limit
		if task := a.next(failed(poison, "record 3 is torn")); task.Index == poison.Index {
			poison = task
		}
	}
	back := b.next()
	if err := s.Leave(t.Context(), b.req.Trainer, b.req.Incarnation); err != nil {
		t.Fatal(err)
	}

	list := func(states ...pb.TaskState) map[pb.TaskState][]*pb.TaskEntry {
		t.Helper()
		reply, err := pb.NewAdminClient(s.conn).ListTasks(t.Context(), &pb.ListTasksRequest{States: states})
		if err != nil {
			t.Fatal(err)
		}
		by := map[pb.TaskState][]*pb.TaskEntry{}
		for _, task := range reply.Tasks {
			by[task.State] = append(by[task.State], task)
		}
		return by
	}
	all := list()
	aside := all[pb.TaskState_TASK_STATE_SET_ASIDE]
	if len(aside) != 1 || aside[0].Index != uint64(poison.Index) || aside[0].Failures != 2 || aside[0].LastHolder != "a" || aside[0].LastError != "record 3 is torn" || aside[0].Pass != 1 {
		t.Errorf("set aside: %v, want task %d", aside, poison.Index)
	}
	retry := all[pb.TaskState_TASK_STATE_RETRY]
	if len(retry) != 1 || retry[0].Index != uint64(back.Index) || retry[0].Attempt != 1 || len(retry[0].Holders) != 0 || retry[0].Failures != 0 {
		t.Errorf("retry: found %v, expected task %d", retry, back.Index)
	}
	pending := all[pb.TaskState_TASK_STATE_PENDING]
	if len(pending) != len(a.held) {
		t.Fatalf("pending: found %v, expected the tasks of trainer a: %v", pending, a.held)
	}
	for i, task := range pending {
		token := a.held[i].Token
		if task.Index != uint64(a.held[i].Index) || task.Position != uint64(token.Position) || task.Attempt != uint32(token.Attempt) || len(task.Holders) != 1 || task.Holders[0].Trainer != "a" {
			t.Errorf("pending: %v, want %v", task, a.held[i])
		}
	}
	if some := list(pb.TaskState_TASK_STATE_RETRY, pb.TaskState_TASK_STATE_SET_ASIDE); len(some) != 2 || some[pb.TaskState_TASK_STATE_PENDING] != nil {
		t.Errorf("retry and set aside: %v", some)
	}
}

func TestPages(t *testing.T) {
	s := serve(t, 200, master.Config{Queue: taskqueue.Options{MaxFailures: 1, MaxSetAside: 50}})
	for i := range 3 {
		c := s.join(t, fmt.Sprintf("t%d", i))
		task := c.next()
		for n := range 8 { // the second failure exceeds the limit: four tasks are set aside
			task = c.next(failed(task, fmt.Sprintf("failure %d of %s", n, task.Token)))
		}
	}
	client := pb.NewAdminClient(s.conn)
	whole, err := client.ListTasks(t.Context(), &pb.ListTasksRequest{})
	if err != nil || whole.NextPageToken != "" {
		t.Fatal(whole, err)
	}
	if len(whole.Tasks) != 15 {
		t.Fatalf("expected 3 pending and 12 set-aside tasks, found %d in total", len(whole.Tasks))
	}
	for _, size := range []int32{1, 2, 5, int32(len(whole.Tasks))} {
		var paged []string
		req := &pb.ListTasksRequest{PageSize: size}
		for {
			reply, err := client.ListTasks(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			if len(reply.Tasks) > int(size) || len(reply.Tasks) == 0 {
				t.Fatalf("%d tasks on a page of %d", len(reply.Tasks), size)
			}
			for _, task := range reply.Tasks {
				paged = append(paged, fmt.Sprint(task.State, task.Index, task.LastError))
			}
			if req.PageToken = reply.NextPageToken; req.PageToken == "" {
				break
			}
		}
		var want []string
		for _, task := range whole.Tasks {
			want = append(want, fmt.Sprint(task.State, task.Index, task.LastError))
		}
		if !slices.Equal(paged, want) {
			t.Errorf("pages of %d: %v\nwant %v", size, paged, want)
		}
	}
	var ids []string
	for req := (&pb.ListTrainersRequest{PageSize: 2}); ; {
		reply, err := client.ListTrainers(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, trainer := range reply.Trainers {
			ids = append(ids, trainer.Id)
		}
		if req.PageToken = reply.NextPageToken; req.PageToken == "" {
			break
		}
	}
	if want := []string{"t0", "t1", "t2"}; !slices.Equal(ids, want) {
		t.Errorf("trainers %v, want %v", ids, want)
	}
}

func TestListTrainers(t *testing.T) {
	s := serve(t, 20, master.Config{})
	a := s.join(t, "a")
	task := a.next()
	s.join(t, "b")
	reply, err := pb.NewAdminClient(s.conn).ListTrainers(t.Context(), &pb.ListTrainersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(reply.Trainers) != 2 {
		t.Fatalf("trainers: found %v, expected a and b", reply.Trainers)
	}
	x, y := reply.Trainers[0], reply.Trainers[1]
	if x.Id != "a" || x.Ordinal != uint32(a.req.Trainer) || x.Incarnation != a.req.Incarnation || x.Address != "10.0.0.1:1" || !x.Joined || x.Draining ||
		!slices.Equal(x.Tasks, []uint64{uint64(task.Index)}) || x.Loss != nil {
		t.Errorf("a: %v", x)
	}
	if y.Id != "b" || len(y.Tasks) != 0 {
		t.Errorf("b: %v", y)
	}
}
