package agent_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"trainmaster/master/mastertest"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

// A pass by one agent: each record is read once, and each task counts once.
func TestAgentTrainsAPass(t *testing.T) {
	for name, options := range map[string]recordio.WriterOptions{
		"uncompressed": {}, "snappy": {Compression: recordio.Snappy}, "gzip": {Compression: recordio.Gzip},
		"second layout": {Compression: recordio.Snappy, Layout: recordio.Second},
	} {
		t.Run(name, func(t *testing.T) {
			m := lead(t, taskqueue.Options{Passes: 1})
			p := begin(t, m.Addr, "a", "")
			p.call(t, "hello", map[string]any{"version": 1})
			p.call(t, "report", map[string]any{"paths": []string{dataset(t, options)}})
			var records []string
			finished := []int{}
			for {
				a := p.call(t, "next", map[string]any{"finished": finished, "wait": 20})
				if a.Over != "" {
					break
				}
				finished = nil
				for _, task := range a.Tasks {
					for _, c := range task.Chunks {
						got := p.call(t, "chunk", fieldsOf(t, c))
						records = append(records, p.records(t, got)...)
						p.post(0, "free", map[string]any{"key": got.Key})
					}
					finished = append(finished, task.ID)
				}
			}
			slices.Sort(records)
			if len(slices.Compact(slices.Clone(records))) != 12 || len(records) != 12 || records[0] != "record 0 of file 0" {
				t.Errorf("expected 12 different records, found %q", records)
			}
			p.call(t, "close", nil)
			if code, err := p.wait(); code != 0 || err != nil {
				t.Errorf("after close: expected exit code 0, found %d, %v", code, err)
			}
			if r := mastertest.Verify(t, m.Store); len(r) != 1 || r[0].CountedOnce != 6 {
				t.Errorf("expected one pass with 6 tasks, found %+v", r)
			}
		})
	}
}

// A waiting request delays no other one, and the reply to a request that was given up is recognized by its number.
func TestWaitingRequestDelaysNoOther(t *testing.T) {
	m := lead(t, taskqueue.Options{Passes: 1}) // without a dataset, next waits
	p := begin(t, m.Addr, "a", "")
	p.call(t, "hello", map[string]any{"version": 1})
	given := p.send("next", map[string]any{"wait": 50})
	if a := p.call(t, "next", map[string]any{"wait": 0, "now": true}); a.Wait != "task" {
		t.Errorf("expected no task before the first request ended, found %s", a.raw)
	}
	if err := m.ReportDataset(t.Context(), []string{dataset(t, recordio.WriterOptions{})}); err != nil {
		t.Fatal(err)
	}
	if a, err := p.await(given); err != nil || len(a.Tasks) == 0 { // call would have dropped an earlier reply
		t.Errorf("the first request: expected the first task, found %+v, %v", a, err)
	}
}

// The other trainers have the rest of the tasks, and the master holds back its answer to a request for a task. A finish does not wait for it.
func TestLastFinishIsStoredImmediately(t *testing.T) {
	m := lead(t, taskqueue.Options{Passes: 1})
	if err := m.ReportDataset(t.Context(), []string{dataset(t, recordio.WriterOptions{})}); err != nil {
		t.Fatal(err)
	}
	other := m.Join("other")
	token := other.Take(t)
	for range 4 {
		token = other.Take(t, token)
	}
	p := begin(t, m.Addr, "a", "")
	last := p.call(t, "next", map[string]any{"wait": 20}).Tasks[0].ID // the other trainer has the fifth of six tasks
	p.send("next", map[string]any{"wait": 30})
	// The agent takes both requests at the same time. If the first has not begun, the test finds nothing wrong.
	time.Sleep(50 * time.Millisecond)
	began := time.Now()
	p.call(t, "finish", map[string]any{"finished": []int{last}})
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("expected the finish to be stored immediately, found %v", took)
	}
}

// A trainer is killed, also while a fork of it has its sockets. Its tasks return immediately, and one is charged with a loss.
func TestDeadTrainerReturnsItsTasksAtOnce(t *testing.T) {
	for _, forks := range []bool{false, true} {
		t.Run(fmt.Sprintf("forks %v", forks), func(t *testing.T) { killTrainer(t, forks, 0) })
	}
	// The kernel reports the end of the process about 100 ms after it has closed the sockets.
	t.Run("ends slowly", func(t *testing.T) { killTrainer(t, false, 512<<20) })
}

// killTrainer kills a trainer. forks: a child of it has its sockets. memory: bytes that its files hold.
func killTrainer(t *testing.T, forks bool, memory int) {
	m := lead(t, taskqueue.Options{Passes: 1, Grace: time.Hour, SessionTTL: time.Hour})
	if err := m.ReportDataset(t.Context(), []string{dataset(t, recordio.WriterOptions{})}); err != nil {
		t.Fatal(err)
	}
	own, err := os.MkdirTemp("", "agent") // a path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(own) })
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"=trainer", addrEnv+"="+m.Addr, idEnv+"=victim", socketEnv+"="+filepath.Join(own, "agent"), forksEnv+"="+strconv.FormatBool(forks), memoryEnv+"="+strconv.Itoa(memory))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	fork := 0
	for tasks := 0; tasks < 2 && lines.Scan(); {
		switch {
		case strings.HasPrefix(lines.Text(), "task "):
			tasks++
		case strings.HasPrefix(lines.Text(), "fork "):
			if _, err := fmt.Sscan(lines.Text()[5:], &fork); err != nil {
				t.Fatal(err)
			}
		default:
			t.Fatal(lines.Text())
		}
	}
	if forks {
		t.Cleanup(func() { kill(t, fork) })
	}
	kill(t, cmd.Process.Pid)
	_ = cmd.Wait() // killed
	began := time.Now()
	mastertest.Eventually(t, "the tasks of the dead trainer are free", func() bool {
		pending, err := m.PendingTasks(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(pending) > 0 && !slices.ContainsFunc(pending, func(p taskqueue.PendingTask) bool { return len(p.Holders) > 0 })
	})
	t.Logf("tasks free after %v", time.Since(began))
	losses := 0
	pending, err := m.PendingTasks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range pending {
		losses += task.Losses
	}
	if losses != 1 || len(pending) < 2 {
		t.Errorf("expected two tasks, one of them with a loss, found %+v", pending)
	}
	mastertest.Eventually(t, "the directory of the dead trainer is removed", func() bool {
		_, err := os.Stat(own)
		return errors.Is(err, fs.ErrNotExist)
	})
}

// The trainer closes its connection: its finishes count, and its other task is not charged.
func TestClosedConnectionLeavesInOrder(t *testing.T) {
	m := lead(t, taskqueue.Options{Passes: 1, Grace: time.Hour, SessionTTL: time.Hour})
	if err := m.ReportDataset(t.Context(), []string{dataset(t, recordio.WriterOptions{})}); err != nil {
		t.Fatal(err)
	}
	p := begin(t, m.Addr, "a", "")
	first := p.call(t, "next", map[string]any{"wait": 20})
	p.call(t, "next", map[string]any{"wait": 20})
	p.post(0, "finish", map[string]any{"finished": []int{first.Tasks[0].ID}})
	p.conn.Close()
	if code, err := p.wait(); code != 0 || err != nil {
		t.Errorf("expected exit code 0, found %d, %v", code, err)
	}
	pending, err := m.PendingTasks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range pending {
		if len(task.Holders) > 0 || task.Losses+task.Failures > 0 {
			t.Errorf("task %+v: expected no holder and no loss", task)
		}
	}
	overview, err := m.Overview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(overview.Sets) != 1 || overview.Sets[0].Done != 1 {
		t.Errorf("expected one counted task, found %+v", overview.Sets)
	}
}

// Workers connect to the socket. They read chunks, and a worker that dies frees what it held.
func TestWorkersReadChunksOverTheSocket(t *testing.T) {
	m := lead(t, taskqueue.Options{Passes: 1})
	socket := filepath.Join(t.TempDir(), "s")
	p := begin(t, m.Addr, "a", socket)
	p.call(t, "report", map[string]any{"paths": []string{dataset(t, recordio.WriterOptions{})}})
	chunk := fieldsOf(t, p.call(t, "next", map[string]any{"wait": 20}).Tasks[0].Chunks[0])
	info, err := os.Stat(socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket: expected mode 0600, found %v, %v", info.Mode(), err)
	}
	var keys []uint64
	for range 3 {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		w := newPeer(conn, nil)
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		a := w.call(t, "chunk", chunk)
		if r := w.records(t, a); len(r) != 2 || !strings.HasPrefix(r[0], "record ") {
			t.Errorf("worker: found %q", r)
		}
		keys = append(keys, a.Key)
		w.refused(t, "invalid", "main connection", "next", nil)
		conn.Close()
	}
	if keys[0] != keys[1] || keys[1] != keys[2] {
		t.Errorf("expected the same memory for the same chunk, found the keys %v", keys)
	}
	p.call(t, "close", nil)
	if _, err := p.wait(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(socket); err == nil {
		t.Error("the socket exists after the end of the agent")
	}
}

// The content of a chunk stays while a connection holds it, although many others are read.
func TestHeldChunkKeepsItsContent(t *testing.T) {
	m := lead(t, taskqueue.Options{Passes: 20})
	p := begin(t, m.Addr, "a", "")
	p.call(t, "report", map[string]any{"paths": []string{dataset(t, recordio.WriterOptions{})}})
	first := p.call(t, "next", map[string]any{"wait": 20})
	held := p.call(t, "chunk", fieldsOf(t, first.Tasks[0].Chunks[0]))
	fd := p.fds[0]
	p.fds = p.fds[1:]
	again := p.call(t, "chunk", fieldsOf(t, first.Tasks[0].Chunks[0]))
	p.records(t, again)
	p.post(0, "free", map[string]any{"key": again.Key}) // one of two holds
	memory, err := mapped(fd, held.Size)
	if err != nil {
		t.Fatal(err)
	}
	before := string(memory)
	finished := []int{first.Tasks[0].ID}
	for range 40 {
		a := p.call(t, "next", map[string]any{"finished": finished, "wait": 20})
		finished = []int{a.Tasks[0].ID}
		for _, c := range a.Tasks[0].Chunks {
			got := p.call(t, "chunk", fieldsOf(t, c))
			p.records(t, got)
			p.post(0, "free", map[string]any{"key": got.Key})
		}
	}
	if string(memory) != before {
		t.Errorf("the memory of a held chunk has changed from %q to %q", before, memory)
	}
}

// Errors name what was expected and found, and leave the session as it is.
func TestErrorsOfRequests(t *testing.T) {
	m := lead(t, taskqueue.Options{Passes: 1})
	p := begin(t, m.Addr, "a", "")
	p.refused(t, "invalid", "expected 1, found 7", "hello", map[string]any{"version": 7})
	p.call(t, "hello", map[string]any{"version": 1})
	p.refused(t, "invalid", "operation", "fly", nil)
	p.refused(t, "invalid", "paths", "report", nil)
	p.refused(t, "invalid", "--explicit-commit", "applied", map[string]any{"task": 1, "step": 1, "n": 1})
	p.refused(t, "invalid", "--explicit-commit", "last_step", nil)
	p.refused(t, "invalid", "chunk of a task", "chunk", nil)
	p.refused(t, "not_found", "no such file", "chunk", map[string]any{"path": "/nowhere/x", "records": 1, "layout": 1})
	p.refused(t, "invalid", "Parquet library", "chunk", map[string]any{"path": "/x", "records": 1, "layout": 6})
	p.refused(t, "invalid", "numbers 4 to 6", "chunk", map[string]any{"path": "range://x?records=9&per-task=3", "offset": 4, "records": 3, "layout": 5})

	p.refused(t, "not_found", "the glob matches no file", "report", map[string]any{"paths": []string{"/nowhere/x-*"}})
	glob := dataset(t, recordio.WriterOptions{})
	p.call(t, "report", map[string]any{"paths": []string{glob}})
	a := p.call(t, "next", map[string]any{"wait": 20})
	chunk := fieldsOf(t, a.Tasks[0].Chunks[0])
	path := chunk["path"].(string)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	damaged := slices.Clone(content)
	damaged[number(t, chunk["offset"])+recordio.HeaderSize+5] ^= 1
	if err := os.WriteFile(path, damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	p.refused(t, "damaged", "replaced", "chunk", chunk)
	if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	p.refused(t, "damaged", path+": byte", "chunk", chunk)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	p.records(t, p.call(t, "chunk", chunk)) // an error is not kept
	p.call(t, "fail", map[string]any{"task": a.Tasks[0].ID, "error": "refused by a test"})
	p.call(t, "finish", map[string]any{"finished": []int{a.Tasks[0].ID, 77}}) // repeated, unknown: no effect
	mastertest.Eventually(t, "the failure is stored", func() bool {
		pending, err := m.PendingTasks(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(pending, func(p taskqueue.PendingTask) bool { return p.Failures == 1 })
	})
}

// A frame that is no request ends the connection and the agent, with its tasks returned.
func TestInvalidFrameEndsTheAgent(t *testing.T) {
	m := lead(t, taskqueue.Options{Passes: 1})
	for name, frame := range map[string]string{"no JSON": "\x01\x00\x00\x00x", "longer than allowed": "\x01\x00\x10\x00"} {
		p := begin(t, m.Addr, "a", "")
		p.call(t, "hello", map[string]any{"version": 1})
		if _, err := p.conn.Write([]byte(frame)); err != nil {
			t.Fatal(err)
		}
		if code, err := p.wait(); code != 1 || err != nil {
			t.Errorf("%s: expected exit code 1, found %d, %v", name, code, err)
		}
	}
}

// The master is away: hello and next answer within their time.
func TestMasterThatIsAway(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	p := begin(t, addr, "a", "")
	p.refused(t, "timeout", "no result", "hello", map[string]any{"version": 1, "wait": 0.2})
}

func number(t *testing.T, v any) int {
	t.Helper()
	n, err := v.(json.Number).Int64()
	if err != nil {
		t.Fatal(err)
	}
	return int(n)
}
