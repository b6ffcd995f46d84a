package pserver_test

import (
	"errors"
	"math"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver"
	"trainmaster/pserver/dataport"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/sharedmem"
	"trainmaster/pserver/wire"
	"trainmaster/trainer/params"
)

// mappings counts the shared memories that this process has mapped: each server's, and each trainer's, of the test.
func mappings(t testing.TB) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Skip("this system has no /proc/self/maps: " + err.Error())
	}
	return strings.Count(string(maps), "memfd:trainmaster")
}

// await waits until there are n of them.
func await(t testing.TB, n int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); mappings(t) != n; time.Sleep(time.Millisecond) { // interval between checks
		if time.Now().After(end) {
			t.Fatalf("%d mappings of shared memory, expected %d", mappings(t), n)
		}
	}
}

// big is a model with the given number of full blocks.
func big(blocks int, v float32) []params.Tensor {
	return modelOf(constant(v), params.Tensor{Name: "w", Shape: []int{blocks, placement.BlockElements}})
}

// Many more blocks than slots, both sides at full speed: no payload is written over before it was read, in either direction.
func TestSharedMemory(t *testing.T) {
	for _, dtype := range []params.WireDType{params.Float32, params.BFloat16} {
		t.Run(string(dtype), func(t *testing.T) {
			before := mappings(t)
			b := newBook(1)
			server := startServer(t, b, 0, pserver.Config{DataSocket: socketFolder(t)})
			c := connect(t, b, params.Config{Mode: params.Async, Ordinal: 1, WireDType: dtype, Optimizer: params.Optimizer{Kind: params.SGD, LearningRate: 1}})
			const blocks, steps = 24, 20
			byBlock := func(factor float32) []params.Tensor {
				model := big(blocks, 0)
				for block := range blocks {
					constant(factor*float32(block%8+1))(0, model[0].Data[block*placement.BlockElements:][:placement.BlockElements])
				}
				return model
			}
			values, grads := big(blocks, 0), byBlock(-1)
			mustInit(t, c, values)
			await(t, before+2)
			for step := range uint64(steps) {
				if _, err := c.PushPull(within(t), step+1, 1, grads, values); err != nil {
					t.Fatal(err)
				}
				if err := differ(values, byBlock(float32(step+1))); err != nil {
					t.Fatalf("after step %d %v", step+1, err)
				}
			}
			reply, err := control(t, server.addr).Describe(within(t), &pb.DescribeRequest{})
			must(t, err)
			if n := reply.GetCounters().GetRefused(); n != 0 {
				t.Errorf("%d frames were refused: a payload changed in transit", n)
			}
			must(t, c.Close())
			await(t, before)
		})
	}
}

// A server without room for more memory serves trainers through the socket alone; room that is given back is used again.
func TestSharedMemoryIsBounded(t *testing.T) {
	before := mappings(t)
	b := newBook(1)
	startServer(t, b, 0, pserver.Config{DataSocket: socketFolder(t), Limits: dataport.Limits{BufferBytes: 9 << 20}}) // twice 4 MiB, and some
	var clients []*params.Client
	for i := range 4 {
		c, log := connectLogged(t, b, 0)
		if !strings.Contains(log, bySocket) {
			t.Errorf("trainer %d says %q", i, log)
		}
		unchanged(t, c)
		clients = append(clients, c)
	}
	await(t, before+4)
	must(t, clients[0].Close())
	await(t, before+2)
	c, _ := connectLogged(t, b, 0)
	unchanged(t, c)
	await(t, before+4)
}

// sharing says hello through the socket, requests memory, and receives it.
func sharing(t *testing.T, addr, path string) (*peer, *sharedmem.Memory) {
	t.Helper()
	return sharingAs(t, addr, path, [wire.DigestSize]byte(modelDigest(t)), 4, wire.Float32)
}

func sharingAs(t *testing.T, addr, path string, model [wire.DigestSize]byte, ordinal uint64, dtype wire.DType) (*peer, *sharedmem.Memory) {
	t.Helper()
	q := dial(t, addr)
	_, offer, err := q.ask(wire.Header{Op: wire.Hello, Block: ordinal, Incarnation: ordinal}, model[:])
	must(t, err)
	q.nc.Close()
	p := dial(t, path)
	payload := append(model[:], offer[:len(wire.Identity{})]...)
	if _, err := p.nc.Write(frame(wire.Header{Op: wire.Hello, Flags: wire.Shared, Block: ordinal, Incarnation: ordinal}, payload)); err != nil {
		t.Fatal(err)
	}
	reply := make([]byte, wire.HeaderSize+wire.MaxOffer)
	n, file, err := sharedmem.Receive(p.nc.(*net.UnixConn), reply)
	if err != nil || n < wire.HeaderSize || file == nil {
		t.Fatalf("the reply to a hello has %d bytes and the memory %v, %v", n, file, err)
	}
	defer file.Close()
	var head wire.Header
	must(t, head.Decode((*[wire.HeaderSize]byte)(reply)))
	m, err := sharedmem.Map(file, int(head.Argument))
	must(t, err)
	t.Cleanup(func() { m.Close() })
	if head.Flags != wire.Reply|wire.Shared {
		t.Errorf("the reply has flags %#x", uint8(head.Flags))
	}
	p.head = wire.Header{Incarnation: ordinal, Placement: head.Placement, ShardEpoch: head.ShardEpoch, JobEpoch: head.JobEpoch, DType: dtype}
	return p, m
}

// inSlot sends a frame whose payload is in the next slot.
func (p *peer) inSlot(m *sharedmem.Memory, head wire.Header, payload []byte, spoil func(slot []byte)) error {
	p.t.Helper()
	slot := m.Slot(m.Next())
	copy(slot, payload)
	head.Flags = wire.Shared
	whole := frame(head, payload)
	spoil(slot)
	if _, err := p.nc.Write(whole[:wire.HeaderSize]); err != nil {
		p.t.Fatal(err)
	}
	reply, _, err := p.read()
	if err == nil && reply.Flags&wire.Shared != 0 {
		p.t.Errorf("a reply without payload has flags %#x", uint8(reply.Flags))
	}
	return err
}

// An invalid payload in shared memory is refused as in a frame, and changes nothing.
func TestBadPayloadsInSharedMemory(t *testing.T) {
	dir := socketFolder(t)
	addr, c := ready(t, pserver.Config{DataSocket: dir})
	for _, try := range []struct {
		name  string
		spoil func(slot []byte)
		code  wire.Code
	}{
		{"good", func([]byte) {}, 0},
		{"a bit changed", func(slot []byte) { slot[1001] ^= 4 }, wire.BadChecksum},
		{"not a number", func(slot []byte) {}, wire.NotFinite},
	} {
		t.Run(try.name, func(t *testing.T) {
			p, m := sharing(t, addr, theSocket(t, dir))
			head := p.head
			head.Op, head.Block, head.Step = wire.Push, blockB1, 1
			payload := payloadOf(lenB1, 0)
			if try.code == wire.NotFinite {
				payload = payloadOf(lenB1, float32(math.NaN()))
			}
			err := p.inSlot(m, head, payload, try.spoil)
			var fault *wire.Fault
			if try.code == 0 && err != nil || try.code != 0 && (!errors.As(err, &fault) || fault.Code != try.code) {
				t.Errorf("answer %v, expected code %d", err, try.code)
			}
			unchanged(t, c)
		})
	}
}

// Frames that claim to have their payload where there is no memory are refused, and the connection closed.
func TestNoMemoryToLookInto(t *testing.T) {
	dir := socketFolder(t)
	addr, c := ready(t, pserver.Config{DataSocket: dir})
	for name, begin := range map[string]func(t *testing.T) (*peer, wire.Header){
		"a push over TCP": func(t *testing.T) (*peer, wire.Header) {
			p := dial(t, addr).sayHello(5, 5)
			head := p.head
			head.Op, head.Block, head.Step = wire.Push, blockB1, 1
			return p, head
		},
		"a hello over TCP": func(t *testing.T) (*peer, wire.Header) {
			return dial(t, addr), wire.Header{Op: wire.Hello, Block: 6, Incarnation: 6}
		},
		"through the socket, but not asked for": func(t *testing.T) (*peer, wire.Header) {
			p := dial(t, theSocket(t, dir)).sayHello(7, 7)
			head := p.head
			head.Op, head.Block, head.Step = wire.Push, blockB1, 1
			return p, head
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, head := begin(t)
			head.Flags = wire.Shared
			_, _, err := p.ask(head, nil)
			if fault, ok := errors.AsType[*wire.Fault](err); !ok || fault.Code != wire.Malformed || !strings.Contains(fault.Message, "shared memory") {
				t.Errorf("answer %v, expected malformed", err)
			}
			unchanged(t, c)
		})
	}
}
