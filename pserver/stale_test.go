package pserver_test

import (
	"errors"
	"strings"
	"testing"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver"
	"trainmaster/pserver/staleness"
	"trainmaster/pserver/wire"
	"trainmaster/trainer/params"
)

func rejectBeyond(limit uint64) params.Staleness {
	return params.Staleness{Policy: staleness.Reject, Limit: limit}
}

// mustPushOnes has gradients of one applied, all or an error.
func mustPushOnes(t testing.TB, c *params.Client, step uint64, values []params.Tensor) {
	t.Helper()
	if _, err := c.PushPull(within(t), step, 1, tensors(constant(1)), values); err != nil {
		t.Fatal(err)
	}
}

func counters(t testing.TB, addr string) *pb.ParameterServerCounters {
	t.Helper()
	reply, err := control(t, addr).Describe(within(t), &pb.DescribeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return reply.GetCounters()
}

// Up to the limit a gradient is applied; beyond it no block is touched, until it is computed anew.
func TestStaleGradientIsRejected(t *testing.T) {
	book := startServers(t, 2, pserver.Config{})
	slow := connect(t, book, params.Config{Mode: params.Async, Staleness: rejectBeyond(2)})
	fast := connect(t, book, params.Config{Mode: params.Async, Ordinal: 1, Staleness: rejectBeyond(2)})
	mine, theirs := tensors(constant(0)), tensors(constant(0))
	mustInit(t, slow, mine)
	mustInit(t, fast, theirs)
	mustPushOnes(t, fast, 1, theirs)
	mustPushOnes(t, fast, 2, theirs)
	mustPushOnes(t, slow, 1, mine) // two updates behind
	for step := range uint64(3) {
		mustPushOnes(t, fast, 3+step, theirs)
	}
	_, err := slow.PushPull(within(t), 2, 1, tensors(constant(1)), mine)
	late, ok := errors.AsType[*params.StaleError](err)
	if !ok || late.Version != 6 {
		t.Fatalf("three updates behind: %v, expected to be told of version 6", err)
	}
	if version, err := slow.Pull(within(t), mine, 0); err != nil || version != 6 {
		t.Fatalf("version %d, %v; expected 6", version, err)
	}
	if err := differ(mine, tensors(constant(-6*plainSGD.LearningRate))); err != nil {
		t.Fatalf("after the rejection: %v", err)
	}
	mustPushOnes(t, slow, 2, mine)
	if err := differ(mine, tensors(constant(-7*plainSGD.LearningRate))); err != nil {
		t.Errorf("computed anew: %v", err)
	}
	if mustPushOnes(t, slow, 2, mine); mine[0].Data[0] != -7*plainSGD.LearningRate {
		t.Error("a repetition was applied once more")
	}
	addrs, _ := book.complete(within(t))
	for _, addr := range addrs {
		c := counters(t, addr)
		blocks := c.GetBlocksPushed() / 7
		if c.GetStaleRejected() != blocks || c.GetStalenessMax() != 2 || c.GetStalenessSum() != 3*blocks || c.GetDuplicates() != blocks {
			t.Errorf("counters %v; expected %d rejected, %[2]d duplicates, and a staleness of 2 and of 1 for each block", c, blocks)
		}
	}
}

// A step that is rejected at one block is applied at the others, and the gradient
// that is computed anew reaches just the one that misses it.
func TestStaleAtOneBlock(t *testing.T) {
	book := startServers(t, 1, pserver.Config{})
	c := connect(t, book, params.Config{Mode: params.Async, Staleness: rejectBeyond(0)})
	values := tensors(constant(0))
	mustInit(t, c, values)
	addrs, _ := book.complete(within(t))
	other := dial(t, addrs[0]).greet(9, 100)
	head := other.head
	head.Op, head.Block, head.Step = wire.Push, blockB1, 1
	if _, _, err := other.ask(head, floats(lenB1, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.PushPull(within(t), 1, 1, tensors(constant(1)), values); !errors.As(err, new(*params.StaleError)) {
		t.Fatalf("push that is stale at one block: %v", err)
	}
	if _, err := c.Pull(within(t), values, 0); err != nil {
		t.Fatal(err)
	}
	if err := differ(values, tensors(constant(-plainSGD.LearningRate))); err != nil {
		t.Fatalf("every block has one update, one of them the other trainer's: %v", err)
	}
	if _, err := c.PushPull(within(t), 1, 1, tensors(constant(4)), values); err != nil {
		t.Fatal(err)
	}
	if err := differ(values, tensors(func(tensor int, data []float32) {
		updates := float32(1)
		if tensor == 1 {
			updates = 5
		}
		constant(-updates*plainSGD.LearningRate)(tensor, data)
	})); err != nil {
		t.Errorf("after the second attempt: %v", err)
	}
}

// A trainer's own pushes make its gradients no staler.
func TestOwnPushesAreNotStale(t *testing.T) {
	book := startServers(t, 2, pserver.Config{})
	c := connect(t, book, params.Config{Mode: params.Async, Staleness: rejectBeyond(0)})
	values := tensors(constant(0))
	mustInit(t, c, values)
	for step := range uint64(4) {
		if version, err := c.Push(within(t), step+1, 1, tensors(constant(1))); err != nil || version != step+1 {
			t.Fatalf("push %d: version %d, %v", step+1, version, err)
		}
	}
	mustPushOnes(t, c, 5, values)
	if err := differ(values, tensors(constant(-5*plainSGD.LearningRate))); err != nil {
		t.Error(err)
	}
}

func TestStaleGradientIsScaled(t *testing.T) {
	book := startServers(t, 2, pserver.Config{})
	bound := params.Staleness{Policy: staleness.Scale, Limit: 1}
	slow := connect(t, book, params.Config{Mode: params.Async, Staleness: bound})
	fast := connect(t, book, params.Config{Mode: params.Async, Ordinal: 1, Staleness: bound})
	mine, theirs := tensors(constant(0)), tensors(constant(0))
	mustInit(t, slow, mine)
	mustInit(t, fast, theirs)
	for step := range uint64(4) {
		mustPushOnes(t, fast, step+1, theirs)
	}
	mustPushOnes(t, slow, 1, mine)
	if err := differ(mine, tensors(constant(-4.25*plainSGD.LearningRate))); err != nil {
		t.Error(err)
	}
	addrs, _ := book.complete(within(t))
	if c := counters(t, addrs[0]); c.GetStaleScaled() == 0 || c.GetStalenessMax() != 4 {
		t.Errorf("counters %v", c)
	}
}

// The bound is the job's: others are refused, also by a server that has it from a checkpoint.
func TestStalenessBelongsToTheJob(t *testing.T) {
	dir, b := t.TempDir(), newBook(1)
	first := startServer(t, b, 0, pserver.Config{CheckpointDir: dir})
	c := connect(t, b, params.Config{Mode: params.Async, Staleness: rejectBeyond(3)})
	mustInit(t, c, tensors(constant(0)))
	differs := func() {
		t.Helper()
		err := connect(t, b, params.Config{Mode: params.Async, Ordinal: 1}).Init(within(t), tensors(constant(0)))
		if err == nil || !strings.Contains(err.Error(), `has staleness bound "reject beyond 3", yours "apply"`) {
			t.Errorf("another bound: %v", err)
		}
	}
	differs()
	c.Close()
	first.stop()
	first.wait()
	startServer(t, b, 0, pserver.Config{CheckpointDir: dir})
	differs()
	sync := params.Config{Mode: params.Sync, Staleness: rejectBeyond(3), Incarnation: 1, Optimizer: plainSGD, Addrs: b.complete}
	if err := sync.Validate(); err == nil || !strings.Contains(err.Error(), "in mode sync: expected none") {
		t.Errorf("a bound in mode sync: %v", err)
	}
}
