package grpcserver

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"trainmaster/internal/largemsg"
)

// MaxMessage is the maximum size of a message in bytes, in both directions. It is the default of all gRPC clients.
const MaxMessage = 4 << 20

// The bounds of a connection.
const (
	maxHeaders        = 16 << 10
	maxStreams        = 256
	connectionTimeout = 10 * time.Second // for the HTTP/2 handshake
	minPing           = 4 * time.Second  // clients that ping more often are disconnected; docs/coordinator.md recommends 5 s
	pingAfter         = 30 * time.Second // an idle connection is probed
	pingTimeout       = 10 * time.Second
	idleAfter         = time.Hour       // a connection without a call is closed. A trainer without a session has no call while it trains
	stopTimeout       = 3 * time.Second // what calls under way are given at the end
)

// Server is a gRPC server with bounds. Register the services before Serve.
type Server struct {
	*grpc.Server
	Config

	large      *largemsg.Messages
	stopping   context.Context // ends the streams
	endStreams context.CancelCauseFunc
}

// Config has the settings of a server.
type Config struct {
	// Table converts the errors of calls.
	Table Table
	// Leader returns the address of another master that leads, or "". nil: there is none.
	Leader func() string
	Log    *logrus.Entry
	// Large has the methods with messages of more than largemsg.MaxShort bytes, as /package.Service/Method.
	Large map[string]Large
	// Codec encodes and decodes messages. nil: the codec of gRPC.
	Codec encoding.CodecV2
	// Options are added to the options of the server.
	Options []grpc.ServerOption
}

// New returns a server that does nothing until Serve.
func New(config Config) *Server {
	if config.Leader == nil {
		config.Leader = func() string { return "" }
	}
	if config.Codec == nil {
		config.Codec = encoding.GetCodecV2(proto.Name)
	}
	s := &Server{Config: config, large: largemsg.New()}
	s.stopping, s.endStreams = context.WithCancelCause(context.Background())
	s.Server = grpc.NewServer(append([]grpc.ServerOption{
		//guard:grpc-message-limit
		grpc.MaxRecvMsgSize(MaxMessage),
		grpc.MaxSendMsgSize(MaxMessage),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(connectionTimeout),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout, MaxConnectionIdle: idleAfter}),
		grpc.RPCDecompressor(unzip{make(chan struct{}, largemsg.MaxResults)}), //nolint:staticcheck // the other registry is for all servers of the process
		grpc.ForceServerCodecV2(codec{config.Codec}),
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
	}, config.Options...)...)
	reflection.Register(s.Server)
	return s
}

// Serve accepts connections until ctx ends. Then it calls hide, ends the streams, waits for the other calls for a bounded time, and
// closes the listener and all connections. It serves once.
func (s *Server) Serve(ctx context.Context, l net.Listener, hide func()) error {
	stopped := make(chan struct{})
	serving, end := context.WithCancel(ctx)
	go func() {
		defer close(stopped)
		<-serving.Done()
		hide()
		s.stop()
	}()
	err := s.Server.Serve(listener{l, s.large})
	end()
	<-stopped
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve gRPC on %s: %w", l.Addr(), err)
	}
	return nil
}

// stop ends the streams and waits for the calls. Calls that do not end in time are aborted.
func (s *Server) stop() {
	s.endStreams(ErrStopping)
	timer := time.AfterFunc(stopTimeout, s.Stop)
	defer timer.Stop()
	s.GracefulStop()
}
