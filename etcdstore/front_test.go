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

// front is a gRPC proxy for a real etcd. Tests can replace the answers of transactions with an error, before they
// reach etcd or after etcd has applied them, and the answers of reads.
type front struct {
	endpoint string
	backend  *grpc.ClientConn

	mu     sync.Mutex
	before error // answer of the next transactions, which do not reach etcd
	after  error // replaces the answer of etcd
	txns   int   // number of transactions that arrived
	hang   int   // number of next transactions without an answer

	unread error       // answer of the next reads, which do not reach etcd
	reads  []time.Time // time at which each read arrived
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

// failTxns sets the errors that replace the answers of transactions.
func (f *front) failTxns(before, after error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before, f.after, f.txns = before, after, 0
}

// failReads sets the error that replaces the answers of reads. With nil, etcd answers.
func (f *front) failReads(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unread, f.reads = err, nil
}

// readsAt returns the times of the reads since the last call of failReads.
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
	// Reads under the lock are transactions too. Only transactions that put are changed.
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

// frame is a message that the proxy passes on without decoding it.
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
