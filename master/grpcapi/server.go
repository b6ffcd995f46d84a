package grpcapi

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"trainmaster/master"
	pb "trainmaster/proto/trainmaster/v1"
)

// The bounds of a connection.
const (
	maxMessage        = 4 << 20 // a page of the lists is far below it
	maxHeaders        = 16 << 10
	maxStreams        = 256
	connectionTimeout = 10 * time.Second // for the HTTP/2 handshake
	minPing           = 5 * time.Second  // clients that ping more often are disconnected
	pingAfter         = 30 * time.Second // an idle connection is probed
	pingTimeout       = 10 * time.Second
	idleAfter         = 5 * time.Minute // a connection without a call is closed; clients connect again with the next call
	stopTimeout       = 3 * time.Second // what calls under way are given at the end
)

const (
	healthEvery = 100 * time.Millisecond
	speedEvery  = 500 * time.Millisecond
)

// Server is the gRPC API of one master.
type Server struct {
	master *master.Master
	log    *logrus.Entry
	grpc   *grpc.Server
	health *healthService
	speed  master.Speedometer

	stopping   context.Context // ends the streams
	endStreams context.CancelFunc
}

// New returns a server that does nothing until Serve.
func New(m *master.Master, log *logrus.Entry) *Server {
	s := &Server{master: m, log: log}
	s.stopping, s.endStreams = context.WithCancel(context.Background())
	s.grpc = grpc.NewServer(
		//guard:grpc-message-limit
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxSendMsgSize(maxMessage),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(connectionTimeout),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout, MaxConnectionIdle: idleAfter}),
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
	)
	pb.RegisterAdminServer(s.grpc, &admin{master: m, speed: &s.speed, began: time.Now()})
	s.health = newHealthService(m, pb.Admin_ServiceDesc.ServiceName)
	healthpb.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc)
	return s
}

// Serve takes connections until ctx ends; then it lets the calls under way end, for a
// bounded time, and closes the listener and all connections. It serves once.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	var owned sync.WaitGroup
	defer owned.Wait()
	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	owned.Go(func() { s.health.watch(watching) })
	owned.Go(func() { s.watchSpeed(watching) })
	owned.Go(func() {
		<-watching.Done()
		s.stop()
	})
	if err := s.grpc.Serve(l); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve gRPC on %s: %w", l.Addr(), err)
	}
	return nil
}

// stop ends the streams and waits for the calls. Calls that do not end in time are aborted.
func (s *Server) stop() {
	s.health.Shutdown()
	s.endStreams()
	timer := time.AfterFunc(stopTimeout, s.grpc.Stop)
	defer timer.Stop()
	s.grpc.GracefulStop()
}

// watchSpeed observes the reports of the trainers continuously, so that a rate is always available.
func (s *Server) watchSpeed(ctx context.Context) {
	ticker := time.NewTicker(speedEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if status, err := s.master.Status(ctx); err == nil { // else it does not lead
			s.speed.Observe(time.Now(), status)
		}
	}
}
