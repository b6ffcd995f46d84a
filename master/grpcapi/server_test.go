package grpcapi_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/grpcapi"
	"trainmaster/master/mastertest"
	pb "trainmaster/proto/trainmaster/v1"
)

var services = []string{"", pb.Admin_ServiceDesc.ServiceName, pb.Coordinator_ServiceDesc.ServiceName}

func health(t *testing.T, conn *grpc.ClientConn, service string) healthpb.HealthCheckResponse_ServingStatus {
	t.Helper()
	reply, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
	if err != nil {
		t.Fatal(err)
	}
	return reply.Status
}

func TestHealthFollowsTheLock(t *testing.T) {
	s := serve(t, 0, master.Config{})
	watch, err := healthpb.NewHealthClient(s.conn).Watch(t.Context(), &healthpb.HealthCheckRequest{Service: services[1]})
	if err != nil {
		t.Fatal(err)
	}
	hears := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for _, service := range services {
			mastertest.Eventually(t, "health "+want.String(), func() bool { return health(t, s.conn, service) == want })
		}
		for {
			if got, err := watch.Recv(); err != nil {
				t.Fatal(err)
			} else if got.Status == want {
				return
			}
		}
	}
	hears(healthpb.HealthCheckResponse_SERVING)

	// Another master queues for the lock. Then the leader loses the lock.
	won := make(chan *etcdstore.Lock, 1)
	queued := make(chan struct{}, 10)
	go func() {
		lock, err := s.store.Campaign(t.Context(), etcdstore.CampaignConfig{TTL: 2 * time.Second, Waiting: func(string) { queued <- struct{}{} }})
		if err != nil {
			t.Error(err)
		}
		won <- lock
	}()
	<-queued
	bids, _, err := s.store.Prefixed(t.Context(), "/master/lock/")
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range bids {
		if strings.Contains(string(value), s.addr) {
			if _, err := s.store.Client().Delete(t.Context(), s.store.Prefix()+key); err != nil {
				t.Fatal(err)
			}
		}
	}
	hears(healthpb.HealthCheckResponse_NOT_SERVING)
	_, err = pb.NewAdminClient(s.conn).Status(t.Context(), &pb.StatusRequest{})
	wants(t, err, codes.Unavailable, "NOT_LEADER")

	lock := <-won
	if lock == nil {
		t.FailNow()
	}
	if err := lock.Resign(t.Context()); err != nil {
		t.Fatal(err)
	}
	hears(healthpb.HealthCheckResponse_SERVING)

	if _, err := healthpb.NewHealthClient(s.conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "nobody"}); status.Code(err) != codes.NotFound {
		t.Errorf("health of an unknown service: %v", err)
	}
}

func TestReflectionListsTheServices(t *testing.T) {
	s := serve(t, 0, master.Config{})
	stream, err := reflectionpb.NewServerReflectionClient(s.conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ask := func(req *reflectionpb.ServerReflectionRequest) *reflectionpb.ServerReflectionResponse {
		t.Helper()
		if err := stream.Send(req); err != nil {
			t.Fatal(err)
		}
		reply, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return reply
	}
	var names []string
	for _, service := range ask(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}).GetListServicesResponse().GetService() {
		names = append(names, service.Name)
	}
	for _, want := range []string{pb.Admin_ServiceDesc.ServiceName, healthpb.Health_ServiceDesc.ServiceName} {
		if !slices.Contains(names, want) {
			t.Errorf("service %s: expected it among %v", want, names)
		}
	}
	file := ask(&reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: services[1] + ".ListTasks"},
	}).GetFileDescriptorResponse().GetFileDescriptorProto()
	if len(file) == 0 || !bytes.Contains(file[0], []byte("ListTasksRequest")) {
		t.Error("expected a descriptor of ListTasks")
	}
}

// raw is a codec that passes bytes through.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

func TestInvalidBytesEndOnlyTheirConnection(t *testing.T) {
	s := serve(t, 5, master.Config{})
	send := func(method string, message []byte) error {
		var reply []byte
		return s.conn.Invoke(t.Context(), method, message, &reply, grpc.ForceCodecV2(raw{}))
	}
	for name, message := range map[string][]byte{
		"a field that ends early": {0x0a, 0x7f, 'x'},
		"no message at all":       bytes.Repeat([]byte{0xff}, 100),
		"invalid UTF-8":           {0x0a, 0x02, 0xc3, 0x28},
	} {
		if err := send(pb.Admin_Status_FullMethodName, message); status.Code(err) != codes.Internal {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, method := range []string{pb.Admin_Status_FullMethodName, pb.Coordinator_ReportDataset_FullMethodName, pb.Coordinator_PushResult_FullMethodName} {
		if err := send(method, make([]byte, 5<<20)); status.Code(err) != codes.ResourceExhausted { // the last two take large messages
			t.Errorf("%s of 5 MiB: %v", method, err)
		}
	}
	if err := s.conn.Invoke(t.Context(), "/trainmaster.v1.Admin/Explode", &emptypb.Empty{}, &emptypb.Empty{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("unknown method: %v", err)
	}

	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+strings.Repeat("\xff", 4096)); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); errors.Is(err, context.DeadlineExceeded) {
		t.Error("connection of invalid bytes: expected its end")
	}

	if reply, err := pb.NewAdminClient(s.conn).Status(t.Context(), &pb.StatusRequest{}); err != nil || reply.Datasets[0].Tasks != 5 {
		t.Errorf("valid client: got %v, %v", reply, err)
	}
}

// F17: a panic ends only its own call.
func TestPanicFailsOneCall(t *testing.T) {
	m, err := master.New(master.Config{Store: etcdtest.Store(t), Log: quiet(), Advertise: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	var lines bytes.Buffer
	log := logrus.New()
	log.SetOutput(&lines)
	server := grpcapi.New(m, logrus.NewEntry(log))
	server.Register(&grpc.ServiceDesc{
		ServiceName: "test.Panics",
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Unary", Handler: func(srv any, ctx context.Context, _ func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
			return intercept(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/test.Panics/Unary"}, func(context.Context, any) (any, error) { panic("no such index") })
		}}},
		Streams: []grpc.StreamDesc{{StreamName: "Stream", ServerStreams: true, ClientStreams: true, Handler: func(any, grpc.ServerStream) error { panic("no such stream") }}},
	}, struct{}{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l) }()
	conn := dial(t, l.Addr().String())

	err = conn.Invoke(t.Context(), "/test.Panics/Unary", &emptypb.Empty{}, &emptypb.Empty{})
	wants(t, err, codes.Internal, "PANIC", "no such index")
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/test.Panics/Stream")
	if err != nil {
		t.Fatal(err)
	}
	wants(t, stream.RecvMsg(&emptypb.Empty{}), codes.Internal, "PANIC", "no such stream")
	if got := health(t, conn, ""); got != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health after the panics: %v", got)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for _, want := range []string{"no such index", "no such stream", "/test.Panics/Unary", "goroutine"} {
		if !strings.Contains(lines.String(), want) {
			t.Errorf("log: expected %q", want)
		}
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	s := serve(t, 0, master.Config{})
	watch, err := healthpb.NewHealthClient(s.conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	s.stop()
	if err := <-s.ended; err != nil {
		t.Error(err)
	}
	s.ended <- nil
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("stop of a watched server: took %v", took)
	}
	for {
		if _, err := watch.Recv(); err != nil {
			break // NOT_SERVING may come first
		}
	}
	_, err = pb.NewAdminClient(s.conn).Status(t.Context(), &pb.StatusRequest{})
	if status.Code(err) != codes.Unavailable {
		t.Errorf("call after the end: got %v", err)
	}
}

// The loss of the port under the server is an error.
func TestServeReportsLossOfPort(t *testing.T) {
	m, err := master.New(master.Config{Store: etcdtest.Store(t), Log: quiet(), Advertise: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := grpcapi.New(m, quiet()).Serve(t.Context(), l); err == nil || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("found %v, want an error with the address", err)
	}
}

// ending is a context that ends before the contexts that are derived from it.
type ending struct {
	context.Context
	ended chan struct{}
}

func (e *ending) Done() <-chan struct{} {
	never := make(chan struct{})
	return never
}

func (e *ending) Err() error {
	select {
	case <-e.ended:
		return context.Canceled
	default:
		return nil
	}
}

// closing is a listener that closes with the context.
type closing struct {
	net.Listener
	ended chan struct{}
}

func (c *closing) Accept() (net.Conn, error) {
	<-c.ended
	return nil, net.ErrClosed
}

// The port closes its listeners when the context of the process ends, perhaps before contexts that are derived from it have ended. Serve
// returns no error.
func TestServeEndsBeforeDerivedContexts(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	m, err := master.New(master.Config{Store: etcdtest.Store(t), Advertise: "127.0.0.1:1", Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	time.AfterFunc(10*time.Millisecond, func() { close(ended) })
	if err := grpcapi.New(m, quiet()).Serve(&ending{t.Context(), ended}, &closing{l, ended}); err != nil {
		t.Error(err)
	}
}
