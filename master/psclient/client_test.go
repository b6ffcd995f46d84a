package psclient_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"trainmaster/master/psclient"
	"trainmaster/master/pscontrol"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is the control API of a parameter server. It records the calls.
type server struct {
	pb.UnimplementedParameterServerServer
	addr string
	stop func()

	mu        sync.Mutex
	heard     []*pb.CommitStepRequest
	refuse    error
	described *pb.DescribeReply
	conns     int
	whole     int // replies with the placement

	hangs   bool // in BeginCut
	aborted int

	rewinds atomic.Int64
	place   func(*pb.SetPlacementRequest) (*pb.SetPlacementReply, error)
}

func (s *server) Rewind(context.Context, *pb.RewindRequest) (*pb.RewindReply, error) {
	s.rewinds.Add(1)
	return &pb.RewindReply{}, nil
}

func (s *server) CommitStep(_ context.Context, r *pb.CommitStepRequest) (*pb.CommitStepReply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard = append(s.heard, r)
	return &pb.CommitStepReply{Version: r.Version}, s.refuse
}

// counting counts the open connections of a server.
type counting struct {
	net.Listener
	s *server
}

func (l counting) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.s.count(1)
	return &counted{Conn: conn, s: l.s}, nil
}

type counted struct {
	net.Conn
	s    *server
	once sync.Once
}

func (c *counted) Close() error {
	c.once.Do(func() { c.s.count(-1) })
	return c.Conn.Close()
}

func (s *server) count(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns += n
}

func (s *server) open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conns
}

func serve(t *testing.T) *server {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{addr: listener.Addr().String()}
	g := grpc.NewServer()
	pb.RegisterParameterServerServer(g, s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Serve(counting{listener, s})
	}()
	s.stop = sync.OnceFunc(func() {
		g.Stop()
		<-done
	})
	t.Cleanup(s.stop)
	return s
}

func client(t *testing.T, addrs func(context.Context) ([]string, error)) *psclient.Client {
	c := &psclient.Client{Addrs: addrs}
	t.Cleanup(c.Close)
	return c
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// codeOf returns the status of the one server that failed.
func codeOf(err error) codes.Code {
	if carrier, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err); ok {
		return carrier.GRPCStatus().Code()
	}
	return codes.OK
}

var step = taskqueue.Step{Version: 8, Epoch: 3, Scale: 0.5, Contributors: []taskqueue.Contributor{{Ordinal: 2, Incarnation: 1 << 40, Records: 7}, {Ordinal: 5, Incarnation: 9, Records: 1<<32 - 1}}}

// Every server receives a committed step unchanged, also a repeated step.
func TestEveryServerReceivesStep(t *testing.T) {
	a, b := serve(t), serve(t)
	c := client(t, func(context.Context) ([]string, error) { return []string{a.addr, b.addr}, nil })
	for range 2 {
		if err := c.CommitStep(within(t), step); err != nil {
			t.Fatal(err)
		}
	}
	want := &pb.CommitStepRequest{Version: 8, JobEpoch: 3, LearningRateScale: 0.5, Contributors: []*pb.StepContributor{{Ordinal: 2, Incarnation: 1 << 40, Records: 7}, {Ordinal: 5, Incarnation: 9, Records: 1<<32 - 1}}}
	for _, s := range []*server{a, b} {
		if len(s.heard) != 2 || !proto.Equal(s.heard[0], want) || !proto.Equal(s.heard[1], want) {
			t.Errorf("steps: found %v, expected twice %v", s.heard, want)
		}
		if n := s.open(); n != 1 {
			t.Errorf("expected one connection to a server, found %d", n)
		}
	}
}

// The error names a server that refuses a step or is unreachable. All other servers receive the step.
func TestRefusingServerIsNamed(t *testing.T) {
	a, b := serve(t), serve(t)
	c := client(t, func(context.Context) ([]string, error) { return []string{a.addr, b.addr}, nil })
	b.refuse = status.Error(codes.FailedPrecondition, "no parameters yet")
	err := c.CommitStep(within(t), step)
	if codeOf(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "commit step 8 on parameter server 1 ("+b.addr+")") {
		t.Errorf("got %v", err)
	}
	b.stop()
	if err := c.CommitStep(within(t), step); err == nil || !strings.Contains(err.Error(), "parameter server 1") {
		t.Errorf("unreachable server: got %v", err)
	}
	if len(a.heard) == 0 {
		t.Error("other server: expected the step")
	}
	nobody := client(t, func(context.Context) ([]string, error) { return nil, errors.New("waiting for parameter server 1") })
	if err := nobody.CommitStep(within(t), step); err == nil || !strings.Contains(err.Error(), "find the parameter servers: waiting for parameter server 1") {
		t.Errorf("without a registered server: got %v", err)
	}
}

// A restarted server is reached at its new address. The connection to the old address is closed.
func TestRestartedServerIsReachedAtNewAddress(t *testing.T) {
	a, old, next := serve(t), serve(t), serve(t)
	addrs := []string{a.addr, old.addr}
	c := client(t, func(context.Context) ([]string, error) { return addrs, nil })
	if err := c.CommitStep(within(t), step); err != nil {
		t.Fatal(err)
	}
	addrs = []string{a.addr, next.addr}
	if err := c.CommitStep(within(t), step); err != nil {
		t.Fatal(err)
	}
	if len(next.heard) != 1 || len(old.heard) != 1 || len(a.heard) != 2 {
		t.Errorf("steps: found %d, %d and %d; expected 2, 1 and 1", len(a.heard), len(old.heard), len(next.heard))
	}
	for deadline := time.Now().Add(10 * time.Second); old.open() > 0; time.Sleep(time.Millisecond) { // interval between checks
		if time.Now().After(deadline) {
			t.Fatal("connection to the old address: expected its end")
		}
	}
	if a.open() != 1 || next.open() != 1 {
		t.Errorf("connections: found %d and %d, expected one each", a.open(), next.open())
	}
}

// The end of the context ends a call to a server that does not answer.
func TestSilentServer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and does not answer
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	c := client(t, func(context.Context) ([]string, error) { return []string{listener.Addr().String()}, nil })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	if err := c.CommitStep(ctx, step); codeOf(err) != codes.DeadlineExceeded || time.Since(began) > 10*time.Second {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
}

// The error of a missing server has its index and a command that starts a server.
func TestMissingServerIsNamedWithStartCommand(t *testing.T) {
	a := serve(t)
	list := func(addrs ...string) func(context.Context) ([]string, error) {
		return func(context.Context) ([]string, error) { return addrs, nil }
	}
	c := client(t, nil)
	c.Present, c.Registered = list(a.addr, ""), list(a.addr)
	stored := []byte(`{"format":2,"epoch":1,"shards":2,"goal":3,"owners":"0 1"}`)
	if _, err := c.Resize(within(t), nil, 3); !missed(err, "1 (of 0 to 1)") {
		t.Errorf("resize: got %v", err)
	}
	if err := c.SendPlacement(within(t), 1, stored); !missed(err, "1 (of 0 to 1)") {
		t.Errorf("placement: got %v", err)
	}
	if _, _, err := c.Move(within(t), 1, stored); !missed(err, "2 (of 0 to 2)") {
		t.Errorf("move: got %v", err)
	}
	c.Present = list()
	if _, err := c.Resize(within(t), nil, 3); !errors.Is(err, pscontrol.ErrNoServers) {
		t.Errorf("job without servers: got %v", err)
	}
}

// A rollback to a new placement reaches the servers that the placement added, even if the watch still has their earlier number.
func TestRollbackReachesServersOfTheNewPlacement(t *testing.T) {
	a, b := serve(t), serve(t)
	c := client(t, func(context.Context) ([]string, error) { return []string{a.addr}, nil })
	c.Present = func(context.Context) ([]string, error) { return []string{a.addr, b.addr}, nil }
	if err := c.Rollback(within(t), 1, 2, nil, nil); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]*server{"a": a, "b": b} {
		if n := s.rewinds.Load(); n != 1 {
			t.Errorf("server %s: expected one rollback, got %d", name, n)
		}
	}
}

func missed(err error, index string) bool {
	return err != nil && strings.Contains(err.Error(), "parameter server with index "+index+" is not there: "+psclient.StartAnother)
}
