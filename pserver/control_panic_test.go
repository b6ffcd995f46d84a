package pserver

import (
	"net"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/dataport"
	core "trainmaster/pserver/shard"
)

// A call that panics fails with INTERNAL, and the stack is in the log. The server and its other calls continue.
func TestPanicOfAControlCallEndsOneCall(t *testing.T) {
	logger, hook := logtest.NewNullLogger()
	s := &Server{cfg: Config{Limits: dataport.Limits{HelloTimeout: time.Minute}}}
	server := s.controlServer(new(core.Shard), nil, nil, logrus.NewEntry(logger)) // calls of a server without a shard panic
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///"+listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		conn.Close()
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	for range 2 {
		if _, err := pb.NewParameterServerClient(conn).Describe(t.Context(), &pb.DescribeRequest{}); status.Code(err) != codes.Internal {
			t.Errorf("a call that panics: expected %v, found %v", codes.Internal, err)
		}
	}
	if _, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Errorf("a call after it: %v", err)
	}
	entries := hook.AllEntries()
	if len(entries) != 2 || entries[0].Data["method"] != pb.ParameterServer_Describe_FullMethodName || entries[0].Data["stack"] == nil {
		t.Errorf("log: expected 2 entries with the method and the stack, found %+v", entries)
	}
}
