package etcdtest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"trainmaster/etcdstore"
	"trainmaster/internal/freeport"
)

// Environment variables that make a child of the test binary serve etcd.
const (
	processDirEnv   = "TRAINMASTER_ETCDTEST_DIR"
	processQuotaEnv = "TRAINMASTER_ETCDTEST_QUOTA"
	processAddrEnv  = "TRAINMASTER_ETCDTEST_ADDR"
)

// processReady says that TestMain calls Main, which children need as well.
var processReady atomic.Bool

// Process is an etcd in a process of its own, with fsync, that can be killed
// and started again on the same data.
type Process struct {
	t        testing.TB
	dir      string
	addr     string // of its clients, if it stands alone
	quota    int64
	member   *member // of a cluster; nil: it stands alone
	out      io.Reader
	cmd      *exec.Cmd
	stdin    io.Closer // the child ends when it closes
	endpoint string
}

// StartProcess starts etcd in a child of this test binary. quotaBytes 0 is
// etcd's default. It ends with the test, and with the test binary.
func StartProcess(t testing.TB, quotaBytes int64) *Process {
	t.Helper()
	if !processReady.Load() {
		t.Fatal("etcdtest: TestMain must call etcdtest.Main(m)")
	}
	p := &Process{t: t, dir: t.TempDir(), quota: quotaBytes}
	var err error
	if p.addr, err = freeport.Addr("127.0.0.1"); err != nil { // no other process gets the port while etcd is down
		t.Fatal(err)
	}
	p.Start()
	t.Cleanup(p.Kill)
	return p
}

// Endpoint is http://127.0.0.1:PORT; the port stays over Kill and Start.
func (p *Process) Endpoint() string { return p.endpoint }

// Dir is where it keeps its data, for a test that copies or restores them while it is killed.
func (p *Process) Dir() string { return p.dir }

// Pid is the process's id, for a test that stops (SIGSTOP) it.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Store opens a store under a new job on this etcd.
func (p *Process) Store() *etcdstore.Store {
	p.t.Helper()
	return Open(p.t, p.endpoint, NewJob(p.t))
}

// Kill ends it as kill -9 does, and waits until it is gone.
func (p *Process) Kill() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // says that it was killed
	_ = p.stdin.Close()
	p.cmd = nil
}

// Start starts it, again if it was killed, and waits until it serves.
func (p *Process) Start() {
	p.t.Helper()
	p.launch()
	p.await()
}

func (p *Process) launch() {
	p.t.Helper()
	program, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), processDirEnv+"="+p.dir, processQuotaEnv+"="+strconv.FormatInt(p.quota, 10), processAddrEnv+"="+p.addr)
	if p.member != nil {
		text, err := json.Marshal(p.member)
		if err != nil {
			p.t.Fatal(err)
		}
		cmd.Env = append(cmd.Env, memberEnv+"="+string(text))
	}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.cmd, p.stdin, p.out = cmd, in, out
}

// await waits until it serves.
func (p *Process) await() {
	p.t.Helper()
	line, err := bufio.NewReader(p.out).ReadString('\n')
	if err != nil {
		p.Kill()
		p.t.Fatalf("etcd process did not start: %v", err)
	}
	p.endpoint = strings.TrimSpace(line)
}

// serveProcess is the child: it serves until its parent is gone.
func serveProcess(dir string) (code int) {
	endpoint, err := serve(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(endpoint)
	_, _ = io.Copy(io.Discard, os.Stdin)
	// Without ceremony, as in a crash: closing waits for clients.
	if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return 1
	}
	select {}
}

func serve(dir string) (endpoint string, err error) {
	if text := os.Getenv(memberEnv); text != "" {
		return serveMember(dir, text)
	}
	quota, _ := strconv.ParseInt(os.Getenv(processQuotaEnv), 10, 64)
	etcd, err := etcdstore.StartEmbedded(context.Background(), etcdstore.EmbeddedConfig{Dir: dir, QuotaBytes: quota, ClientURL: os.Getenv(processAddrEnv)})
	if err != nil {
		return "", err
	}
	return etcd.Endpoint(), nil
}
