package pserver_test

import (
	"errors"
	"testing"

	"trainmaster/pserver"
	"trainmaster/trainer/params"
)

// A server that is killed before the first checkpoint set comes back without parameters. No server has applied a push, so trainers
// initialize again, and each push is applied once.
func TestServerKilledBeforeTheFirstSet(t *testing.T) { onEachBackend(t, serverKilledBeforeTheFirstSet) }

func serverKilledBeforeTheFirstSet(t *testing.T, g *storageBackend) {
	dir, _ := g.newDir(t)
	start, grads := small(random(1)), small(random(2))
	b := newBook(2)
	b.noLeader = true
	servers := []*server{startServer(t, b, 0, pserver.Config{CheckpointDir: dir}), startServer(t, b, 1, pserver.Config{CheckpointDir: dir})}
	client := connect(t, b, params.Config{Mode: params.Async, Optimizer: heavy, Incarnation: 6})
	mustInit(t, client, clone(start))
	servers[1].leave(t)
	servers[1] = startServer(t, b, 1, pserver.Config{CheckpointDir: dir})
	_, err := client.PushPull(within(t), 1, 1, grads, small(constant(0)))
	if !errors.Is(err, params.ErrNoSet) || !errors.Is(err, params.ErrUninitialized) {
		t.Fatalf("push to a server that was restarted before the first set: expected %v, found %v", params.ErrNoSet, err)
	}
	client = connect(t, b, params.Config{Mode: params.Async, Optimizer: heavy, Incarnation: 7})
	mustInit(t, client, clone(start))
	b.noLeader = false
	newSetTaker(t, b)
	mustPush(t, client, 1, grads)
	wantModel(t, "a server killed before the first set", b, start, grads, 1)
}
