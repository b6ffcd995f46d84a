package proxy

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"trainmaster/dataset"
	"trainmaster/internal/grpcserver"
	pb "trainmaster/proto/trainmaster/v1"
)

// Config has the settings of a proxy. The zero value reads any file.
type Config struct {
	// Roots are the directories that must contain all files once symlinks are resolved, and the URLs of prefixes that must contain all
	// objects. Empty means any directory and no URL.
	Roots []string
	// Stores opens URLs; nil means dataset.DefaultStores.
	Stores *dataset.Stores
	// MaxReaders is the maximum number of calls of ReadData. Zero means DefaultMaxReaders.
	MaxReaders int
	// Idle is the time after which a stream without readers expires, and a reader ends whose client accepts no batch. Zero means
	// DefaultIdle.
	Idle time.Duration
}

// Defaults of Config.
const (
	DefaultMaxReaders = 64
	DefaultIdle       = 10 * time.Minute
)

// Service implements the gRPC service DataProxy.
type Service struct {
	pb.UnimplementedDataProxyServer
	config  Config
	streams streams
	readers *semaphore.Weighted
}

// NewService checks the roots and returns a service without streams. Its server needs Codec.
func NewService(config Config) (*Service, error) {
	if config.MaxReaders == 0 {
		config.MaxReaders = DefaultMaxReaders
	}
	if config.Idle == 0 {
		config.Idle = DefaultIdle
	}
	if config.MaxReaders < 0 || config.Idle < 0 {
		return nil, fmt.Errorf("data proxy: expected MaxReaders and Idle of 0 or more, found %d and %v", config.MaxReaders, config.Idle)
	}
	if _, err := dataset.NewRoots(config.Roots); err != nil {
		return nil, err
	}
	//guard:proxy-reader-limit
	readers := semaphore.NewWeighted(int64(config.MaxReaders))
	return &Service{config: config, streams: streams{idle: config.Idle, byID: map[int64]*stream{}}, readers: readers}, nil
}

// Codec lets a server send the batches of a Service.
func Codec() encoding.CodecV2 { return newCodec() }

// Large has the methods with specifications of thousands of files.
var Large = map[string]grpcserver.Large{pb.DataProxy_CreateStream_FullMethodName: grpcserver.LargeReport}

// Register adds the service to a server that has Codec, Large, and the errors of Table.
func (s *Service) Register(server grpc.ServiceRegistrar) { pb.RegisterDataProxyServer(server, s) }

// Serve serves the proxy, the health service and the reflection service until ctx ends.
func (s *Service) Serve(ctx context.Context, l net.Listener, log *logrus.Entry) error {
	server := grpcserver.New(grpcserver.Config{Table: Table, Log: log, Large: Large, Codec: Codec()})
	s.Register(server)
	healths := health.NewServer()
	healths.SetServingStatus(pb.DataProxy_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(server, healths)
	return server.Serve(ctx, l, healths.Shutdown)
}

// CreateStream checks the files of a specification and returns the id of a stream.
func (s *Service) CreateStream(ctx context.Context, request *pb.CreateStreamRequest) (*pb.CreateStreamResponse, error) {
	spec, err := NewSpec(request.GetSpec(), s.config.Roots)
	if err != nil {
		return nil, err
	}
	spec.stores = s.config.Stores
	if err := spec.Stat(ctx); err != nil {
		return nil, err
	}
	id, err := s.streams.add(spec)
	return &pb.CreateStreamResponse{StreamId: id}, err
}

// ReadData sends the records of a stream.
func (s *Service) ReadData(request *pb.DataBatchRequest, out pb.DataProxy_ReadDataServer) error {
	spec, end, err := s.streams.use(request.StreamId)
	if err != nil {
		return err
	}
	if err := s.admit(request, spec); err != nil {
		end()
		return err
	}
	ctx, cancel := context.WithCancelCause(out.Context())
	defer cancel(nil)
	sent := make(chan error, 1)
	go func() {
		defer s.readers.Release(1)
		defer end()
		sent <- s.send(ctx, cancel, spec.Read(request.StartRecord), request.BatchSize, out)
	}()
	select {
	case err := <-sent:
		return err
	case <-ctx.Done(): // a file system that hangs, or a client that accepts no batch, delays only the reader
		return context.Cause(ctx)
	}
}

// admit checks a request, and takes the place of a reader.
func (s *Service) admit(request *pb.DataBatchRequest, spec *Spec) error {
	switch {
	case request.StartRecord < 0 || request.StartRecord > spec.Len():
		return grpcserver.BadArgument("start_record", "expected 0 to %d, the number of records of the stream, found %d", spec.Len(), request.StartRecord)
	case request.BatchSize < 1:
		return grpcserver.BadArgument("batch_size", "expected 1 or more, found %d", request.BatchSize)
	}
	if !s.readers.TryAcquire(1) {
		return fmt.Errorf("%w: expected %d at most: end other calls, or increase --max-readers", ErrTooManyReaders, s.config.MaxReaders)
	}
	return nil
}

// send reads batches ahead and sends them. It returns when the reader has ended.
func (s *Service) send(ctx context.Context, cancel context.CancelCauseFunc, r *Reader, size int32, out grpc.ServerStream) error {
	ahead, batches := semaphore.NewWeighted(aheadBytes), make(chan batch, aheadBytes/aheadUnit)
	filled := make(chan error, 1)
	go func() {
		defer close(batches)
		filled <- fill(ctx, r, size, ahead, batches)
	}()
	var err error
	for b := range batches {
		if err != nil {
			continue
		}
		//guard:proxy-stalled-client
		stalled := time.AfterFunc(s.config.Idle, func() { cancel(fmt.Errorf("%w for %v: continue at the next record", ErrStalled, s.config.Idle)) })
		if err = out.SendMsg(&encoded{b.data}); err != nil {
			cancel(err)
		}
		stalled.Stop()
		ahead.Release(b.reserved)
	}
	return cmp.Or(err, <-filled)
}
