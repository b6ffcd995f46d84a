package pserver_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"trainmaster/pserver"
	"trainmaster/pserver/table"
	"trainmaster/trainer/params"
)

// keyedServers starts two servers of a job with tables.
func keyedServers(t *testing.T, key table.Key) (b *book, servers []*server) {
	t.Helper()
	b = newBook(2)
	b.job = pserver.JobState{TableKey: key}
	for i := range 2 {
		servers = append(servers, startServer(t, b, i, pserver.Config{}))
	}
	return b, servers
}

// keyedInit connects a trainer, sets the parameters and pushes the rows of a step.
func keyedInit(t *testing.T, b *book, incarnation uint64) error {
	t.Helper()
	cfg := tablesConfig
	cfg.Tables, cfg.Incarnation = []params.Table{users}, incarnation
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	client := connect(t, b, cfg)
	defer client.Close()
	if err := client.Init(ctx, little()); err != nil {
		return err
	}
	ids, grads := tableStep(users, 1)
	return client.PushRows(ctx, users.Name, incarnation, 1, ids, grads)
}

// A server that lost its tables starts them again with the key of the server that has tables, not with the key of the job.
func TestServerWithLostTablesTakesKeyOfOthers(t *testing.T) {
	for name, lost := range map[string]int{"first": 0, "second": 1} {
		for kind, key := range map[string]table.Key{"no key": {}, "key of another job": {1, 2}} {
			t.Run(name+" "+kind, func(t *testing.T) {
				b, servers := keyedServers(t, key)
				must(t, keyedInit(t, b, 1))
				servers[lost].leave(t)
				b.mu.Lock()
				b.job.TableKey = table.Key{3, 4}
				b.mu.Unlock()
				startServer(t, b, lost, pserver.Config{})
				must(t, keyedInit(t, b, 2))
				if got := heldKey(t, b); got != key {
					t.Errorf("the tables have key %v, expected %v", got, key)
				}
			})
		}
	}
}

// Servers that hold tables with different keys are named, with what to do.
func TestServersWithDifferentKeysAreNamed(t *testing.T) {
	b := newBook(2)
	for i, key := range []table.Key{{1, 2}, {3, 4}} {
		own, servers := keyedServers(t, key)
		must(t, keyedInit(t, own, 1))
		b.set(i, servers[i].addr)
	}
	err := keyedInit(t, b, 2)
	if err == nil || !strings.Contains(err.Error(), "parameter servers 0 and 1 have different keys of ids") || !strings.Contains(err.Error(), "restore all of them from one checkpoint") {
		t.Errorf("init: %v", err)
	}
}

// The master of a new release stores the secret of the job between the starts of two servers.
func TestServersThatStartBeforeAndAfterTheSecretHaveOneKey(t *testing.T) {
	b := newBook(2)
	for i, key := range []table.Key{{}, {3, 4}} {
		own := newBook(2)
		own.job = pserver.JobState{TableKey: key}
		b.set(i, startServer(t, own, i, pserver.Config{}).addr)
	}
	must(t, keyedInit(t, b, 1))
}

// After a rollback to the beginning, tables have the key of the job, not the key in the set of an earlier job. A trainer of the
// epoch before must join again, as after any other rollback.
func TestTrainerOfTheKeyBeforeARollbackJoinsAgain(t *testing.T) {
	dir := t.TempDir()
	c := startClusterOf(t, dir, 2, pserver.JobState{TableKey: table.Key{1, 2}})
	must(t, keyedInit(t, c.book, 1))
	set := c.mustTake(t)
	c.leave(t)
	c = startClusterOf(t, dir, 2, pserver.JobState{LatestSet: set, TableKey: table.Key{3, 4}})
	trainerOf := func(incarnation uint64, epoch uint32) *params.Client {
		cfg := tablesConfig
		cfg.Tables, cfg.Incarnation, cfg.JobEpoch = []params.Table{users}, incarnation, epoch
		return connect(t, c.book, cfg)
	}
	before := trainerOf(101, 1)
	mustInit(t, before, little())
	before.Close() //nolint:errcheck // its connections are dialed again
	must(t, c.client.Rollback(within(t), 1, 2, nil, nil))
	after := trainerOf(102, 2)
	mustInit(t, after, little())
	if got := heldKey(t, c.book); got != (table.Key{3, 4}) {
		t.Fatalf("the tables have key %v after the rollback", got)
	}
	if _, err := before.Pull(within(t), little(), 0); !errors.Is(err, params.ErrRolledBack) {
		t.Errorf("a pull of the epoch before: %v, expected %v", err, params.ErrRolledBack)
	}
}
