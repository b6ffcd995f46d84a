package stream

import (
	"io"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"

	"trainmaster/pserver/sharedmem"
	"trainmaster/pserver/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func quiet() *logrus.Entry {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return logrus.NewEntry(log)
}

func config() Config { return Config{Sequence: new(atomic.Uint64), Timeout: 10 * time.Second} }

// reply returns the reply to a frame. change alters the header before it is sealed.
func reply(head wire.Header, payload []byte, change func(*wire.Header)) []byte {
	head.Flags, head.Length = wire.Reply, uint32(len(payload))
	if change != nil {
		change(&head)
	}
	var raw [wire.HeaderSize]byte
	head.Encode(&raw)
	wire.Seal(&raw, payload)
	return append(raw[:], payload...)
}

func unchanged(*wire.Header) {}

func refusal(code wire.Code) func(*wire.Header) {
	return func(h *wire.Header) { h.Flags, h.Argument = wire.Reply|wire.Error, uint32(code) }
}

// answer writes the reply to a frame. The connection ends with an error.
type answer func(nc net.Conn, head wire.Header, payload []byte) error

// serve answers all frames of all connections to a listener. memory is where the payloads of shared frames are.
func serve(t *testing.T, listener net.Listener, memory *sharedmem.Memory, give answer) {
	t.Helper()
	var running sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	running.Go(func() {
		for {
			nc, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, nc)
			mu.Unlock()
			running.Go(func() {
				defer nc.Close()
				for one(t, nc, memory, give) == nil {
				}
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		mu.Lock()
		for _, nc := range open {
			nc.Close()
		}
		mu.Unlock()
		running.Wait()
	})
}

// one reads a frame, verifies its checksum and answers it.
func one(t *testing.T, nc net.Conn, memory *sharedmem.Memory, give answer) error {
	var raw [wire.HeaderSize]byte
	if _, err := io.ReadFull(nc, raw[:]); err != nil {
		return err
	}
	var head wire.Header
	if err := head.Decode(&raw); err != nil {
		t.Error(err)
		return err
	}
	payload := make([]byte, head.Length)
	if head.Op != wire.Hello && head.Flags&wire.Shared != 0 {
		copy(payload, memory.Slot(memory.Next()))
	} else if _, err := io.ReadFull(nc, payload); err != nil {
		return err
	}
	if err := wire.Verify(&raw, payload); err != nil {
		t.Errorf("frame %d: %v", head.Sequence, err)
		return err
	}
	return give(nc, head, payload)
}

// echo replies with the payload of the frame.
func echo(nc net.Conn, head wire.Header, payload []byte) error {
	if head.Op == wire.Hello {
		payload = nil
	}
	_, err := nc.Write(reply(head, payload, nil))
	return err
}

// dialed returns a stream to a server without a data socket that gives answers after the hello.
func dialed(t *testing.T, cfg Config, give answer) *Stream {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, listener, nil, func(nc net.Conn, head wire.Header, payload []byte) error {
		if head.Op == wire.Hello {
			return echo(nc, head, payload)
		}
		return give(nc, head, payload)
	})
	return connect(t, listener.Addr().String(), cfg)
}

func connect(t *testing.T, addr string, cfg Config) *Stream {
	t.Helper()
	s, err := Dial(t.Context(), addr, cfg, quiet())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// withSocket starts a server that offers a data socket, and returns its address. local answers the hello on the socket.
func withSocket(t *testing.T, memory *sharedmem.Memory, local func(nc net.Conn, head wire.Header, offer []byte) error) (addr string) {
	t.Helper()
	offer := wire.Offer{Server: wire.Identity{1, 2, 3}, Path: filepath.Join(shortDir(t), "s")}
	byTCP, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, byTCP, nil, func(nc net.Conn, head wire.Header, payload []byte) error {
		if head.Op != wire.Hello {
			return echo(nc, head, payload)
		}
		_, err := nc.Write(reply(head, offer.Append(nil), func(h *wire.Header) { h.Argument = 1 }))
		return err
	})
	byUnix, err := net.Listen("unix", offer.Path)
	if err != nil {
		t.Fatal(err)
	}
	serve(t, byUnix, memory, func(nc net.Conn, head wire.Header, payload []byte) error {
		if head.Op == wire.Hello {
			return local(nc, head, offer.Append(nil))
		}
		if head.Flags&wire.Shared == 0 {
			return echo(nc, head, payload)
		}
		_, err := nc.Write(reply(head, payload, func(h *wire.Header) { h.Flags |= wire.Shared })[:wire.HeaderSize])
		return err
	})
	return byTCP.Addr().String()
}
