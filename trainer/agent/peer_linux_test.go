package agent_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/mastertest"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
	"trainmaster/trainer"
	"trainmaster/trainer/agent"
	"trainmaster/trainer/agent/arena"
	"trainmaster/trainer/rendezvous"
)

// The environment of a child of the test binary.
const (
	roleEnv   = "AGENT_TEST_ROLE" // agent, or trainer: a process that starts an agent and takes tasks
	addrEnv   = "AGENT_TEST_ADDR"
	idEnv     = "AGENT_TEST_ID"
	socketEnv = "AGENT_TEST_SOCKET"
	parentEnv = "AGENT_TEST_PARENT"
	forksEnv  = "AGENT_TEST_FORKS"
	memoryEnv = "AGENT_TEST_MEMORY"

	serversEnv = "AGENT_TEST_SERVERS" // parameter servers
)

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "agent":
		os.Exit(runAgent())
	case "trainer":
		os.Exit(runTrainer())
	}
	etcdtest.Main(m)
}

// runAgent is an agent as cmd/master runs it.
func runAgent() int {
	parent, _ := strconv.Atoi(os.Getenv(parentEnv))
	logger := logrus.New()
	log := logrus.NewEntry(logger)
	id := os.Getenv(idEnv)
	if os.Getenv(socketEnv) == memberSocket {
		err := agent.RunMember(context.Background(), agent.MemberConfig{
			FD: 3, Parent: parent, Program: "1.2.3", Log: log,
			Member: &rendezvous.Client{Locate: trainer.At(os.Getenv(addrEnv)), Log: log, Member: &pb.RingMember{Id: id, Ports: []uint32{1}, Processes: 1}},
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
	var servers arena.Config
	if addrs := os.Getenv(serversEnv); addrs != "" {
		servers.Servers = func(context.Context) ([]string, error) { return strings.Split(addrs, ","), nil }
	}
	err := agent.Run(context.Background(), agent.Config{
		Servers: servers,
		FD:      3, Parent: parent, Socket: os.Getenv(socketEnv), Program: "1.2.3", Job: "default", Log: log,
		Trainer: trainer.Config{ID: id, Locate: trainer.At(os.Getenv(addrEnv)), Log: log, Heartbeat: 50 * time.Millisecond},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// runTrainer starts an agent, finishes a task, takes two more, prints their numbers, and waits for its death. A child keeps the sockets open.
func runTrainer() int {
	if size, _ := strconv.ParseInt(os.Getenv(memoryEnv), 10, 64); size > 0 {
		fd, err := unix.MemfdCreate("memory of a trainer", unix.MFD_CLOEXEC)
		if err = errors.Join(err, unix.Fallocate(fd, 0, 0, size)); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	p, err := startAgent(os.Getenv(addrEnv), os.Getenv(idEnv), os.Getenv(socketEnv))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	if os.Getenv(forksEnv) == "true" {
		fork := exec.Command("sleep", "1000")
		mine, err := p.conn.File()
		if err != nil {
			fmt.Println(err)
			return 1
		}
		fork.ExtraFiles = []*os.File{mine}
		if err := fork.Start(); err != nil {
			fmt.Println(err)
			return 1
		}
		fmt.Println("fork", fork.Process.Pid)
	}
	finished := []int{}
	for i := range 3 {
		out, err := p.try("next", map[string]any{"wait": 20, "finished": finished})
		if err != nil {
			fmt.Println(err)
			return 1
		}
		finished = nil
		if i == 0 {
			finished = []int{out.Tasks[0].ID}
			continue
		}
		fmt.Println("task", out.Tasks[0].Index)
	}
	select {}
}

// peer is a training process.
type peer struct {
	conn   *net.UnixConn
	reader *bufio.Reader
	cmd    *exec.Cmd
	last   uint64
	fds    []int
}

// startAgent starts an agent as a child of this process.
func startAgent(addr, id, socket string) (*peer, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer theirs.Close()
	defer ours.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"=agent", addrEnv+"="+addr, idEnv+"="+id, socketEnv+"="+socket, parentEnv+"="+strconv.Itoa(os.Getpid()), "GORACE=atexit_sleep_ms=0")
	cmd.ExtraFiles, cmd.Stderr = []*os.File{theirs}, os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, err
	}
	return newPeer(conn.(*net.UnixConn), cmd), nil
}

func newPeer(conn *net.UnixConn, cmd *exec.Cmd) *peer {
	p := &peer{conn: conn, cmd: cmd}
	p.reader = bufio.NewReader(p)
	return p
}

// Read reads bytes, and keeps the descriptors that arrive with them.
func (p *peer) Read(b []byte) (int, error) {
	rights := make([]byte, unix.CmsgSpace(4*16))
	n, size, _, _, err := p.conn.ReadMsgUnix(b, rights)
	if err != nil {
		return 0, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:size])
	for _, m := range messages {
		fds, _ := unix.ParseUnixRights(&m)
		p.fds = append(p.fds, fds...)
	}
	if n == 0 && err == nil {
		return 0, net.ErrClosed
	}
	return n, err
}

// answer is a reply of any operation.
type answer struct {
	ID    uint64
	Error *struct{ Kind, Text string }
	Tasks []struct {
		ID, Index, Base int
		Pass            int
		Chunks          []json.RawMessage
	}
	Wait, Over  string
	Stopped     []int
	Incarnation uint64
	Explicit    bool
	Step        uint64
	Dropped     bool
	FD          bool
	Size        int
	Records     int
	Gap         int
	Key         uint64

	raw []byte
}

func (p *peer) send(op string, fields map[string]any) uint64 {
	p.last++
	p.post(p.last, op, fields)
	return p.last
}

// post sends a request; without a number, it has no reply.
func (p *peer) post(id uint64, op string, fields map[string]any) {
	r := map[string]any{}
	for k, v := range fields {
		r[k] = v
	}
	r["op"] = op
	if id > 0 {
		r["id"] = id
	}
	body, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	p.raw(body)
}

func (p *peer) raw(body []byte) {
	_, _ = p.conn.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(body))), body...)) // the next read has the error
}

func (p *peer) receive() (*answer, error) {
	var size uint32
	if err := binary.Read(p.reader, binary.LittleEndian, &size); err != nil {
		return nil, err
	}
	a := &answer{raw: make([]byte, size)}
	for at := 0; at < len(a.raw); {
		n, err := p.reader.Read(a.raw[at:])
		if err != nil {
			return nil, err
		}
		at += n
	}
	return a, json.Unmarshal(a.raw, a)
}

// await returns the reply to a request, and drops others.
func (p *peer) await(id uint64) (*answer, error) {
	for {
		a, err := p.receive()
		if err != nil || a.ID == id {
			return a, err
		}
	}
}

// try makes a request. An error of the reply is an error.
func (p *peer) try(op string, fields map[string]any) (*answer, error) {
	a, err := p.await(p.send(op, fields))
	if err == nil && a.Error != nil {
		err = fmt.Errorf("%s: %s: %s", op, a.Error.Kind, a.Error.Text)
	}
	return a, err
}

// call makes a request that must succeed.
func (p *peer) call(t *testing.T, op string, fields map[string]any) *answer {
	t.Helper()
	a, err := p.try(op, fields)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// refused makes a request that must fail, with an error of a kind whose text has some words.
func (p *peer) refused(t *testing.T, kind, words, op string, fields map[string]any) {
	t.Helper()
	a, err := p.await(p.send(op, fields))
	if err != nil {
		t.Fatal(err)
	}
	if a.Error == nil || a.Error.Kind != kind || !strings.Contains(a.Error.Text, words) {
		t.Errorf("%s: expected an error of kind %s with %q, found %s", op, kind, words, a.raw)
	}
}

// records maps a chunk and returns its records.
func (p *peer) records(t *testing.T, a *answer) []string {
	t.Helper()
	if !a.FD || len(p.fds) == 0 {
		t.Fatalf("expected a descriptor, found %s", a.raw)
	}
	fd := p.fds[0]
	p.fds = p.fds[1:]
	defer unix.Close(fd)
	memory, err := unix.Mmap(fd, 0, a.Size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(memory) }()
	if _, err := unix.Mmap(fd, 0, a.Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		t.Error("the memory of a chunk can be mapped for writing")
	}
	var list []string
	for i := range a.Records {
		from, to := binary.LittleEndian.Uint32(memory[4*i:]), binary.LittleEndian.Uint32(memory[4*i+4:])
		list = append(list, string(memory[from:int(to)-a.Gap]))
	}
	return list
}

// wait returns the exit code of the agent.
func (p *peer) wait() (int, error) {
	defer time.AfterFunc(time.Minute, func() { _ = p.cmd.Process.Kill() }).Stop() // an agent that stays has no exit code
	err := p.cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// begin starts an agent of this process, which ends with the test.
func begin(t testing.TB, addr, id, socket string) *peer {
	t.Helper()
	p, err := startAgent(addr, id, socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.conn.Close()
		_, _ = p.wait()
		for _, fd := range p.fds {
			unix.Close(fd)
		}
	})
	_ = p.conn.SetDeadline(time.Now().Add(time.Minute))
	return p
}

// dataset writes two files with 3 chunks of 2 records each, and returns their glob.
func dataset(t *testing.T, options recordio.WriterOptions) string {
	t.Helper()
	dir := t.TempDir()
	for f := range 2 {
		file, err := os.Create(filepath.Join(dir, fmt.Sprintf("part-%d", f)))
		if err != nil {
			t.Fatal(err)
		}
		options.RecordsPerChunk = 2
		w := recordio.NewWriter(file, options)
		for r := range 6 {
			if err := w.Write(fmt.Appendf(nil, "record %d of file %d", r, f)); err != nil {
				t.Fatal(err)
			}
		}
		written := time.Unix(1_700_000_000, 0) // a file that a test writes again has another time, also within a tick of the clock of the file system
		if err := errors.Join(w.Close(), file.Close(), os.Chtimes(file.Name(), written, written)); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "part-*")
}

// lead starts a master.
func lead(t testing.TB, options taskqueue.Options) *mastertest.Running {
	t.Helper()
	return mastertest.Start(t, etcdtest.Store(t), master.Config{Queue: options})
}

// kill ends a process with SIGKILL.
func kill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

func mapped(fd, size int) ([]byte, error) {
	defer unix.Close(fd)
	return unix.Mmap(fd, 0, size, unix.PROT_READ, unix.MAP_SHARED)
}

// fieldsOf returns the fields of a chunk, with numbers as they came.
func fieldsOf(t *testing.T, chunk json.RawMessage) (fields map[string]any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(chunk))
	d.UseNumber()
	if err := d.Decode(&fields); err != nil {
		t.Fatal(err)
	}
	return fields
}
