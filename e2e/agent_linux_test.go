package e2e

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// agentProcess is `master agent`, as a child of this process.
type agentProcess struct {
	t    testing.TB
	cmd  *exec.Cmd
	conn net.Conn
	last int

	errors string // file with its standard error
}

func startAgent(t testing.TB, dir string, args ...string) *agentProcess {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	_ = ours.Close() // conn has a copy
	if err != nil {
		t.Fatal(err)
	}
	a := &agentProcess{t: t, conn: conn, errors: filepath.Join(t.TempDir(), "errors")}
	errors, err := os.Create(a.errors)
	if err != nil {
		t.Fatal(err)
	}
	defer errors.Close()
	a.cmd = command(context.Background(), t, dir, append([]string{"agent", "--parent", strconv.Itoa(os.Getpid())}, args...)...)
	a.cmd.SysProcAttr = nil // the agent watches this process
	a.cmd.ExtraFiles, a.cmd.Stderr = []*os.File{theirs}, errors
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		_ = a.cmd.Wait() // an error after the test has waited
	})
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return a
}

// said returns what the agent has written to standard error.
func (a *agentProcess) said() string {
	a.t.Helper()
	content, err := os.ReadFile(a.errors)
	if err != nil {
		a.t.Fatal(err)
	}
	return string(content)
}

// call makes a request, and returns the reply.
func (a *agentProcess) call(op string, fields map[string]any) (reply map[string]any) {
	a.t.Helper()
	a.send(op, fields)
	var size uint32
	if err := binary.Read(a.conn, binary.LittleEndian, &size); err != nil {
		a.t.Fatalf("%s: %v\n%s", op, err, a.said())
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(a.conn, body); err != nil {
		a.t.Fatal(err)
	}
	if err := json.Unmarshal(body, &reply); err != nil {
		a.t.Fatal(err)
	}
	if reply["error"] != nil {
		a.t.Fatalf("%s: %v\n%s", op, reply["error"], a.said())
	}
	return reply
}

// send makes a request.
func (a *agentProcess) send(op string, fields map[string]any) {
	a.t.Helper()
	a.last++
	request := map[string]any{"id": a.last, "op": op}
	for k, v := range fields {
		request[k] = v
	}
	body, err := json.Marshal(request)
	if err != nil {
		a.t.Fatal(err)
	}
	if _, err := a.conn.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(body))), body...)); err != nil {
		a.t.Fatal(err)
	}
}

// walk takes and finishes tasks until the job has ended, and returns their number.
func (a *agentProcess) walk() (tasks int) {
	a.t.Helper()
	for finished := []any{}; ; {
		reply := a.call("next", map[string]any{"finished": finished, "wait": 20})
		if reply["over"] != "" {
			return tasks
		}
		finished = nil
		for _, task := range reply["tasks"].([]any) {
			finished = append(finished, task.(map[string]any)["id"])
			tasks++
		}
	}
}

// The program finds the leader in etcd, ignores the signals of a terminal, and counts each task of a pass once. It exits with 0 after close.
func TestAgentServesAProcess(t *testing.T) {
	j := newJob(t)
	j.master("--passes", "1")
	a := startAgent(t, j.dir, j.in("--socket", filepath.Join(t.TempDir(), "s"), "--id", "python")...)
	hello := a.call("hello", map[string]any{"version": 1, "sdk": "0"})
	if hello["trainer"] != "python" || hello["explicit"] != false {
		t.Errorf("found %v", hello)
	}
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		if err := a.cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	a.call("report", map[string]any{"paths": j.data.Train.Paths})
	tasks := a.walk()
	a.call("close", nil)
	if err := a.cmd.Wait(); err != nil {
		t.Errorf("after close: expected exit code 0, found %v", err)
	}
	j.wantVerified(1, tasks)
}
