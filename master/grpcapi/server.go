package grpcapi

import (
	"context"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"trainmaster/internal/grpcdial"
	"trainmaster/internal/grpcserver"
	"trainmaster/master"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

const (
	healthEvery = 100 * time.Millisecond
	speedEvery  = 500 * time.Millisecond

	streamWorkers = 4 // goroutines for calls; if all are busy, a call gets a goroutine of its own
)

// Server is the gRPC API of one master.
type Server struct {
	master *master.Master
	grpc   *grpcserver.Server
	health *healthService
	conns  *connections
	speed  master.Speedometer
}

// DataProxy is where trainers read the records of their tasks.
type DataProxy struct {
	Addr string // host:port of the service DataProxy; "": trainers read the files

	// Register adds the service to the port of this master; nil: another process serves it. Errors, Large and Codec are what its
	// server needs.
	Register func(grpc.ServiceRegistrar)
	Errors   grpcserver.Table
	Large    map[string]grpcserver.Large
	Codec    encoding.CodecV2
}

// New returns a server that does nothing until Serve. It takes at most one proxy.
func New(m *master.Master, log *logrus.Entry, proxies ...DataProxy) *Server {
	var proxy DataProxy
	if len(proxies) > 0 {
		proxy = proxies[0]
	}
	conns := &connections{master: m, newest: map[taskqueue.Ordinal]*connection{}}
	large := map[string]grpcserver.Large{
		pb.Coordinator_ReportDataset_FullMethodName: grpcserver.LargeReport, pb.Coordinator_PushResult_FullMethodName: grpcserver.LargeResult,
	}
	maps.Copy(large, proxy.Large)
	s := &Server{master: m, conns: conns, grpc: grpcserver.New(grpcserver.Config{
		Table: slices.Concat(table, proxy.Errors), Leader: m.Leader, Log: log, Large: large, Codec: proxy.Codec,
		Options: append(tuning(), grpc.StatsHandler(conns)),
	})}
	if proxy.Register != nil {
		proxy.Register(s.grpc)
	}
	pb.RegisterAdminServer(s.grpc, &admin{master: m, speed: &s.speed, began: time.Now()})
	pb.RegisterRendezvousServer(s.grpc, &rendezvousService{master: m})
	services := []string{pb.Admin_ServiceDesc.ServiceName, pb.Rendezvous_ServiceDesc.ServiceName}
	//guard:training-service-chosen
	if m.HasTrainingService() {
		pb.RegisterCoordinatorServer(s.grpc, &coordinator{master: m, log: log, dataProxy: proxy.Addr, streams: &conns.ending})
		services = append(services, pb.Coordinator_ServiceDesc.ServiceName)
	}
	s.health = newHealthService(m, services...)
	healthpb.RegisterHealthServer(s.grpc, s.health)
	return s
}

// tuning returns the options for many short calls: static windows, and goroutines that are not started for each call.
func tuning() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.StaticStreamWindowSize(grpcdial.StreamWindow), grpc.StaticConnWindowSize(grpcdial.ConnectionWindow),
		grpc.NumStreamWorkers(streamWorkers),
	}
}

// Serve takes connections until ctx ends; then it lets the calls under way end, for a
// bounded time, and closes the listener and all connections. It serves once.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	var owned sync.WaitGroup
	defer s.conns.ending.Wait()
	defer owned.Wait()
	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	owned.Go(func() { s.health.watch(watching) })
	owned.Go(func() { s.watchSpeed(watching) })
	// A closed listener is an error unless the context has ended. The context watching may end after the listener.
	return s.grpc.Serve(ctx, l, s.health.Shutdown)
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
