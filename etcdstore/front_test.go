package etcdstore_test

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
)

// front is a gRPC server before a real etcd. It passes every call on, and can
// answer transactions with an error of its own, either before they reach etcd
// or after etcd has done them, and reads before they do.
type front struct {
	endpoint string
	backend  *grpc.ClientConn

	mu     sync.Mutex
	before error // instead of passing the next transactions on
	after  error // instead of etcd's answer
	txns   int   // that arrived here
	hang   int   // so many of the next transactions get no answer

	unread error       // instead of passing the next reads on
	reads  []time.Time // when each arrived here
}

const (
	txnMethod   = "/etcdserverpb.KV/Txn"
	rangeMethod = "/etcdserverpb.KV/Range"
)

func startFront(t *testing.T, etcd string) *front {
	t.Helper()
	backend, err := grpc.NewClient(strings.TrimPrefix(etcd, "http://"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{})))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &front{endpoint: "http://" + listener.Addr().String(), backend: backend}
	server := grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{}), grpc.UnknownServiceHandler(f.handle))
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		server.Stop()
		wg.Wait()
		_ = backend.Close()
	})
	return f
}

// lie sets what transactions are answered with from now on.
func (f *front) lie(before, after error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before, f.after, f.txns = before, after, 0
}

// lieOfReads sets what reads are answered with from now on; nil: with what etcd says.
func (f *front) lieOfReads(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unread, f.reads = err, nil
}

// readsAt is when reads arrived since then.
func (f *front) readsAt() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.reads)
}

func (f *front) arrived() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.txns
}

func (f *front) handle(_ any, client grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(client)
	var before, after error
	// Reads under the lock are transactions too; only those that put are lied about.
	first := &frame{}
	if err := client.RecvMsg(first); err != nil {
		return err
	}
	if method == txnMethod && strings.Contains(string(first.data), "/task_queues") && strings.Contains(string(first.data), "PUT:") {
		f.mu.Lock()
		f.txns++
		before, after = f.before, f.after
		hangs := f.hang > 0
		if hangs {
			f.hang--
		}
		f.mu.Unlock()
		if hangs {
			<-client.Context().Done()
			return client.Context().Err()
		}
	}
	if method == rangeMethod {
		f.mu.Lock()
		f.reads = append(f.reads, time.Now())
		before = f.unread
		f.mu.Unlock()
	}
	if before != nil {
		return before
	}
	ctx, cancel := context.WithCancel(client.Context())
	defer cancel()
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, md.Copy())
	}
	server, err := f.backend.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	if err := server.SendMsg(first); err != nil {
		return err
	}
	go func() {
		defer func() { _ = server.CloseSend() }()
		for {
			in := &frame{}
			if client.RecvMsg(in) != nil || server.SendMsg(in) != nil {
				return
			}
		}
	}()
	for {
		out := &frame{}
		err := server.RecvMsg(out)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case after != nil:
			return after
		}
		if err := client.SendMsg(out); err != nil {
			return err
		}
	}
}

// frame is a message whose meaning is nobody's business here.
type frame struct{ data []byte }

type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.(*frame).data)}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	v.(*frame).data = data.Materialize()
	return nil
}
