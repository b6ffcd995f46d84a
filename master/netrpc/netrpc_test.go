package netrpc_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/rpc"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/netrpc"
	"trainmaster/master/onetcd"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

// serve starts a master with a dataset of n tasks and returns its address.
func serve(t testing.TB, n int, config master.Config) (addr string, m *master.Master) {
	t.Helper()
	log := logrus.New()
	log.SetOutput(io.Discard)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config.Advertise = l.Addr().String()
	m, err = master.New(config, onetcd.Store{Store: etcdtest.Store(t), LeaseTTL: time.Minute}, nil, logrus.NewEntry(log))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	server := &netrpc.Server{Master: m, Log: logrus.NewEntry(log)}
	ran, served := make(chan error, 1), make(chan error, 1)
	go func() { ran <- m.Run(ctx) }()
	go func() { served <- server.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		<-ran
		<-served
	})
	for !m.Leading() {
		time.Sleep(time.Millisecond)
	}
	if n > 0 {
		register(t, m, n)
	}
	return l.Addr().String(), m
}

func register(t testing.TB, m *master.Master, n int) {
	t.Helper()
	table := taskqueue.NewTable(n)
	var chunks []recordio.Index
	for i := range n {
		chunks = append(chunks, recordio.Index{Offset: int64(i) * (recordio.HeaderSize + 100), Size: 100, Records: 10, Layout: 1})
	}
	if err := table.Add(taskqueue.File{Path: "/data/a", Size: int64(n) * 120}, chunks); err != nil {
		t.Fatal(err)
	}
	if err := m.Register(t.Context(), table, sha256.Sum256([]byte("x"))); err != nil {
		t.Fatal(err)
	}
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

func TestPlainClientRunsAJob(t *testing.T) {
	addr, _ := serve(t, 30, master.Config{Shuffle: true, Queue: taskqueue.Options{Passes: 2}})
	c := dial(t, addr)
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
		t.Fatalf("saw %d tasks, expected 30", len(seen))
	}
	for index, n := range seen {
		if n != 2 {
			t.Errorf("task %d was given %d times, expected once in each of 2 passes", index, n)
		}
	}
}

// A client that reuses its reply variable may get tasks again, but every count is right.
func TestReusedReplyNeverMiscounts(t *testing.T) {
	addr, m := serve(t, 20, master.Config{Queue: taskqueue.Options{Passes: 3}})
	trained := map[string]bool{} // pass/index really given to the client
	calls := 0
	for {
		c := dial(t, addr)
		var task taskqueue.Task
		for range 7 { // then the connection is closed, and what it holds goes back
			if err := c.Call("RPCServer.GetTask", &task, &task); err != nil {
				if !strings.HasPrefix(err.Error(), "job finished: ") {
					t.Fatal(err)
				}
				if len(trained) == 0 {
					t.Fatal("nothing was trained")
				}
				return
			}
			trained[fmt.Sprint(task.Token.Pass, task.Chunks)] = true
			if calls++; calls > 2000 {
				o, err := m.Overview(t.Context())
				t.Fatalf("the job does not end: %+v %v", o, err)
			}
		}
		c.Close()
	}
}
