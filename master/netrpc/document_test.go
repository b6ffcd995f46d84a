package netrpc_test

import (
	"fmt"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"trainmaster/master"
	"trainmaster/master/mastertest"
	"trainmaster/taskqueue"
)

// The program in docs/formats/net-rpc.md runs a job unchanged and without other files of this project: each task once
// in each pass, task 0 included.
func TestMinimalClientOfTheDocument(t *testing.T) {
	page, err := os.ReadFile("../../docs/formats/net-rpc.md")
	if err != nil {
		t.Fatal(err)
	}
	program := regexp.MustCompile("(?s)```go\n(package main\n.*?)```").FindSubmatch(page)
	if program == nil {
		t.Fatal("document: expected a program")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), program[1], 0o600); err != nil {
		t.Fatal(err)
	}
	const tasks, passes = 30, 2
	r := serve(t, tasks, master.Config{Shuffle: true, Queue: taskqueue.Options{Passes: passes}})
	cmd := exec.CommandContext(t.Context(), "go", "run", "main.go", "127.0.0.1:1", r.Addr) // the first address has no master
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GO111MODULE=off", "GOFLAGS=")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if lines := strings.Count(string(out), "/data/part-00000"); lines != tasks*passes {
		t.Errorf("chunks: found %d, expected %d: %s", lines, tasks*passes, out)
	}
	for _, p := range mastertest.Verify(t, r.Store) {
		if p.CountedOnce != tasks || p.Redelivered != 0 {
			t.Errorf("pass %d: %d counted, %d redelivered", p.Pass, p.CountedOnce, p.Redelivered)
		}
	}
}

// If the struct of a client cannot hold a task, its first call returns the reason and no task, so no task is set
// aside because of it. The connection continues.
func TestClientWithAnotherTaskIsRefusedByItsFirstCall(t *testing.T) {
	type index struct{ Offset, Size, Records int64 }
	r := serve(t, 3, master.Config{Queue: taskqueue.Options{FirstTimeout: time.Second}})
	for name, tt := range map[string]struct {
		args any
		want string
	}{
		"an index that is a text": {struct {
			Index  string
			Chunks []taskqueue.Chunk
		}{}, "Index"},
		"a path that is a number": {struct {
			Index  int
			Chunks []struct{ Path int }
		}{}, "Path"},
		"sizes with a sign": {struct {
			Index  int
			Chunks []struct {
				Path  string
				Index index
			}
		}{}, "Size"},
		"a token that is a text": {struct {
			Index  int
			Chunks []taskqueue.Chunk
			Token  string
		}{}, "Token"},
		"no chunks":   {struct{ Index int }{1}, "field Chunks: expected a struct with the fields Index, Chunks, found Index"},
		"other names": {struct{ Task, Parts int }{1, 1}, "type mismatch"},
		"no index":    {struct{ Chunks []taskqueue.Chunk }{}, "field Index"},
		"a number":    {1, "int"},
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, r.Addr)
			for range 2 { // the second call too
				err := c.Call("RPCServer.GetTask", tt.args, &struct{ Index int }{})
				if err == nil || !strings.HasPrefix(err.Error(), "another message format: ") || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got error %v, expected %q", err, tt.want)
				}
			}
			if task := take(t, c, taskqueue.Task{}); len(task.Chunks) != 1 {
				t.Errorf("valid request on the same connection: got %+v", task)
			}
			c.Close()
			mastertest.Eventually(t, "return of the task", func() bool {
				v, err := r.Overview(t.Context())
				return err == nil && len(v.Trainers) == 0
			})
		})
	}
	for _, task := range pending(t, r) {
		if task.Failures != 0 || len(task.Holders) != 0 {
			t.Errorf("task %v: found %d failures and %d holders", task.Token, task.Failures, len(task.Holders))
		}
	}
	if v, err := r.Overview(t.Context()); err != nil || v.Sets[0].SetAside != 0 {
		t.Errorf("%+v, %v", v, err)
	}
}

// A client may omit fields and may send other fields.
func TestClientWithFewerFieldsIsServed(t *testing.T) {
	type task struct {
		Index  int
		Chunks []struct{ Path string }
		Mine   map[string]int
	}
	r := serve(t, 2, master.Config{Queue: taskqueue.Options{Passes: 1}})
	c, err := rpc.DialHTTP("tcp", r.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	finished := task{}
	for calls := 0; ; calls++ {
		next := task{}
		if err := c.Call("RPCServer.GetTask", &finished, &next); err != nil {
			if !strings.HasPrefix(fmt.Sprint(err), "job finished") || calls != 2 {
				t.Errorf("call %d: %v", calls, err)
			}
			return
		}
		finished = next
	}
}
