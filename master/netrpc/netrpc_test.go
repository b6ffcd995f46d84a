package netrpc_test

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/rpc"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/mastertest"
	"trainmaster/master/netrpc/wire"
	"trainmaster/taskqueue"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

// serve starts a master with a dataset of n tasks.
func serve(t testing.TB, n int, config master.Config) *mastertest.Running {
	t.Helper()
	r := mastertest.Start(t, etcdtest.Store(t), config)
	if n > 0 {
		r.Register(n)
	}
	return r
}

func dial(t testing.TB, addr string) *rpc.Client {
	t.Helper()
	c, err := rpc.DialHTTP("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// take requests a task like a plain client.
func take(t testing.TB, c *rpc.Client, finished taskqueue.Task) (task taskqueue.Task) {
	t.Helper()
	if err := c.Call("RPCServer.GetTask", &finished, &task); err != nil {
		t.Fatal(err)
	}
	return task
}

func pending(t testing.TB, r *mastertest.Running) []taskqueue.PendingTask {
	t.Helper()
	tasks, err := r.PendingTasks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return tasks
}

// The documented minimum: a client that only knows GetTask trains every task of every pass.
func TestPlainClientRunsAJob(t *testing.T) {
	r := serve(t, 30, master.Config{Shuffle: true, Queue: taskqueue.Options{Passes: 2}})
	c := dial(t, r.Addr)
	finished := taskqueue.Task{}
	seen := map[int]int{}
	for {
		var task taskqueue.Task
		if err := c.Call("RPCServer.GetTask", &finished, &task); err != nil {
			if !strings.HasPrefix(err.Error(), "job finished: ") {
				t.Fatal(err)
			}
			break
		}
		if len(task.Chunks) > 0 {
			seen[task.Index]++
		}
		finished = task
	}
	if len(seen) != 30 {
		t.Fatalf("tasks: found %d, expected 30", len(seen))
	}
	for index, n := range seen {
		if n != 2 {
			t.Errorf("task %d: dispatched %d times, expected once in each of 2 passes", index, n)
		}
	}
	for _, p := range mastertest.Verify(t, r.Store) {
		if p.CountedOnce != 30 || p.Redelivered != 0 {
			t.Errorf("pass %d: %d counted, %d redelivered", p.Pass, p.CountedOnce, p.Redelivered)
		}
	}
}

// A client that reuses its reply variable receives a mixture of two tasks, because gob omits zeros. It trains and
// finishes another task than the dispatched one, or another chunk of the dispatched task. Every task that the ledger counts was trained.
func TestReusedReplyNeverMiscounts(t *testing.T) {
	for name, perFile := range map[string]int{"one file": 20, "files of three chunks": 3} {
		t.Run(name, func(t *testing.T) { reuseReply(t, mastertest.TableOf(t, 20, perFile)) })
	}
}

func reuseReply(t *testing.T, table *taskqueue.Table) {
	r := serve(t, 0, master.Config{Queue: taskqueue.Options{Passes: 3}}) // in order: the index of a task is its position
	if err := r.Master.Register(t.Context(), table, mastertest.Digest(20)); err != nil {
		t.Fatal(err)
	}
	type delivery struct {
		pass  taskqueue.Pass
		path  string
		chunk int64 // offset of the chunk that was trained
	}
	trained := map[delivery]bool{}
	over := false
	for calls := 0; !over; {
		c := dial(t, r.Addr)
		var task taskqueue.Task
		for range 7 { // then the connection closes and its tasks return
			if err := c.Call("RPCServer.GetTask", &task, &task); err != nil {
				if !strings.HasPrefix(err.Error(), "job finished: ") {
					t.Fatal(err)
				}
				over = true
				break
			}
			for _, chunk := range task.Chunks {
				trained[delivery{task.Token.Pass, chunk.Path, chunk.Index.Offset}] = true
			}
			if calls++; calls > 2000 {
				o, err := r.Overview(t.Context())
				t.Fatalf("expected the end of the job: %+v %v", o, err)
			}
		}
		c.Close()
	}
	counted := 0
	values, _, err := r.Store.Prefixed(t.Context(), "/ledger/")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if _, err := strconv.ParseUint(strings.TrimPrefix(key, "/ledger/"), 16, 64); err != nil {
			continue
		}
		for event, err := range taskqueue.LedgerEvents(values[key]) {
			if err != nil {
				t.Fatal(err)
			}
			if event.Kind != taskqueue.EventFinished {
				continue
			}
			counted++
			if chunk := table.TaskChunks(event.Position)[0]; !trained[delivery{event.Pass, chunk.Path, chunk.Index.Offset}] {
				t.Errorf("pass %d: task %d: counted, but not trained", event.Pass, event.Position)
			}
		}
	}
	if counted != 60 {
		t.Errorf("counted tasks: found %d, expected 60", counted)
	}
	mastertest.Verify(t, r.Store)
}

// F14: an outdated address can belong to the master of another job.
func TestJoinAtTheMasterOfAnotherJob(t *testing.T) {
	r := serve(t, 0, master.Config{Job: "digits"})
	for job, want := range map[string]string{
		"mnist":  `not the leader of job "mnist": this master is of job "digits"`,
		"digits": "", "": "",
	} {
		err := dial(t, r.Addr).Call("RPCServer.Join", wire.JoinRequest{ID: "a", Job: job}, new(wire.JoinReply))
		if got := fmt.Sprint(err); err == nil && want != "" || err != nil && got != want {
			t.Errorf("trainer of job %q: got %v, expected %q", job, err, want)
		}
		if err != nil && !errors.Is(wire.Error(err), wire.ErrNotLeader) {
			t.Errorf("trainer of job %q: expected an error that is retried elsewhere, got %v", job, err)
		}
	}
}

// When a plain connection closes, its tasks return immediately and without a failure. A joined trainer has a grace period.
func TestClosedConnection(t *testing.T) {
	r := serve(t, 3, master.Config{Queue: taskqueue.Options{Grace: 300 * time.Millisecond}})
	plain, other := dial(t, r.Addr), dial(t, r.Addr)
	for range 3 {
		if task := take(t, plain, taskqueue.Task{}); len(task.Chunks) == 0 {
			t.Fatal("expected a task")
		}
	}
	waits := other.Go("RPCServer.GetTask", &taskqueue.Task{}, new(taskqueue.Task), nil)
	began := time.Now()
	plain.Close()
	<-waits.Done
	if got := waits.Reply.(*taskqueue.Task); waits.Error != nil || len(got.Chunks) == 0 || got.Token.Attempt != 2 || time.Since(began) > 5*time.Second {
		t.Errorf("after %v: other connection got %+v, %v", time.Since(began), got, waits.Error)
	}
	for _, task := range pending(t, r) {
		if task.Failures != 0 || task.Losses != 0 {
			t.Errorf("closed connection: expected no failure, found %+v", task)
		}
	}

	var who wire.JoinReply
	joined := dial(t, r.Addr)
	if err := joined.Call("RPCServer.Join", wire.JoinRequest{ID: "a"}, &who); err != nil {
		t.Fatal(err)
	}
	var next wire.NextReply
	if err := joined.Call("RPCServer.Next", wire.NextRequest{Trainer: who.Trainer, Seq: 1, Ack: 1, Want: true}, &next); err != nil || len(next.Task.Chunks) == 0 {
		t.Fatal(next, err)
	}
	joined.Close()
	back := dial(t, r.Addr)
	mastertest.Eventually(t, "the end of its connection", func() bool {
		v, err := r.Overview(t.Context())
		return err == nil && slices.ContainsFunc(v.Trainers, func(o taskqueue.TrainerOverview) bool { return o.ID == "a" })
	})
	if err := back.Call("RPCServer.Heartbeat", wire.HeartbeatRequest{Trainer: who.Trainer}, new(int)); err != nil {
		t.Errorf("trainer that returned immediately: got %v", err)
	}
	holds := func() bool {
		return slices.ContainsFunc(pending(t, r), func(p taskqueue.PendingTask) bool {
			return p.Token == next.Task.Token && len(p.Holders) == 1
		})
	}
	if !holds() {
		t.Error("expected it to keep its task")
	}
	back.Close()
	mastertest.Eventually(t, "the return of its task", func() bool { return !holds() })
}

// dying ends a connection while its first task is being committed, and waits until the task returns.
func dying(t *testing.T, tasks int, die func(r *mastertest.Running, conn net.Conn)) *mastertest.Running {
	t.Helper()
	proxy := etcdtest.StartProxy(t, etcdtest.Endpoint(t))
	job := etcdtest.NewJob(t)
	direct := etcdtest.Open(t, etcdtest.Endpoint(t), job)
	r := mastertest.Start(t, etcdtest.Open(t, proxy.Endpoint(), job), master.Config{})
	r.Register(tasks)
	_, _, revision := mastertest.State(t, direct)
	proxy.HoldReplies(true)
	conn := connect(t, r.Addr)
	c := rpc.NewClient(conn)
	call := c.Go("RPCServer.GetTask", &taskqueue.Task{}, new(taskqueue.Task), nil)
	mastertest.Eventually(t, "the commit of the dispatch", func() bool {
		_, _, now := mastertest.State(t, direct)
		return now > revision
	})
	die(r, conn)
	<-call.Done
	c.Close()
	proxy.HoldReplies(false)
	mastertest.Eventually(t, "the return of the task", func() bool {
		tasks := pending(t, r)
		return len(tasks) == 1 && len(tasks[0].Holders) == 0 && tasks[0].Failures == 0 && tasks[0].Losses == 0
	})
	mastertest.Eventually(t, "the end of the session", func() bool {
		v, err := r.Overview(t.Context())
		return err == nil && len(v.Trainers) == 0
	})
	return r
}

// A connection that ends while its first task is being committed holds a task that no client received. The task
// returns immediately.
func TestTaskOfClosedConnectionReturns(t *testing.T) {
	r := dying(t, 1, func(_ *mastertest.Running, conn net.Conn) { conn.Close() })
	if task := take(t, dial(t, r.Addr), taskqueue.Task{}); task.Token.Position != 0 || task.Token.Attempt != 2 {
		t.Errorf("next connection: got %v", task.Token)
	}
}

// If an answer cannot be written, its task returns as if it had not been dispatched: the next trainer receives the
// same attempt.
func TestTaskOfUnwrittenAnswerReturns(t *testing.T) {
	r := dying(t, 3, func(r *mastertest.Running, conn net.Conn) {
		if err := conn.(*net.TCPConn).SetLinger(0); err != nil { // the end is a logged error
			t.Fatal(err)
		}
		conn.Close()
		mastertest.Eventually(t, "the log of the end", func() bool { return slices.Contains(r.Logged(), "connection closed") })
	})
	if task := take(t, dial(t, r.Addr), taskqueue.Task{}); task.Token.Position != 0 || task.Token.Attempt != 2 {
		t.Errorf("next connection: got %v", task.Token)
	}
}

// A plain connection that sends requests for unknown trainers keeps its own session.
func TestConnectionKeepsItsOwnSession(t *testing.T) {
	r := serve(t, 3, master.Config{})
	c := dial(t, r.Addr)
	task := take(t, c, taskqueue.Task{})
	made := wire.Trainer{Ordinal: 99, Incarnation: 99}
	for _, err := range []error{
		c.Call("RPCServer.Heartbeat", wire.HeartbeatRequest{Trainer: made}, new(int)),
		c.Call("RPCServer.Next", wire.NextRequest{Trainer: made, Seq: 1}, new(wire.NextReply)),
	} {
		if !strings.HasPrefix(err.Error(), wire.ErrRejoin.Error()) {
			t.Errorf("unknown trainer: got %v", err)
		}
	}
	if err := c.Call("RPCServer.Leave", wire.LeaveRequest{Trainer: made}, new(int)); err != nil {
		t.Error(err)
	}
	if next := take(t, c, task); next.Token.Position != 1 {
		t.Errorf("got %v", next.Token)
	}
	if tasks := pending(t, r); len(tasks) != 1 {
		t.Errorf("finish of the connection: expected it to count, found %+v", tasks)
	}
	c.Close()
	mastertest.Eventually(t, "the return of its task", func() bool { return len(pending(t, r)[0].Holders) == 0 })
}

// F22, F25: for any invented numbers a client receives an answer or an error. The state is unchanged, and the
// connection continues.
func TestInventedArgumentsChangeNoState(t *testing.T) {
	r := serve(t, 5, master.Config{Sync: false})
	a := r.Join("a")
	right := wire.Trainer{Ordinal: a.Ordinal, Incarnation: a.Incarnation}
	held := a.Take(t)
	c := dial(t, r.Addr)
	const huge = 1<<63 - 1
	tokens := []taskqueue.Token{
		{}, {Epoch: 1}, {Epoch: 1, Pass: 1, Position: -1, Attempt: 1}, {Epoch: 1, Pass: 1, Position: huge, Attempt: 1},
		{Epoch: 1, Dataset: -1, Pass: 1, Attempt: 1}, {Epoch: 1, Dataset: huge, Pass: 1, Attempt: 1}, {Epoch: 1, Pass: 1<<32 - 1, Attempt: 1},
		{Epoch: 1, Pass: 1, Attempt: 1<<32 - 1}, {Epoch: 1<<32 - 1, Pass: 1, Attempt: 1}, {Epoch: 1, Kind: 255, Pass: 1, Attempt: 1}, {Epoch: 1, Pass: 1, Position: 4, Attempt: 1},
	}
	var results []taskqueue.Result
	for _, token := range tokens {
		results = append(results, taskqueue.Result{Token: token}, taskqueue.Result{Token: token, Error: "broken"})
	}
	one := taskqueue.Chunk{}
	type call struct {
		method string
		args   any
		reply  any
	}
	var calls []call
	for _, index := range []int{-1, 0, 4, 5, huge, -huge} {
		for _, token := range tokens {
			calls = append(calls,
				call{"TaskFailed", wire.TaskFailedRequest{Index: index, Token: token, Error: strings.Repeat("x", 1000)}, new(int)},
				call{"TaskFailed", wire.TaskFailedRequest{Trainer: wire.Trainer{Ordinal: 1 << 31, Incarnation: 1}, Index: index, Token: token}, new(int)})
		}
	}
	for _, who := range []wire.Trainer{{}, {Ordinal: a.Ordinal}, {Ordinal: a.Ordinal, Incarnation: a.Incarnation + 1}, {Ordinal: 1<<32 - 1, Incarnation: 1<<64 - 1}, right} {
		calls = append(calls,
			call{"Next", wire.NextRequest{Trainer: who, Seq: 1 << 63, Held: []taskqueue.Token{held}, Finished: results[:16], SeenCommit: 1<<64 - 1}, new(wire.NextReply)},
			call{"Next", wire.NextRequest{Trainer: who, Seq: 0}, new(wire.NextReply)},
			call{"Next", wire.NextRequest{Trainer: who, Seq: 1, Held: []taskqueue.Token{held}, Finished: results}, new(wire.NextReply)},
			call{"Heartbeat", wire.HeartbeatRequest{Trainer: who, Moving: tokens, Progress: taskqueue.Progress{Records: -huge}}, new(int)},
			call{"Staged", wire.StagedRequest{Trainer: who, Version: 1<<64 - 1, Records: -huge}, new(wire.StagedReply)})
		if who != right {
			calls = append(calls, call{"Leave", wire.LeaveRequest{Trainer: who}, new(int)}, call{"RequestSaveModel", wire.SaveModelRequest{Trainer: who}, new(wire.SaveModelReply)})
		}
	}
	calls = append(calls,
		call{"Join", wire.JoinRequest{}, new(wire.JoinReply)}, call{"Join", wire.JoinRequest{ID: "../../job"}, new(wire.JoinReply)},
		call{"ReportDataset", []string{}, new(int)}, call{"ReportDataset", []string{"", "\x00", strings.Repeat("../", 1000)}, new(int)},
		call{"Nothing", 1, new(int)}, call{"Next", "a string", new(wire.NextReply)}, call{"GetTask", wire.NextRequest{Seq: 1}, new(taskqueue.Task)})
	before, err := r.Overview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range calls {
		if err := c.Call("RPCServer."+x.method, x.args, x.reply); errors.Is(err, rpc.ErrShutdown) || strings.Contains(strings.ToLower(asText(err)), "internal error") {
			t.Fatalf("%s(%+v): %v", x.method, x.args, err)
		}
	}
	for _, index := range []int{-1, 0, 1, 5, huge, -huge} { // each receives a task, which returns with the connection
		plain := dial(t, r.Addr)
		finished := taskqueue.Task{Index: index, Chunks: []taskqueue.Chunk{one}, Token: tokens[3]}
		if got := take(t, plain, finished); len(got.Chunks) != 1 {
			t.Errorf("index %d: got %+v", index, got)
		}
		plain.Close()
		mastertest.Eventually(t, "the end of its session", func() bool {
			v, err := r.Overview(t.Context())
			return err == nil && len(v.Trainers) == 1
		})
	}
	after, err := r.Overview(t.Context())
	if err != nil || after.Sets[0].Done != 0 || after.Sets[0].SetAside != 0 || len(after.Trainers) != 1 || len(after.Trainers[0].Tasks) != 1 {
		t.Errorf("state: expected\n%+v\nfound\n%+v, %v", before, after, err)
	}
	if p := mastertest.Verify(t, r.Store)[0]; p.CountedOnce != 0 {
		t.Errorf("expected no counted task, found %d", p.CountedOnce)
	}
}

// A heartbeat reports progress on a few tasks. A heartbeat with more tasks than a trainer can hold costs only its
// answer. The connection and the session continue.
func TestHeartbeatIsBounded(t *testing.T) {
	r := serve(t, 5, master.Config{})
	a := r.Join("a")
	c := dial(t, r.Addr)
	for _, tt := range []struct {
		moving, held int
		want         string
	}{
		{65, 0, "moving: expected at most 64 tasks, found 65"},
		{3000, 0, "moving: expected at most 64 tasks, found 3000"},
		{0, 65, "held: expected at most 64 tasks, found 65"},
		{64, 64, ""},
	} {
		beat := wire.HeartbeatRequest{Trainer: wire.Trainer{Ordinal: a.Ordinal, Incarnation: a.Incarnation}, Moving: make([]taskqueue.Token, tt.moving), Held: make([]taskqueue.Token, tt.held)}
		if err := c.Call("RPCServer.Heartbeat", beat, new(int)); asText(err) != tt.want {
			t.Errorf("heartbeat of %d and %d tasks: got %v, expected %q", tt.moving, tt.held, err, tt.want)
		}
	}
}

// The answer to a heartbeat names each task to give up by its place in the request.
func TestReplyNamesTaskToStop(t *testing.T) {
	r := serve(t, 3, master.Config{})
	a, b := r.Join("a"), r.Join("b")
	counted, running := a.Take(t), b.Take(t)
	a.Take(t, counted)
	beat := wire.HeartbeatRequest{Trainer: wire.Trainer{Ordinal: b.Ordinal, Incarnation: b.Incarnation}, Held: []taskqueue.Token{running, counted, {}}}
	var answer int
	if err := dial(t, r.Addr).Call("RPCServer.Heartbeat", beat, &answer); err != nil || answer != wire.HeartbeatStop(1) {
		t.Errorf("heartbeat: got %b, %v, expected %b", answer, err, wire.HeartbeatStop(1))
	}
}

func asText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
