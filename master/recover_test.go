package master_test

import (
	"context"
	"errors"
	"testing"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/committer"
	"trainmaster/master/mastertest"
	"trainmaster/master/store"
	"trainmaster/taskqueue"
)

// pausedReader is a store that pauses a master between its reads of the state and of the roster.
type pausedReader struct {
	store.Store
	pause func()
}

func (s pausedReader) Roster(ctx context.Context) (map[string][]byte, error) {
	s.pause()
	return s.Store.Roster(ctx)
}

// A master that is replaced while it recovers reads keys of different commits. It returns the end of its term, and
// not a damaged state, which would end the process.
func TestLockLostWhileRecovering(t *testing.T) {
	job := etcdtest.NewJob(t)
	open := func() *etcdstore.Store { return etcdtest.Open(t, etcdtest.Endpoint(t), job) }
	etcd := open()
	slow := pausedReader{Store: etcd, pause: func() {
		revokeLock(t, etcd)
		next := mastertest.Start(t, open(), master.Config{})
		next.Register(3)
		next.Join("a").Take(t)
	}}
	lead, err := slow.Lead(t.Context(), store.Campaign{Address: "paused"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = committer.Recover(t.Context(), lead, master.Config{Store: slow}.Committer(), nil, func() {}, func() {})
	if !errors.Is(err, taskqueue.ErrFenced) || errors.Is(err, taskqueue.ErrDamaged) {
		t.Fatalf("got %v, expected %v alone", err, taskqueue.ErrFenced)
	}
}
