package pserver_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/checkpoint"
	"trainmaster/trainer/params"
)

// Servers load a set while they run: with its parameters, in another epoch. A trainer of the previous epoch
// receives the error. Without a set they start with no parameters.
func TestRewind(t *testing.T) { onEachBackend(t, rewind) }

func rewind(t *testing.T, g *storageBackend) {
	dir, _ := g.newDir(t)
	start, grads := small(random(1)), small(random(2))
	c, trainer := trainedCluster(t, dir, start)
	set := c.mustTake(t)
	parsed, err := checkpoint.ParseSet(set)
	if err != nil || parsed.Position != nil {
		t.Fatal(parsed, err)
	}
	kept := small(constant(0))
	if _, err := trainer.Pull(within(t), kept, 0); err != nil {
		t.Fatal(err)
	}
	pinned := connect(t, c.book, params.Config{Mode: params.Async, Optimizer: heavy, Ordinal: 8, Incarnation: 100, JobEpoch: 1})
	values := small(constant(0))
	mustInit(t, pinned, values)
	mustPush(t, pinned, 1, grads) // no set has it

	if err := c.client.Rollback(within(t), 1, 2, set, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := pinned.Push(within(t), 2, 1, grads); !errors.Is(err, params.ErrRolledBack) {
		t.Errorf("a push of the epoch before: %v, expected %v", err, params.ErrRolledBack)
	}
	again := connect(t, c.book, params.Config{Mode: params.Async, Optimizer: heavy, Ordinal: 8, Incarnation: 101, JobEpoch: 2})
	mustInit(t, again, values)
	if err := differ(values, kept); err != nil {
		t.Errorf("after the rollback: %v", err)
	}
	mustPush(t, again, 1, grads)
	if err := c.client.Rollback(within(t), 1, 2, set, nil); err != nil {
		t.Errorf("said again: %v", err)
	}
	if _, err := again.Pull(within(t), values, 0); err != nil || differ(values, kept) == nil {
		t.Errorf("said again it takes the push back: %v", err)
	}
	if err := c.client.Rollback(within(t), 1, 1, set, nil); err == nil {
		t.Error("an older epoch is taken")
	}
	states, err := c.client.States(within(t))
	if err != nil || len(states) != len(c.servers) {
		t.Fatal(states, err)
	}
	for i, s := range states {
		if !s.Present || !s.Ready || s.Epoch != 2 || s.LastCut != parsed.Number {
			t.Errorf("server %d: %+v", i, s)
		}
	}

	if err := c.client.Rollback(within(t), 2, 3, nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := c.client.Rollback(within(t), 1, 4, set, nil); err == nil {
		t.Error("a master of an older term is obeyed")
	}
	anew := connect(t, c.book, params.Config{Mode: params.Async, Optimizer: heavy, Ordinal: 8, Incarnation: 102, JobEpoch: 3})
	other := small(random(3))
	mustInit(t, anew, other)
	if err := differ(other, small(random(3))); err != nil {
		t.Errorf("started without a set: %v", err)
	}
}

// A step of a later epoch does not make a server that went back one of that epoch: it waits for
// its set.
func TestRewoundServerTakesNoLaterStep(t *testing.T) {
	c := startCluster(t, t.TempDir(), 1, nil)
	if err := c.client.Rollback(within(t), 1, 2, nil, nil); err != nil {
		t.Fatal(err)
	}
	trainer := connect(t, c.book, params.Config{Mode: params.Sync, Optimizer: heavy, Incarnation: 7, JobEpoch: 2})
	mustInit(t, trainer, small(constant(1)))
	addrs, err := c.complete(within(t))
	if err != nil {
		t.Fatal(err)
	}
	server := control(t, addrs[0])
	if _, err := server.CommitStep(within(t), &pb.CommitStepRequest{Version: 1, JobEpoch: 3}); !strings.Contains(fmt.Sprint(err), "it takes steps after its rollback") {
		t.Errorf("step of a later epoch: %v, expected that the server takes it after its rollback", err)
	}
	if d, err := server.Describe(within(t), &pb.DescribeRequest{}); err != nil || d.JobEpoch != 2 || d.Rewound != 2 {
		t.Errorf("%v, %v: expected job epoch 2", d, err)
	}
}
