package pserver_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver"
	"trainmaster/trainer/params"
)

// The gradients of two trainers do not fit: one of them is refused with the numbers, the other one goes on. Both hung before.
func TestStageOfMoreTrainersThanFitIsRefused(t *testing.T) {
	b := startServers(t, 1, pserver.Config{StageBytes: 3 << 20, StageWait: time.Millisecond})
	m := newMaster(t, b)
	model := func() []params.Tensor { return big(2, 1) }
	var clients []*params.Client
	for i := range uint32(2) {
		c := connect(t, b, params.Config{Mode: params.Sync, Ordinal: i})
		mustInit(t, c, model())
		clients = append(clients, c)
	}
	must(t, clients[0].Stage(within(t), 0, model(), 1))
	err := clients[1].Stage(within(t), 0, model(), 1)
	want := "shard 0: expected at most 3145728 bytes of staged gradients (--stage-bytes), found 2 trainers with 2097152 bytes each"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Fatalf("error %v, expected %q", err, want)
	}
	must(t, m.commit(within(t), 1, by(0, 1)))
	must(t, clients[0].Stage(within(t), 1, model(), 1))
}

// Memory that an earlier step left to a trainer without a task is free for others.
func TestStageTakesTheMemoryOfEarlierVersions(t *testing.T) {
	b := startServers(t, 1, pserver.Config{StageBytes: 3 << 20})
	m := newMaster(t, b)
	model := func() []params.Tensor { return big(2, 1) }
	for i := range uint32(2) {
		c := connect(t, b, params.Config{Mode: params.Sync, Ordinal: i})
		mustInit(t, c, model())
		must(t, c.Stage(within(t), uint64(i), model(), 1))
		must(t, m.commit(within(t), uint64(i)+1, by(i, 1)))
	}
}

// A shard that is too big for the gradients of one trainer is refused at the start.
func TestInitOfAShardBeyondStageBytesIsRefused(t *testing.T) {
	b := startServers(t, 1, pserver.Config{StageBytes: 3 << 20})
	c := connect(t, b, params.Config{Mode: params.Sync})
	err := c.Init(within(t), big(4, 1))
	if want := "expected at most 3145728 bytes (--stage-bytes) of all trainers, found 4194304 of one"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, expected %q", err, want)
	}
}

// retire tells the first server that all incarnations below floor are retired, and that version is the last committed one.
func retire(t *testing.T, b *book, floor, version uint64) {
	t.Helper()
	addrs, err := b.complete(t.Context())
	must(t, err)
	_, err = control(t, addrs[0]).Retire(within(t), &pb.RetireRequest{Term: 1, Version: &version, Retired: &pb.Retirement{Job: []byte("jobjobjobjobjobj"), Floor: floor}})
	must(t, err)
}

// A trainer is killed after it staged, and its stage leaves no room. Its successor waits until the trainer is retired.
func TestRetirementFreesStages(t *testing.T) {
	b := startServers(t, 1, pserver.Config{StageBytes: 3 << 20, StageWait: 500 * time.Millisecond})
	model := func() []params.Tensor { return big(2, 1) }
	first := connect(t, b, params.Config{Mode: params.Sync, Ordinal: 0})
	mustInit(t, first, model())
	must(t, first.Stage(within(t), 0, model(), 1))
	first.Close()
	next := connect(t, b, params.Config{Mode: params.Sync, Ordinal: 1})
	mustInit(t, next, model())
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	if err := next.Stage(ctx, 0, model(), 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("before the retirement: error %v, expected to wait", err)
	}
	retire(t, b, 2, 0)
	must(t, next.Stage(within(t), 0, model(), 1))
}

// A step that names a trainer is committed, and its retirement arrives at the server before the step: the stage is still there.
func TestRetirementKeepsStageOfCommittedStep(t *testing.T) {
	b := startServers(t, 1, pserver.Config{StageBytes: 3 << 20, StageWait: time.Minute})
	m := newMaster(t, b)
	model := func() []params.Tensor { return big(2, 1) }
	first := connect(t, b, params.Config{Mode: params.Sync, Ordinal: 0})
	mustInit(t, first, model())
	must(t, first.Stage(within(t), 0, model(), 1))
	first.Close()
	retire(t, b, 2, 1)
	next := connect(t, b, params.Config{Mode: params.Sync, Ordinal: 1})
	mustInit(t, next, model())
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := next.Stage(ctx, 0, model(), 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("before the step: error %v, expected to wait", err)
	}
	must(t, m.commit(within(t), 1, by(0, 1)))
	must(t, next.Stage(within(t), 1, model(), 1))
}

// Describe has the memory of staged rows beside that of the blocks: a scale is refused if both do not fit.
func TestDescribeCountsStagedRows(t *testing.T) {
	book := startServers(t, 1, pserver.Config{})
	addrs, err := book.complete(within(t))
	must(t, err)
	for ordinal, ids := range [][]int64{{1, 2, 3}, {4}} {
		c := connectTables(t, book, params.Config{Mode: params.Sync, Ordinal: uint32(ordinal)})
		must(t, c.Stage(within(t), 0, little(), 1))
		must(t, c.StageRows(within(t), "users", 0, ids, make([]float32, 4*len(ids)), 1))
	}
	reply, err := control(t, addrs[0]).Describe(within(t), &pb.DescribeRequest{Brief: true})
	if least := uint64(3 * (8 + 4*4)); err != nil || reply.GetStageRows() < least || reply.GetStageRows() > 2*least { // ids, values and spans
		t.Errorf("%d bytes of rows, %v: expected about %d, those of the trainer with the most", reply.GetStageRows(), err, least)
	}
}
