package pserver_test

import (
	"bytes"
	"errors"
	"io"
	"math"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver"
	"trainmaster/pserver/dataport"
	"trainmaster/pserver/floats"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/wire"
	"trainmaster/trainer/params"
)

// peer sends frames over a socket without the checks of the client.
type peer struct {
	t    testing.TB
	nc   net.Conn
	head wire.Header // of the next request: what a hello left is good for the shard

	offer []byte // the payload of the hello's reply
}

// dialRaw dials an "ip:port", or the file of a socket.
func dialRaw(t testing.TB, addr string) net.Conn {
	t.Helper()
	network := "tcp"
	if filepath.IsAbs(addr) {
		network = "unix"
	}
	nc, err := net.Dial(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	return nc
}

func dial(t testing.TB, addr string) *peer {
	t.Helper()
	nc := dialRaw(t, addr)
	t.Cleanup(func() { nc.Close() })
	if err := nc.SetDeadline(time.Now().Add(10 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	return &peer{t: t, nc: nc}
}

// modelDigest is the digest of the model in tensors on one shard.
func modelDigest(t testing.TB) []byte {
	t.Helper()
	var list []placement.Tensor
	for _, tensor := range tensors(constant(0)) {
		list = append(list, placement.Tensor{Name: tensor.Name, Shape: tensor.Shape})
	}
	table, err := placement.New(list, 1)
	if err != nil {
		t.Fatal(err)
	}
	digest := table.Digest()
	return digest[:]
}

// sayHello says hello as a trainer of the model in tensors on one shard.
func (p *peer) sayHello(ordinal uint32, incarnation uint64) *peer {
	p.t.Helper()
	if err := p.hello(ordinal, incarnation); err != nil {
		p.t.Fatalf("hello: %v", err)
	}
	return p
}

func (p *peer) hello(ordinal uint32, incarnation uint64) error {
	p.t.Helper()
	head, offer, err := p.ask(wire.Header{Op: wire.Hello, Block: uint64(ordinal), Incarnation: incarnation}, modelDigest(p.t))
	if err != nil {
		return err
	}
	p.offer = offer
	p.head = wire.Header{Incarnation: incarnation, Placement: head.Placement, ShardEpoch: head.ShardEpoch, JobEpoch: head.JobEpoch, DType: wire.Float32}
	return nil
}

func frame(head wire.Header, payload []byte) []byte {
	var raw [wire.HeaderSize]byte
	head.Length = uint32(len(payload))
	head.Encode(&raw)
	wire.Seal(&raw, payload)
	return append(raw[:], payload...)
}

func (p *peer) ask(head wire.Header, payload []byte) (wire.Header, []byte, error) {
	p.t.Helper()
	if _, err := p.nc.Write(frame(head, payload)); err != nil {
		return head, nil, err
	}
	return p.read()
}

func (p *peer) read() (head wire.Header, payload []byte, err error) {
	p.t.Helper()
	var raw [wire.HeaderSize]byte
	if _, err := io.ReadFull(p.nc, raw[:]); err != nil {
		return head, nil, err
	}
	if err := head.Decode(&raw); err != nil {
		p.t.Fatal(err)
	}
	payload = make([]byte, head.Length)
	if _, err := io.ReadFull(p.nc, payload); err != nil {
		p.t.Fatal(err)
	}
	if err := wire.Verify(&raw, payload); err != nil {
		p.t.Fatal(err)
	}
	if head.Flags&wire.Error != 0 {
		return head, nil, &wire.Fault{Code: wire.Code(head.Argument), Message: string(payload), Version: head.Version}
	}
	return head, payload, nil
}

func payloadOf(n int, v float32) []byte {
	f := make([]float32, n)
	for i := range f {
		f[i] = v
	}
	return floats.Bytes(f)
}

// The blocks of tensors(): by name b1, b2, scale, w1 (three blocks), w2.
const (
	blockB1, lenB1       = 0, 1000
	blockW1Last, lenLast = 5, 600*1000 - 2*placement.BlockElements
)

// ready starts one asynchronous shard with all parameters 1.
func ready(t testing.TB, cfg pserver.Config) (addr string, c *params.Client) {
	t.Helper()
	return readyIn(t, startServers(t, 1, cfg))
}

func readyIn(t testing.TB, book *book) (addr string, c *params.Client) {
	t.Helper()
	c = connect(t, book, params.Config{Mode: params.Async, Ordinal: 99})
	mustInit(t, c, tensors(constant(1)))
	addrs, err := book.complete(within(t))
	if err != nil {
		t.Fatal(err)
	}
	return addrs[0], c
}

// bothWays runs a test over the port and over the data socket of a server of its own.
func bothWays(t *testing.T, cfg pserver.Config, test func(t *testing.T, addr string, c *params.Client)) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			addr, c := ready(t, cfg)
			if network == "unix" {
				addr = offerOf(t, addr).Path
			}
			test(t, addr, c)
		})
	}
}

// offerOf asks a server for its socket, as a trainer that does nothing else.
func offerOf(t testing.TB, addr string) wire.Offer {
	t.Helper()
	p := dial(t, addr).sayHello(98, 98)
	defer p.nc.Close()
	offer, err := wire.ParseOffer(p.offer)
	if err != nil {
		t.Fatal(err)
	}
	return offer
}

func unchanged(t testing.TB, c *params.Client) {
	t.Helper()
	got := tensors(constant(0))
	if _, err := c.Pull(within(t), got, 0); err != nil {
		t.Fatal(err)
	}
	if err := differ(got, tensors(constant(1))); err != nil {
		t.Errorf("parameters have changed: %v", err)
	}
}

// F58 and related faults: the gradient is refused with a reason, the connection stays open and the
// parameters do not change.
func TestBadGradientsAreRefused(t *testing.T) {
	bothWays(t, pserver.Config{}, badGradientsAreRefused)
	t.Run("by another process", func(t *testing.T) {
		b := newBook(1)
		startChild(t, b, childConfig{Dir: t.TempDir()})
		addr, c := readyIn(t, b)
		badGradientsAreRefused(t, addr, c)
	})
}

func badGradientsAreRefused(t *testing.T, addr string, c *params.Client) {
	p := dial(t, addr).sayHello(0, 1)
	with := func(n, at int, v float64) []byte {
		b := payloadOf(n, 1)
		copy(b[4*at:], floats.Bytes([]float32{float32(v)}))
		return b
	}
	for name, try := range map[string]struct {
		head    func(*wire.Header)
		payload []byte
		code    wire.Code
		text    string
	}{
		"NaN":             {func(h *wire.Header) { h.Block = blockW1Last }, with(lenLast, 7, math.NaN()), wire.NotFinite, `tensor "w1", elements 524288 to 600000): element 524295 is NaN`},
		"infinity":        {func(h *wire.Header) { h.Block = blockB1 }, with(lenB1, 999, math.Inf(-1)), wire.NotFinite, `tensor "b1", elements 0 to 1000): element 999 is -Inf`},
		"too short":       {func(h *wire.Header) { h.Block = blockB1 }, payloadOf(lenB1-1, 1), wire.BadLength, `tensor "b1", elements 0 to 1000): payload has 3996 bytes, expected 4000`},
		"not whole":       {func(h *wire.Header) { h.Block = blockB1 }, payloadOf(lenB1, 1)[:3999], wire.BadLength, "3999 bytes"},
		"too long":        {func(h *wire.Header) { h.Block = blockB1 }, payloadOf(lenB1+1, 1), wire.BadLength, "4004 bytes"},
		"nothing":         {func(h *wire.Header) { h.Block = blockB1 }, nil, wire.BadLength, "0 bytes"},
		"bfloat16":        {func(h *wire.Header) { h.Block, h.DType = blockB1, wire.BFloat16 }, payloadOf(lenB1, 1), wire.BadLength, "payload has 4000 bytes, expected 2000 of bfloat16"},
		"no such block":   {func(h *wire.Header) { h.Block = 7 }, payloadOf(lenB1, 1), wire.NoSuchBlock, "block 7"},
		"huge block":      {func(h *wire.Header) { h.Block = math.MaxUint64 }, payloadOf(lenB1, 1), wire.NoSuchBlock, "block 18446744073709551615"},
		"older epoch":     {func(h *wire.Header) { h.ShardEpoch-- }, payloadOf(lenB1, 1), wire.Resync, "it was restarted"},
		"other job epoch": {func(h *wire.Header) { h.JobEpoch = 2 }, payloadOf(lenB1, 1), wire.Resync, "job epoch 2"},
		"stage":           {func(h *wire.Header) { h.Op = wire.Stage }, payloadOf(lenB1, 1), wire.WrongMode, "mode async"},
		"put":             {func(h *wire.Header) { h.Op = wire.Put }, payloadOf(lenB1, 1), wire.NotClaimed, "does not hold the claim"},
		"pull with body":  {func(h *wire.Header) { h.Op = wire.Pull }, payloadOf(1, 1), wire.BadLength, "payload of 4 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			head := p.head
			head.Op, head.Step, head.Sequence = wire.PushPull, 1, 1234
			try.head(&head)
			reply, _, err := p.ask(head, try.payload)
			var fault *wire.Fault
			if !errors.As(err, &fault) || fault.Code != try.code || !strings.Contains(fault.Message, try.text) {
				t.Errorf("answered %v, expected %v with %q", err, try.code, try.text)
			}
			if reply.Sequence != 1234 || reply.Op != head.Op {
				t.Errorf("reply is to %v %d", reply.Op, reply.Sequence)
			}
		})
	}
	unchanged(t, c)
	if _, err := c.PushPull(within(t), 1, 1, tensors(func(i int, data []float32) {
		constant(1)(i, data)
		if i == 2 {
			data[4321] = float32(math.NaN())
		}
	}), tensors(constant(0))); err == nil || !strings.Contains(err.Error(), `gradient "w2": element 4321 is NaN`) {
		t.Errorf("the client's own check: %v", err)
	}
	unchanged(t, c)
}

// F60: whatever comes, it is answered or cut off, in bounded memory, and the server serves on.
func TestMalformedFramesCloseTheConnection(t *testing.T) {
	bothWays(t, pserver.Config{Limits: dataport.Limits{HelloTimeout: 3 * time.Second}}, malformedFramesCloseTheConnection)
}

func malformedFramesCloseTheConnection(t *testing.T, addr string, c *params.Client) {
	hello := wire.Header{Op: wire.Hello, Incarnation: 1}
	huge := frame(hello, nil)
	copy(huge[56:], []byte{255, 255, 255, 255})
	flipped := frame(wire.Header{Op: wire.Pull, DType: wire.Float32}, nil)
	flipped[10] ^= 1
	for name, try := range map[string]struct {
		greeted bool
		send    []byte
		code    wire.Code // 0: closed without a word
	}{
		"HTTP":                      {send: []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")},
		"TLS":                       {send: []byte{0x16, 3, 1, 0, 200, 1, 0, 0}},
		"zeros":                     {send: make([]byte, 4096)},
		"gRPC and then noise":       {send: append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), bytes.Repeat([]byte{0xff}, 4096)...)},
		"length of 4 GiB":           {send: huge, code: wire.Malformed},
		"pull before hello":         {send: frame(wire.Header{Op: wire.Pull}, nil), code: wire.Malformed},
		"hello of incarnation":      {send: frame(wire.Header{Op: wire.Hello}, nil), code: wire.Malformed},
		"hello with another digest": {send: frame(hello, make([]byte, 32)), code: wire.OtherModel},
		"hello for shard 4":         {send: frame(wire.Header{Op: wire.Hello, Incarnation: 1, Argument: 4}, nil), code: wire.WrongShard},
		"a reply":                   {send: frame(wire.Header{Op: wire.Hello, Incarnation: 1, Flags: wire.Reply}, nil), code: wire.Malformed},
		"half a header":             {send: huge[:40]},
		"second hello":              {greeted: true, send: frame(hello, make([]byte, 32)), code: wire.Malformed},
		"flipped bit":               {greeted: true, send: flipped, code: wire.BadChecksum},
		"another's frame":           {greeted: true, send: frame(wire.Header{Op: wire.Pull, Incarnation: 77}, nil), code: wire.Malformed},
		"noise between frames":      {greeted: true, send: bytes.Repeat([]byte{7}, 100), code: wire.Malformed},
	} {
		t.Run(name, func(t *testing.T) {
			p := dial(t, addr)
			if try.greeted {
				p.sayHello(3, 1)
			}
			if _, err := p.nc.Write(try.send); err != nil {
				t.Fatal(err)
			}
			if try.code != 0 {
				_, _, err := p.read()
				var fault *wire.Fault
				if !errors.As(err, &fault) || fault.Code != try.code {
					t.Errorf("answered %v, expected %v", err, try.code)
				}
			}
			if n, err := io.Copy(io.Discard, p.nc); errors.Is(err, io.ErrNoProgress) || n > 4096 || isTimeout(err) {
				t.Errorf("connection stays open: %d bytes, %v", n, err)
			}
		})
	}
	unchanged(t, c)
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// F64: a peer that stalls inside a frame is cut off, and too many peers are turned away.
func TestSlowAndManyPeers(t *testing.T) {
	limits := pserver.Config{MaxConnections: 8, Limits: dataport.Limits{HelloTimeout: 2 * time.Second, FrameTimeout: 2 * time.Second}} // a busy machine takes its time
	bothWays(t, limits, slowAndManyPeers)
}

func slowAndManyPeers(t *testing.T, addr string, c *params.Client) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)

	stalled := dial(t, addr).sayHello(3, 1)
	head := stalled.head
	head.Op, head.Block, head.Step = wire.Push, blockB1, 1
	if _, err := stalled.nc.Write(frame(head, payloadOf(lenB1, 1))[:1000]); err != nil {
		t.Fatal(err)
	}
	silent := dial(t, addr)
	for name, p := range map[string]*peer{"stalled in a payload": stalled, "silent": silent} {
		if _, err := io.Copy(io.Discard, p.nc); isTimeout(err) {
			t.Errorf("%s: the connection stays open", name)
		}
	}
	for range 100 { // more than the server admits
		defer dialRaw(t, addr).Close()
	}
	unchanged(t, c) // on the connection that it has
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 64<<20 {
		t.Errorf("heap grew by %d bytes", grown)
	}
}

// A push that is sent again, on the same connection or on another, is applied once.
func TestRepeatedPushIsAppliedOnce(t *testing.T) {
	addr, c := ready(t, pserver.Config{})
	p := dial(t, addr).sayHello(0, 5)
	again := dial(t, addr).sayHello(0, 5)
	other := dial(t, addr).sayHello(1, 6)
	push := func(p *peer, step uint64) (duplicate bool, value float32) {
		t.Helper()
		head := p.head
		head.Op, head.Block, head.Step = wire.PushPull, blockB1, step
		reply, payload, err := p.ask(head, payloadOf(lenB1, 2)) // 2 * rate 0.5 = 1
		if err != nil {
			t.Fatal(err)
		}
		got := make([]float32, lenB1)
		copy(floats.Bytes(got), payload)
		return reply.Flags&wire.Duplicate != 0, got[17]
	}
	for i, step := range []struct {
		peer      *peer
		step      uint64
		duplicate bool
		value     float32
	}{
		{p, 1, false, 0}, {p, 1, true, 0}, {again, 1, true, 0}, {other, 1, false, -1}, {again, 2, false, -2},
		{p, 2, true, -2}, {p, 1, true, -2}, {other, 1, true, -2}, {other, 2, false, -3}, {p, 10, false, -4}, {p, 9, true, -4},
	} {
		if duplicate, value := push(step.peer, step.step); duplicate != step.duplicate || value != step.value {
			t.Errorf("push %d: duplicate %v, value %v; expected %v, %v", i, duplicate, value, step.duplicate, step.value)
		}
	}
	reply, err := control(t, addr).Describe(within(t), &pb.DescribeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if n := reply.GetCounters(); n.GetBlocksPushed() != 5 || n.GetDuplicates() != 6 {
		t.Errorf("counters %v, expected 5 pushes and 6 duplicates", n)
	}
	_ = c
}

// A newer incarnation of a trainer fences the older one, on its open connection too.
func TestNewerIncarnationFences(t *testing.T) {
	addr, c := ready(t, pserver.Config{})
	old := dial(t, addr).sayHello(0, 5)
	fresh := dial(t, addr).sayHello(0, 8)
	push := func(p *peer) error {
		head := p.head
		head.Op, head.Block, head.Step = wire.Push, blockB1, 1
		_, _, err := p.ask(head, payloadOf(lenB1, 0))
		return err
	}
	var fault *wire.Fault
	if err := push(old); !errors.As(err, &fault) || fault.Code != wire.Fenced {
		t.Errorf("push of the older incarnation: %v, expected %v", err, wire.Fenced)
	}
	if err := push(fresh); err != nil {
		t.Errorf("push of the newer incarnation: %v", err)
	}
	unchanged(t, c)
}

// Every push sets all elements of a block to one new value, so that a pull of
// half an update would show two.
func TestPullsAreNotTorn(t *testing.T) { bothWays(t, pserver.Config{}, pullsAreNotTorn) }

func pullsAreNotTorn(t *testing.T, addr string, _ *params.Client) {
	const pushes = 300
	done := make(chan error, 1)
	writer := dial(t, addr).sayHello(0, 1)
	go func() {
		head := writer.head
		head.Op, head.Block = wire.Push, blockW1Last
		for step := range uint64(pushes) {
			head.Step = step + 1
			if _, _, err := writer.ask(head, payloadOf(lenLast, 2)); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	reader := dial(t, addr).sayHello(1, 2)
	head := reader.head
	head.Op, head.Block, head.DType = wire.Pull, blockW1Last, wire.Bytes
	got := make([]float32, lenLast)
	changes := map[float32]bool{}
	for running := true; running; {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			running = false
		default:
		}
		reply, payload, err := reader.ask(head, nil)
		if err != nil {
			t.Fatal(err)
		}
		copy(floats.Bytes(got), payload)
		for i, v := range got {
			if v != got[0] {
				t.Fatalf("element 0 is %v, element %d is %v", got[0], i, v)
			}
		}
		if want := 1 - float32(reply.Version); got[0] != want {
			t.Fatalf("version %d has %v, expected %v", reply.Version, got[0], want)
		}
		changes[got[0]] = true
	}
	if got[0] != 1-pushes {
		t.Errorf("after %d pushes: %v", pushes, got[0])
	}
	t.Logf("saw %d states", len(changes))
}
