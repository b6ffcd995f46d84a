package etcdstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"trainmaster/etcdstore/etcdtest"
)

func TestPrefixedReadsAllPages(t *testing.T) {
	s := etcdtest.Store(t)
	const n = 2500 // more than two pages
	for from := 0; from < n; from += 100 {
		var puts []clientv3.Op
		for i := from; i < from+100; i++ {
			puts = append(puts, clientv3.OpPut(fmt.Sprintf("%s/ledger/%016x", s.Prefix(), i), fmt.Sprint(i)))
		}
		if _, err := s.Client().Txn(t.Context()).Then(puts...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	keys, revision, err := s.Prefixed(t.Context(), "/ledger/")
	if err != nil || len(keys) != n || revision == 0 {
		t.Fatalf("%d keys at %d, %v", len(keys), revision, err)
	}
	for i := range n {
		if got := string(keys[fmt.Sprintf("/ledger/%016x", i)]); got != fmt.Sprint(i) {
			t.Fatalf("key %d has %q", i, got)
		}
	}
	if _, _, err := s.Prefixed(t.Context(), ""); err == nil {
		t.Error("an empty prefix was accepted")
	}
}

func TestJobsDoNotShareKeys(t *testing.T) {
	a, b := etcdtest.Store(t), etcdtest.Store(t)
	commit(t, lead(t, a, "a"), 0, "a's")
	commit(t, lead(t, b, "b"), 0, "b's") // the leader of another job
	if value, _, err := b.State(t.Context()); string(value) != "b's" || err != nil {
		t.Errorf("state of b: %q, %v", value, err)
	}
}

func TestAbsentKeys(t *testing.T) {
	s := etcdtest.Store(t)
	if value, revision, err := s.Value(t.Context(), "/ps_step"); value != nil || revision != 0 || err != nil {
		t.Errorf("value %q at %d, %v", value, revision, err)
	}
	if roster, err := s.Roster(t.Context()); len(roster) != 0 || err != nil {
		t.Errorf("roster %v, %v", roster, err)
	}
	if parts, _, err := s.Parts(t.Context(), "none", 0, 0); len(parts) != 0 || err != nil {
		t.Errorf("parts %v, %v", parts, err)
	}
}

// F7: the history is compacted past the last revision of a watch while its connection is down. The watch lists the
// keys again and reports the present values.
func TestWatchSurvivesCompaction(t *testing.T) {
	t.Parallel()
	job := etcdtest.NewJob(t)
	proxy := etcdtest.StartProxy(t, etcdtest.Endpoint(t))
	watcher := etcdtest.Open(t, proxy.Endpoint(), job)
	direct := etcdtest.Open(t, etcdtest.Endpoint(t), job)
	announce := func(addr string) int64 {
		answer, err := direct.Client().Put(t.Context(), direct.Prefix()+"/master/addr", `{"addr":"`+addr+`"}`)
		if err != nil {
			t.Fatal(err)
		}
		return answer.Header.Revision
	}
	announce("one")
	seen := watcher.WatchMasterAddr(t.Context())
	want := func(addr string) {
		t.Helper()
		if got := receive(t, addr, seen); got.Addr != addr {
			t.Fatalf("saw %q, want %q", got.Addr, addr)
		}
	}
	want("one")
	announce("two")
	want("two")

	proxy.Refuse(true)
	proxy.Cut()
	announce("three")
	announce("four")
	last := announce("five")
	if _, err := direct.Client().Compact(t.Context(), last, physical); err != nil {
		t.Fatal(err)
	}
	proxy.Refuse(false)
	want("five")
	announce("six")
	want("six")
}

// A watch repeats a list that etcd refuses as too busy, with growing pauses.
func TestWatchAsksAgainLater(t *testing.T) {
	t.Parallel()
	f := startFront(t, etcdtest.Endpoint(t))
	s := etcdtest.Open(t, f.endpoint, etcdtest.NewJob(t))
	f.failReads(rpctypes.ErrGRPCRequestTooManyRequests)
	seen := s.WatchMasterAddr(t.Context())
	const pauses = 6
	eventually(t, "repeated lists", func() bool { return len(f.readsAt()) > pauses })
	asked := f.readsAt()
	f.failReads(nil)
	receive(t, "the first view", seen)
	least := 10 * time.Millisecond // half of the first pause; the other half is random
	for i := range pauses {
		if pause := asked[i+1].Sub(asked[i]); pause < least {
			t.Errorf("list %d: expected a pause of at least %[3]v, found %[2]v", i+1, pause, least)
		}
		least *= 2
	}
}

// F7: a watch that etcd refuses, for example while its users are changed, is tried again.
func TestRefusedWatchIsTriedAgain(t *testing.T) {
	t.Parallel()
	f := startFront(t, etcdtest.Endpoint(t))
	s := etcdtest.Open(t, f.endpoint, etcdtest.NewJob(t))
	f.failReads(rpctypes.ErrGRPCPermissionDenied)
	seen := s.WatchMasterAddr(t.Context())
	eventually(t, "a refused list", func() bool { return len(f.readsAt()) > 0 })
	f.failReads(nil)
	if _, err := s.Client().Put(t.Context(), s.Prefix()+"/master/addr", `{"addr":"leader"}`); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the address of the leader", func() bool { return receive(t, "a view", seen).Addr == "leader" })
}

// Reads are repeated while etcd is unreachable.
func TestReadsWaitForEtcd(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.StartProcess(t, 0)
	s := etcd.Store()
	lock := lead(t, s, "a")
	mod := commit(t, lock, 0, "one")
	etcd.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, _, err := s.State(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("read without etcd: %v, want the deadline", err)
	}
	type answer struct {
		value []byte
		err   error
	}
	got := make(chan answer, 1)
	go func() {
		value, _, err := s.State(context.Background())
		got <- answer{value, err}
	}()
	etcd.Start()
	if a := receive(t, "the read", got); string(a.value) != "one" || a.err != nil {
		t.Errorf("read %q, %v", a.value, a.err)
	}
	wantState(t, s, "one", mod)
}

func TestClusterIDBelongsToDataDirectory(t *testing.T) { // F10, the part that etcd can detect
	t.Parallel()
	a, b := etcdtest.StartProcess(t, 0), etcdtest.StartProcess(t, 0)
	first, err := a.Store().ClusterID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	other, err := b.Store().ClusterID(t.Context())
	if err != nil || other == first || first == 0 {
		t.Errorf("cluster ids %x and %x, %v", first, other, err)
	}
	a.Kill()
	a.Start()
	if again, err := a.Store().ClusterID(t.Context()); err != nil || again != first {
		t.Errorf("cluster id after a restart: expected %[3]x, found %[1]x, %[2]v", again, err, first)
	}
}

func TestWatchEndsWithItsContext(t *testing.T) {
	s := etcdtest.Store(t)
	ctx, cancel := context.WithCancel(t.Context())
	addrs, servers := s.WatchMasterAddr(ctx), s.WatchPS(ctx)
	receive(t, "the first view", addrs)
	receive(t, "the first view", servers)
	cancel()
	if _, more := <-addrs; more {
		t.Error("expected no view after the end")
	}
	if _, more := <-servers; more {
		t.Error("expected no view after the end")
	}
}
