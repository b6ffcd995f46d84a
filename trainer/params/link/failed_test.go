package link

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/pserver/placement"
	"trainmaster/pserver/wire"
	"trainmaster/trainer/params/stream"
)

// F151: a request that the server fails on is repeated 3 times, with a warning each. Then the call fails with the answer.
func TestRequestThatTheServerFailsOnEndsTheCall(t *testing.T) {
	var text bytes.Buffer
	log := logrus.New()
	log.SetOutput(&text)
	l := &Link{Index: 2, log: logrus.NewEntry(log)}
	fault := wire.Faultf(wire.Failed, "push failed at shard 2")
	for attempt := range maxFailures {
		if err := l.classify(t.Context(), fault); err != nil {
			t.Fatalf("attempt %d: %v", attempt, err)
		}
	}
	if n := strings.Count(text.String(), "level=warning"); n != maxFailures {
		t.Errorf("%d warnings, expected %d: %s", n, maxFailures, text.String())
	}
	if err := l.classify(t.Context(), fault); !errors.Is(err, ErrServerFailed) || !strings.Contains(err.Error(), "push failed at shard 2") {
		t.Errorf("attempt %d: %v, expected %v", maxFailures, err, ErrServerFailed)
	}
}

// F151: the server answers the hello after each failed exchange. The call must still end.
func TestCallEndsWhenTheServerFailsOnEachExchange(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var pulls atomic.Int32
	go func() {
		for {
			nc, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer nc.Close()
				for failEach(nc, &pulls) == nil {
				}
			}()
		}
	}()

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
	defer l.Close() //nolint:errcheck // the server closes the connection too
	frame := stream.Frame{
		Progress: new(stream.Progress),
		Head:     wire.Header{Op: wire.Pull},
		Take:     func(*stream.Frame, *stream.Reply) error { return nil },
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = l.Do(ctx, []stream.Frame{frame})
	if n := pulls.Load(); !errors.Is(err, ErrServerFailed) || n != maxFailures+1 {
		t.Errorf("%d exchanges, %v: expected %d and %v", n, err, maxFailures+1, ErrServerFailed)
	}
}

// failEach answers one frame: a hello, or a pull that fails.
func failEach(nc net.Conn, pulls *atomic.Int32) error {
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
	head.Flags = wire.Reply
	var payload []byte
	if head.Op == wire.Pull {
		pulls.Add(1)
		payload = []byte("pull failed")
		head.Flags, head.Argument = wire.Reply|wire.Error, uint32(wire.Failed)
	}
	head.Length = uint32(len(payload))
	head.Encode(&raw)
	wire.Seal(&raw, payload)
	_, err := nc.Write(append(raw[:], payload...))
	return err
}
