package etcdstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
)

func TestCompactLoopKeepsTheNewest(t *testing.T) {
	etcd := etcdtest.StartProcess(t, 0)
	s := etcd.Store()
	lock := lead(t, s, "a")
	var mod int64
	for i := range 50 {
		mod = commit(t, lock, mod, fmt.Sprint(i))
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.CompactLoop(ctx, 5*time.Millisecond, 10) }()
	readable := func(revision int64) bool {
		_, err := s.Client().Get(t.Context(), "x", clientv3.WithRev(revision))
		if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
			t.Fatal(err)
		}
		return err == nil
	}
	eventually(t, "compaction of the old history", func() bool { return !readable(mod - 11) })
	if !readable(mod - 10) {
		t.Error("expected the newest revisions to be readable")
	}
	cancel()
	if err := receive(t, "the loop's end", ended); err != nil {
		t.Error(err)
	}
	commit(t, lock, mod, "after")
}

func TestForeignEtcdIsNotCompacted(t *testing.T) {
	s, err := etcdstore.Open(t.Context(), etcdstore.Config{Endpoints: []string{etcdtest.Endpoint(t)}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if err := s.CompactLoop(t.Context(), time.Millisecond, 1); err == nil {
		t.Error("external etcd: expected no compaction")
	}
}

func TestCheckAutoCompaction(t *testing.T) {
	defer etcdstore.SetUncompacted(100)()
	etcd := etcdtest.StartProcess(t, 0)
	s := etcd.Store()
	check := func() string {
		t.Helper()
		warning, err := s.CheckAutoCompaction(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return warning
	}
	if warning := check(); warning != "" {
		t.Errorf("new etcd: got warning %s", warning)
	}
	lock := lead(t, s, "a")
	var mod int64
	for i := range 150 {
		mod = commit(t, lock, mod, fmt.Sprint(i))
	}
	if check() == "" {
		t.Error("expected a warning: etcd is not compacted")
	}
	if _, err := s.Client().Compact(t.Context(), mod-10); err != nil {
		t.Fatal(err)
	}
	if warning := check(); warning != "" {
		t.Errorf("compacted etcd: got warning %s", warning)
	}
}

func TestSize(t *testing.T) {
	etcd := etcdtest.StartProcess(t, 64<<20)
	size, err := etcd.Store().Size(t.Context())
	if err != nil || size.Total <= 0 || size.InUse <= 0 || size.InUse > size.Total || size.Quota != 64<<20 {
		t.Errorf("%+v, %v", size, err)
	}
}
