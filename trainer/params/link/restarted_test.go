package link

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/pserver/placement"
	"trainmaster/pserver/wire"
	"trainmaster/trainer/params/stream"
)

// cutServer acknowledges the first push of its first connection and cuts the connection at the second. Later connections have another
// shard epoch if it restarts, and acknowledge all pushes.
type cutServer struct {
	restarts bool

	mu    sync.Mutex
	conns int
	again []uint64 // blocks of pushes after the first connection
}

// answer answers one frame of a connection.
func (c *cutServer) answer(nc net.Conn, conn int, pushes *int) error {
	var raw [wire.HeaderSize]byte
	if _, err := io.ReadFull(nc, raw[:]); err != nil {
		return err
	}
	var head wire.Header
	if err := head.Decode(&raw); err != nil {
		return err
	}
	if _, err := io.CopyN(io.Discard, nc, int64(head.Length)); err != nil {
		return err
	}
	if head.Op == wire.Push {
		if *pushes++; conn == 1 && *pushes == 2 {
			return errors.New("cut")
		}
		if conn > 1 {
			c.mu.Lock()
			c.again = append(c.again, head.Block)
			c.mu.Unlock()
		}
	}
	head.Flags, head.Length, head.ShardEpoch = wire.Reply, 0, 1
	if c.restarts {
		head.ShardEpoch = uint16(conn)
	}
	head.Encode(&raw)
	wire.Seal(&raw, nil)
	_, err := nc.Write(raw[:])
	return err
}

// F54: a restarted server can have lost an acknowledged frame of the call, so all frames of the call are sent again. A server that was
// not restarted receives only the frame without an acknowledgment again.
func TestAcknowledgedFramesAreSentAgainAfterARestart(t *testing.T) {
	for name, try := range map[string]struct {
		restarts bool
		again    []uint64
	}{
		"restarted":         {true, []uint64{1, 2}},
		"connection broken": {false, []uint64{2}},
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			server := &cutServer{restarts: try.restarts}
			var running sync.WaitGroup
			running.Go(func() {
				for {
					nc, err := listener.Accept()
					if err != nil {
						return
					}
					server.mu.Lock()
					server.conns++
					conn, pushes := server.conns, 0
					server.mu.Unlock()
					running.Go(func() {
						defer nc.Close()
						for server.answer(nc, conn, &pushes) == nil {
						}
					})
				}
			})
			placed, err := placement.New([]placement.Tensor{{Name: "w", Shape: []int{3}}}, 1)
			if err != nil {
				t.Fatal(err)
			}
			log := logrus.New()
			log.SetOutput(io.Discard)
			l := New(&Config{
				During: func(parent context.Context, _ int, _ string) (context.Context, context.CancelFunc) {
					return context.WithCancel(parent)
				},
				Table: func() *placement.Table { return placed }, RetryMin: time.Millisecond, RetryMax: time.Millisecond, Log: logrus.NewEntry(log),
				Addrs:  func(context.Context) ([]string, error) { return []string{listener.Addr().String()}, nil },
				Stream: stream.Config{Sequence: new(atomic.Uint64), Timeout: time.Minute},
			}, 0, listener.Addr().String())
			frame := func(block uint64) stream.Frame {
				return stream.Frame{
					Progress: new(stream.Progress), Head: wire.Header{Op: wire.Push, Block: block},
					Take: func(*stream.Frame, *stream.Reply) error { return nil },
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := l.connect(ctx); err != nil { // the server is known before the call
				t.Fatal(err)
			}
			if err := l.Do(ctx, []stream.Frame{frame(1), frame(2)}); err != nil {
				t.Error(err)
			}
			if err := errors.Join(l.Close(), listener.Close()); err != nil {
				t.Error(err)
			}
			running.Wait()
			if !slices.Equal(server.again, try.again) {
				t.Errorf("blocks sent again: expected %v, found %v", try.again, server.again)
			}
		})
	}
}
