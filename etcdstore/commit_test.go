package etcdstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/taskqueue"
)

func TestCommitWritesAllOrNothing(t *testing.T) {
	s := etcdtest.Store(t)
	lock := lead(t, s, "a")
	if value, mod, err := lock.ReadState(t.Context()); value != nil || mod != 0 || err != nil {
		t.Fatalf("new job: expected no state, found %q, %d, %v", value, mod, err)
	}
	mod, err := lock.Commit(t.Context(), 0, []byte("one"), []taskqueue.Write{
		{Key: "/trainers/x", Value: []byte("x")},
		{Key: "/trainers/y", Value: []byte("y"), LeaseBound: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	wantState(t, s, "one", mod)
	next, err := lock.Commit(t.Context(), mod, []byte("two"), []taskqueue.Write{{Key: "/trainers/x", Delete: true}})
	if err != nil {
		t.Fatal(err)
	}
	if next <= mod {
		t.Errorf("revision %d after %d", next, mod)
	}
	if value, found, err := lock.ReadState(t.Context()); string(value) != "two" || found != next || err != nil {
		t.Errorf("read back %q at %d, %v; want two at %d", value, found, err, next)
	}
	roster, err := s.Roster(t.Context())
	if err != nil || len(roster) != 1 || string(roster["y"]) != "y" {
		t.Errorf("roster %q, %v", roster, err)
	}
	if err := lock.Resign(t.Context()); err != nil {
		t.Fatal(err)
	}
	if roster, err = s.Roster(t.Context()); err != nil || len(roster) != 0 {
		t.Errorf("lease-bound keys: expected none, found %q, %v", roster, err)
	}
}

// F1: the lease ends without the knowledge of its holder, and the state is unchanged. Only the comparison of the lock
// key fences the holder.
func TestPausedHolderIsFenced(t *testing.T) {
	job := etcdtest.NewJob(t)
	other := etcdtest.Open(t, etcdtest.Endpoint(t), job)
	lock := lead(t, etcdtest.Open(t, etcdtest.Endpoint(t), job), "paused")
	mod := commit(t, lock, 0, "one")
	if _, err := other.Client().Revoke(t.Context(), lock.Lease()); err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Commit(t.Context(), mod, []byte("two"), nil); !errors.Is(err, taskqueue.ErrFenced) {
		t.Errorf("commit: %v, want ErrFenced", err)
	}
	if _, _, err := lock.ReadState(t.Context()); !errors.Is(err, taskqueue.ErrFenced) {
		t.Errorf("read: %v, want ErrFenced", err)
	}
	parts := []taskqueue.Write{{Key: etcdstore.PartKey("r", 0), Value: []byte("part")}}
	if err := lock.PutParts(t.Context(), mod, parts, nil); !errors.Is(err, taskqueue.ErrFenced) {
		t.Errorf("parts: %v, want ErrFenced", err)
	}
	bound := []taskqueue.Write{{Key: "/x", LeaseBound: true}}
	if _, err := lock.Commit(t.Context(), mod, []byte("two"), bound); !errors.Is(err, taskqueue.ErrFenced) {
		t.Errorf("lease-bound commit: %v, want ErrFenced", err)
	}
	if err := lock.Announce(t.Context(), "a:1", 1); !errors.Is(err, taskqueue.ErrFenced) {
		t.Errorf("announce: %v, want ErrFenced", err)
	}
	wantState(t, other, "one", mod)
	if parts, _, err := other.Prefixed(t.Context(), "/task_queues/"); err != nil || len(parts) != 0 {
		t.Errorf("parts %v, %v", parts, err)
	}
}

// F1: the next leader has changed the state.
func TestOldLeaderCannotWriteOverTheNext(t *testing.T) {
	job := etcdtest.NewJob(t)
	second := etcdtest.Open(t, etcdtest.Endpoint(t), job)
	old := lead(t, etcdtest.Open(t, etcdtest.Endpoint(t), job), "old")
	mod := commit(t, old, 0, "old")
	if _, err := second.Client().Revoke(t.Context(), old.Lease()); err != nil {
		t.Fatal(err)
	}
	next := lead(t, second, "next")
	mod2 := commit(t, next, mod, "next")
	for _, expect := range []int64{mod, mod2} {
		if _, err := old.Commit(t.Context(), expect, []byte("old again"), nil); !errors.Is(err, taskqueue.ErrFenced) {
			t.Errorf("commit at %d: %v, want ErrFenced", expect, err)
		}
	}
	wantState(t, second, "next", mod2)
}

// F4: the network delays a transaction. The same holder changes the state under the same lock. Then the delayed
// transaction arrives.
func TestLateCommitOfTheSameHolderIsFenced(t *testing.T) {
	job := etcdtest.NewJob(t)
	proxy := etcdtest.StartProxy(t, etcdtest.Endpoint(t))
	direct := etcdtest.Open(t, etcdtest.Endpoint(t), job)
	lock, err := etcdtest.Open(t, proxy.Endpoint(), job).Campaign(t.Context(), etcdstore.CampaignConfig{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	mod := commit(t, lock, 0, "one")

	proxy.HoldRequests(true)
	late := make(chan error, 1)
	go func() {
		_, err := lock.Commit(context.Background(), mod, []byte("late"), nil)
		late <- err
	}()
	eventually(t, "a held commit", func() bool { return proxy.HeldRequests() > 0 })
	// A later transaction of the holder, over another connection.
	answer, err := direct.Client().Txn(t.Context()).
		If(clientv3.Compare(clientv3.CreateRevision(lock.Key()), "=", lock.Revision())).
		Then(clientv3.OpPut(direct.Prefix()+"/task_queues", "two")).Commit()
	if err != nil || !answer.Succeeded {
		t.Fatal(err)
	}
	proxy.HoldRequests(false)
	if err := receive(t, "the late commit's answer", late); !errors.Is(err, taskqueue.ErrFenced) {
		t.Errorf("late commit: %v, want ErrFenced", err)
	} else if !strings.Contains(err.Error(), "revision") {
		t.Errorf("error %v: expected the key that changed", err)
	}
	wantState(t, direct, "two", answer.Header.Revision)
}

func TestStaleExpectationIsFenced(t *testing.T) {
	s := etcdtest.Store(t)
	lock := lead(t, s, "a")
	mod := commit(t, lock, 0, "one")
	for _, expect := range []int64{0, mod - 1, mod + 1} {
		if _, err := lock.Commit(t.Context(), expect, []byte("two"), nil); !errors.Is(err, taskqueue.ErrFenced) {
			t.Errorf("commit at %d: %v, want ErrFenced", expect, err)
		}
		parts := []taskqueue.Write{{Key: etcdstore.PartKey("r", 0), Value: []byte("part")}}
		if err := lock.PutParts(t.Context(), expect, parts, nil); !errors.Is(err, taskqueue.ErrFenced) {
			t.Errorf("parts at %d: %v, want ErrFenced", expect, err)
		}
	}
	wantState(t, s, "one", mod)
}

func TestRefusedTransactionsAreDefinite(t *testing.T) {
	s := etcdtest.Store(t)
	lock := lead(t, s, "a")
	mod := commit(t, lock, 0, "one")
	many := make([]taskqueue.Write, 200)
	for i := range many {
		many[i] = taskqueue.Write{Key: fmt.Sprintf("/x/%d", i)}
	}
	cases := map[string]struct {
		state  []byte
		writes []taskqueue.Write
	}{
		"too many operations":   {[]byte("two"), many},
		"too large for etcd":    {bytes.Repeat([]byte("x"), 1<<20+600<<10), nil},
		"too large for gRPC":    {bytes.Repeat([]byte("x"), 4<<20), nil},
		"the same key twice":    {[]byte("two"), []taskqueue.Write{{Key: "/x"}, {Key: "/x"}}},
		"the state's key again": {[]byte("two"), []taskqueue.Write{{Key: "/task_queues"}}},
	}
	for name, c := range cases {
		_, err := lock.Commit(t.Context(), mod, c.state, c.writes)
		if err == nil || errors.Is(err, taskqueue.ErrUnknownOutcome) || errors.Is(err, taskqueue.ErrFenced) {
			t.Errorf("%s: %v, want a definite failure", name, err)
		}
	}
	wantState(t, s, "one", mod)
	commit(t, lock, mod, "two") // the same leader continues
}

func TestPartsAreReadInOrder(t *testing.T) {
	s := etcdtest.Store(t)
	lock := lead(t, s, "a")
	mod := commit(t, lock, 0, "one")
	var parts []taskqueue.Write
	for i := range 12 {
		parts = append(parts, taskqueue.Write{Key: etcdstore.PartKey("beef", i), Value: bytes.Repeat([]byte{byte(i)}, 100<<10)})
	}
	var steps []int
	progress := func(done, total int) {
		steps = append(steps, done)
		if total != 12 {
			t.Errorf("total %d", total)
		}
	}
	for range 2 { // the leader may send the same bytes again
		if err := lock.PutParts(t.Context(), mod, parts, progress); err != nil {
			t.Fatal(err)
		}
	}
	if len(steps) != 24 || steps[11] != 12 {
		t.Errorf("progress %v", steps)
	}
	wantState(t, s, "one", mod) // unchanged
	got, revision, err := s.Parts(t.Context(), "beef", 0, 12)
	if err != nil || revision < mod {
		t.Fatal(revision, err)
	}
	for i := range got {
		if !bytes.Equal(got[i], parts[i].Value) {
			t.Errorf("part %d has %d bytes of %v", i, len(got[i]), got[i][:1])
		}
	}
	if _, _, err := s.Parts(t.Context(), "beef", 0, 13); err == nil || !strings.Contains(err.Error(), "12 of 13") {
		t.Errorf("missing part: got %v", err)
	}
	if _, err := s.Client().Delete(t.Context(), s.Prefix()+etcdstore.PartKey("beef", 5)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Parts(t.Context(), "beef", 0, 11); err == nil || !strings.Contains(err.Error(), "0005") {
		t.Errorf("gap between parts: got %v", err)
	}
	tooLarge := []taskqueue.Write{{Key: etcdstore.PartKey("beef", 0), Value: make([]byte, etcdstore.MaxPart+1)}}
	if err := lock.PutParts(t.Context(), mod, tooLarge, nil); err == nil || !strings.Contains(err.Error(), "cut it smaller") {
		t.Errorf("part above the limit: got %v", err)
	}
}

func TestAnnounce(t *testing.T) {
	s := etcdtest.Store(t)
	if addr, err := s.MasterAddr(t.Context()); addr != (etcdstore.Addr{}) || err != nil {
		t.Fatalf("before: %v, %v", addr, err)
	}
	seen := s.WatchMasterAddr(t.Context())
	if addr := receive(t, "the first view", seen); addr.Addr != "" {
		t.Errorf("first view: %v", addr)
	}
	lock := lead(t, s, "a")
	if err := lock.Announce(t.Context(), "10.1.2.3:8080", 42); err != nil {
		t.Fatal(err)
	}
	want := etcdstore.Addr{Addr: "10.1.2.3:8080", Term: 42, Lease: fmt.Sprintf("%x", lock.Lease())}
	if addr, err := s.MasterAddr(t.Context()); addr != want || err != nil {
		t.Errorf("read %v, %v; want %v", addr, err, want)
	}
	if addr := receive(t, "the announcement", seen); addr != want {
		t.Errorf("watched %v, want %v", addr, want)
	}
	if err := lock.Resign(t.Context()); err != nil {
		t.Fatal(err)
	}
	if addr := receive(t, "the end of the announcement", seen); addr != (etcdstore.Addr{}) {
		t.Errorf("after resigning: %v", addr)
	}
}

// F14: a leader whose key is deleted, and whose lease is valid, can no longer announce its address.
func TestAnnounceIsFenced(t *testing.T) {
	s := etcdtest.Store(t)
	lock := lead(t, s, "a")
	if err := lock.Announce(t.Context(), "10.1.2.3:8080", 42); err != nil {
		t.Fatal(err)
	}
	want, err := s.MasterAddr(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Client().Delete(t.Context(), lock.Key()); err != nil {
		t.Fatal(err)
	}
	if err := lock.Announce(t.Context(), "10.1.2.3:9090", 43); !errors.Is(err, taskqueue.ErrFenced) {
		t.Errorf("announced: %v, want ErrFenced", err)
	}
	if addr, err := s.MasterAddr(t.Context()); addr != want || err != nil {
		t.Errorf("read %v, %v; want %v, as before", addr, err, want)
	}
}
