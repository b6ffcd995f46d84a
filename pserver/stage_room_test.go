package pserver_test

import (
	"strings"
	"testing"
	"time"

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
