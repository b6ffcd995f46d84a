package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"trainmaster/internal/grpcdial"
	"trainmaster/internal/grpcserver"
	pb "trainmaster/proto/trainmaster/v1"
)

// Client reads streams from a data proxy. The zero value of each field but Conn is the default. Several goroutines may use it.
type Client struct {
	Conn grpc.ClientConnInterface // as Dial returns it
	// BatchSize is the number of records of a message. Zero means 256.
	BatchSize int32
	// MaxWait is how long a read waits for a proxy without a new record. Zero means 1 minute.
	MaxWait time.Duration
}

const (
	defaultBatchSize = 256
	defaultMaxWait   = time.Minute
	firstPause       = 20 * time.Millisecond // between two attempts, doubled up to mostPause
	mostPause        = time.Second
)

// Dial returns a connection to a proxy, "host:port". It connects with the first call, and again after a loss.
func Dial(addr string) (*grpc.ClientConn, error) {
	return grpcdial.Open(addr,
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: firstPause, Multiplier: 2, Jitter: 0.2, MaxDelay: mostPause}, MinConnectTimeout: 5 * time.Second}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 10 * time.Second}),
	)
}

// Records yields the records of a specification from record start on, each once and in order. A record is valid until the body of
// the loop returns. If the proxy is restarted or unreachable, it creates the stream again and continues at the next record. An
// error is the last pair.
func (c *Client) Records(ctx context.Context, spec *pb.DataFilesSpec, start int64) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		r := clientReader{client: c, api: pb.NewDataProxyClient(c.Conn), spec: spec, next: start}
		for _, f := range spec.GetFiles() {
			r.total += f.GetNumRecord()
		}
		if err := r.all(ctx, yield); err != nil {
			yield(nil, err)
		}
	}
}

// clientReader reads one stream.
type clientReader struct {
	client *Client
	api    pb.DataProxyClient
	spec   *pb.DataFilesSpec
	id     int64 // of the stream; 0: not created
	next   int64 // record
	total  int64
	buffer encoded
}

// all reads to the end, with pauses between failed attempts. It returns nil also if yield returned false.
func (r *clientReader) all(ctx context.Context, yield func([]byte, error) bool) error {
	maxWait := r.client.MaxWait
	if maxWait == 0 {
		maxWait = defaultMaxWait
	}
	pause, since := firstPause, time.Now()
	for {
		before := r.next
		more, err := r.attempt(ctx, yield)
		if err == nil || !more {
			return nil
		}
		if r.next > before {
			pause, since = firstPause, time.Now()
		}
		reason := grpcserver.Reason(err)
		//guard:proxy-stream-created-again
		if reason == "STREAM_GONE" {
			r.id = 0
		}
		if reason != "STREAM_GONE" && reason != "TOO_MANY_READERS" && reason != "TOO_MANY_STREAMS" && status.Code(err) != codes.Unavailable {
			return err
		}
		if time.Since(since) >= maxWait {
			return fmt.Errorf("data proxy: no record within %v: %w", maxWait, err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
			pause = min(2*pause, mostPause)
		}
	}
}

// attempt reads with one call of ReadData. It returns false if yield did.
func (r *clientReader) attempt(ctx context.Context, yield func([]byte, error) bool) (more bool, err error) {
	if r.id == 0 {
		created, err := r.api.CreateStream(ctx, &pb.CreateStreamRequest{Spec: r.spec})
		if err != nil {
			return true, err
		}
		r.id = created.StreamId
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	calls := &pb.DataProxy_ServiceDesc.Streams[0]
	in, err := r.client.Conn.NewStream(ctx, calls, pb.DataProxy_ReadData_FullMethodName, grpc.ForceCodecV2(newCodec()))
	if err != nil {
		return true, err
	}
	size := r.client.BatchSize
	if size == 0 {
		size = defaultBatchSize
	}
	if err := in.SendMsg(&pb.DataBatchRequest{StreamId: r.id, StartRecord: r.next, BatchSize: size}); err != nil && !errors.Is(err, io.EOF) {
		return true, err
	}
	if err := in.CloseSend(); err != nil {
		return true, err
	}
	for {
		err := in.RecvMsg(&r.buffer)
		if errors.Is(err, io.EOF) {
			if r.next != r.total {
				err = fmt.Errorf("data proxy: expected %d records, found the end of the stream after %d", r.total, r.next)
				return true, err
			}
			return true, nil
		}
		if err != nil {
			return true, err
		}
		for rest := r.buffer.data; ; {
			record, after, ok, err := nextRecord(rest)
			if err != nil {
				return true, err
			}
			if !ok {
				break
			}
			rest = after
			//guard:proxy-client-continues
			r.next++
			if !yield(record, nil) {
				return false, nil
			}
		}
	}
}
