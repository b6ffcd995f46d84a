package pserver_test

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"trainmaster/master/psclient"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver"
	"trainmaster/pserver/dataport"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/wire"
	"trainmaster/trainer/params"
)

// newPlacer moves blocks as a leader does.
func newPlacer(t testing.TB, b *book) *psclient.Client {
	c := &psclient.Client{Addrs: b.complete, Present: b.complete, Registered: b.complete}
	t.Cleanup(c.Close)
	return c
}

// resize commits another goal, for servers that start later too, and tells it.
func resize(t testing.TB, b *book, c *psclient.Client, servers int) []byte {
	t.Helper()
	stored, err := c.Resize(within(t), nil, servers)
	if err != nil {
		t.Fatal(err)
	}
	return commitPlacement(t, b, c, stored)
}

func commitPlacement(t testing.TB, b *book, c *psclient.Client, stored []byte) []byte {
	t.Helper()
	b.mu.Lock()
	b.job.Placement = stored
	b.mu.Unlock()
	if err := c.SendPlacement(within(t), 1, stored); err != nil {
		t.Fatal(err)
	}
	return stored
}

func layoutOf(t testing.TB, stored []byte) *placement.Layout {
	t.Helper()
	l, err := placement.ParseLayout(stored)
	must(t, err)
	return l
}

// What moves is all that an update needs: with moments, the parameters after two pushes are those of a job without a move, bit by bit.
func TestMovedBlocksGoOnBitByBit(t *testing.T) {
	for _, optimizer := range []params.Optimizer{heavy, {Kind: "adam", LearningRate: 0.01}} {
		start, grads := tensors(random(1)), tensors(random(2))
		cfg := params.Config{Mode: params.Async, Optimizer: optimizer, Incarnation: 3}
		var results [2][]params.Tensor
		for i := range results {
			b := startServers(t, 2, pserver.Config{})
			c := connect(t, b, cfg)
			values := tensors(random(1))
			mustInit(t, c, values)
			push := func(step uint64) {
				if _, err := c.PushPull(within(t), step, 1, grads, values); err != nil {
					t.Fatal(err)
				}
			}
			push(1)
			if i == 1 {
				placer := newPlacer(t, b)
				for stored := resize(t, b, placer, 1); ; {
					next, _, err := placer.Move(within(t), 1, stored)
					if err != nil {
						t.Fatal(err)
					}
					if strings.Contains(string(next), `"shards":1`) {
						break // server 1 would end
					}
					stored = commitPlacement(t, b, placer, next)
				}
				push(1) // a repetition
			}
			push(2)
			results[i] = values
		}
		if err := differ(results[1], results[0]); err != nil || differ(results[1], start) == nil {
			t.Errorf("%s: after a move %v", optimizer.Kind, err)
		}
	}
}

// A destination that was killed after it took blocks has lost them: if the placement gives them to it, it ends with an error that says what to do.
func TestDestinationLost(t *testing.T) {
	b := newBook(2)
	startServer(t, b, 0, pserver.Config{})
	destination := startServer(t, b, 1, pserver.Config{})
	c := connect(t, b, params.Config{Mode: params.Async})
	mustInit(t, c, tensors(constant(1)))
	placer := newPlacer(t, b)
	stored := resize(t, b, placer, 2)
	conn, err := grpc.NewClient("passthrough:///"+destination.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	d, err := pb.NewParameterServerClient(conn).Describe(within(t), &pb.DescribeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	given := layoutOf(t, stored)
	given.Epoch++
	for id := range given.Owners {
		given.Owners[id] = 1 // and nothing was taken
	}
	text, err := given.Encode()
	must(t, err)
	_, err = pb.NewParameterServerClient(conn).SetPlacement(within(t), &pb.SetPlacementRequest{Term: 1, Placement: text, Model: d.GetModel()})
	if err == nil || !strings.Contains(err.Error(), "restart the server") {
		t.Errorf("placement with blocks that it lacks: %v", err)
	}
	if err := destination.wait(); err == nil || !strings.Contains(err.Error(), "restart the server") {
		t.Errorf("the server ended with %v", err)
	}
}

// A cut is of one placement.
func TestNoCutWhilePlacementsDiffer(t *testing.T) {
	b := newBook(2)
	dir := t.TempDir()
	servers := []*server{startServer(t, b, 0, pserver.Config{CheckpointDir: dir}), startServer(t, b, 1, pserver.Config{CheckpointDir: dir})}
	mustInit(t, connect(t, b, params.Config{Mode: params.Async}), tensors(constant(1)))
	placer := newPlacer(t, b)
	stored, err := placer.Resize(within(t), nil, 2)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+servers[0].addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	one := pb.NewParameterServerClient(conn)
	d, err := one.Describe(within(t), &pb.DescribeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := one.SetPlacement(within(t), &pb.SetPlacementRequest{Term: 1, Placement: stored, Model: d.Model}); err != nil {
		t.Fatal(err)
	}
	taker := newSetTaker(t, b)
	if _, err := taker.take(within(t)); err == nil || !strings.Contains(err.Error(), "has not received the latest move") {
		t.Errorf("a cut of two placements: %v", err)
	}
	commitPlacement(t, b, placer, stored)
	if _, err := taker.take(within(t)); err != nil {
		t.Errorf("a cut of one placement: %v", err)
	}
}

// A trainer that joins while the last blocks leave a server, which has ended before the others have the new placement, waits for the
// new placement.
func TestJoiningWhileThereAreFewerServers(t *testing.T) {
	b := newBook(2)
	startServer(t, b, 0, pserver.Config{})
	last := startServer(t, b, 1, pserver.Config{})
	start := tensors(random(1))
	mustInit(t, connect(t, b, params.Config{Mode: params.Async}), start)
	placer := newPlacer(t, b)
	stored := resize(t, b, placer, 1)
	var fewer []byte
	for {
		next, _, err := placer.Move(within(t), 1, stored)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(next), `"shards":1`) {
			fewer = next
			break
		}
		stored = commitPlacement(t, b, placer, next)
	}
	asked, release := make(chan struct{}), make(chan struct{})
	addrs, err := b.complete(within(t))
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	late, err := params.Connect(within(t), params.Config{Mode: params.Async, Optimizer: plainSGD, Ordinal: 1, Incarnation: 9, Log: quiet(), Addrs: func(ctx context.Context) ([]string, error) {
		if calls++; calls == 1 {
			return addrs, nil
		}
		if calls == 4 { // it has seen for a while that there is one server only
			close(asked)
			<-release
		}
		return addrs[:1], nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	last.stop()
	if err := last.wait(); err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	b.addrs = b.addrs[:1]
	b.mu.Unlock()
	values, joined := tensors(constant(0)), make(chan error, 1)
	ctx := within(t)
	go func() { joined <- late.Init(ctx, values) }()
	select {
	case <-asked:
	case err := <-joined:
		t.Fatal(err)
	}
	commitPlacement(t, b, placer, fewer)
	close(release)
	if err := <-joined; err != nil {
		t.Fatal(err)
	}
	if err := differ(values, start); err != nil {
		t.Error(err)
	}
}

// Each pull of a block that has moved is answered with the refusal, and no answer keeps a buffer of the server.
func TestPullsOfMovedBlocks(t *testing.T) {
	b := startServers(t, 2, pserver.Config{DataSocket: pserver.SocketOff, Limits: dataport.Limits{BufferBytes: wire.MaxPayload}})
	c := connect(t, b, params.Config{Mode: params.Async})
	values := tensors(constant(1))
	mustInit(t, c, values)
	placer := newPlacer(t, b)
	for stored := resize(t, b, placer, 1); ; {
		next, _, err := placer.Move(within(t), 1, stored)
		must(t, err)
		if strings.Contains(string(next), `"shards":1`) {
			break // server 1 would end
		}
		stored = commitPlacement(t, b, placer, next)
		if _, err := c.Pull(within(t), values, 0); err != nil {
			t.Fatal(err)
		}
		unchanged(t, c)
	}
}
