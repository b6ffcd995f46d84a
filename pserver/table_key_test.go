package pserver_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"trainmaster/pserver"
	"trainmaster/pserver/table"
	"trainmaster/trainer/params"
)

// keyedServers starts two servers of a job with tables, which keep checkpoints in dirs.
func keyedServers(t *testing.T, key table.Key, dirs []string) (b *book, stop func()) {
	t.Helper()
	b = newBook(2)
	b.job = pserver.JobState{TableKey: key, Life: 1}
	var servers []*server
	for i := range dirs {
		servers = append(servers, startServer(t, b, i, pserver.Config{CheckpointDir: dirs[i]}))
	}
	return b, func() {
		t.Helper()
		for _, s := range servers {
			s.stop()
			if err := s.wait(); err != nil {
				t.Fatal(err)
			}
		}
	}
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

// A server that lost its checkpoint starts its tables with the key of the server that has tables, not with the key of the job.
func TestServerWithLostTablesTakesKeyOfOthers(t *testing.T) {
	for name, lost := range map[string]int{"first": 0, "second": 1} {
		for kind, key := range map[string]table.Key{"no key": {}, "key of another job": {1, 2}} {
			t.Run(name+" "+kind, func(t *testing.T) {
				dirs := []string{t.TempDir(), t.TempDir()}
				b, stop := keyedServers(t, key, dirs)
				must(t, keyedInit(t, b, 1))
				stop()
				dirs[lost] = t.TempDir()
				b, _ = keyedServers(t, table.Key{3, 4}, dirs)
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
	var dirs [2][]string
	for i, key := range []table.Key{{1, 2}, {3, 4}} {
		dirs[i] = []string{t.TempDir(), t.TempDir()}
		b, stop := keyedServers(t, key, dirs[i])
		must(t, keyedInit(t, b, 1))
		stop()
	}
	b, _ := keyedServers(t, table.Key{5, 6}, []string{dirs[0][0], dirs[1][1]})
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
		own.job = pserver.JobState{TableKey: key, Life: 1}
		b.set(i, startServer(t, own, i, pserver.Config{}).addr)
	}
	must(t, keyedInit(t, b, 1))
}
