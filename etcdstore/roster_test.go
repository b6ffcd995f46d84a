package etcdstore_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master/store"
)

// The context of an address ends with the lease of its server, and not with changes of other servers.
func TestRosterEndsContextsOfReplacedServers(t *testing.T) {
	job := etcdtest.NewJob(t)
	s := etcdtest.Open(t, etcdtest.Endpoint(t), job)
	desire(t, s, 2)
	first := claim(t, s, "a:1")
	claim(t, s, "b:1")
	r := s.FollowServers(t.Context())
	addrs, err := r.Addrs(t.Context(), nil)
	if err != nil || !slices.Equal(addrs, []string{"a:1", "b:1"}) {
		t.Fatalf("addresses %v, %v", addrs, err)
	}
	a, releaseA := r.During(t.Context(), 0, "a:1")
	defer releaseA()
	b, releaseB := r.During(t.Context(), 1, "b:1")
	defer releaseB()
	if err := first.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	receive(t, "the end of the first context", a.Done())
	if context.Cause(a) != etcdstore.ErrServerReplaced || b.Err() != nil {
		t.Errorf("causes %v and %v", context.Cause(a), context.Cause(b))
	}
	if late, release := r.During(t.Context(), 0, "a:1"); late.Err() == nil {
		t.Error("context of a removed address: expected it to end")
	} else {
		release()
	}
	missing := make(chan []int, 10)
	whole := make(chan []string, 1)
	go func() {
		addrs, err := r.Addrs(context.Background(), func(indices []int) { missing <- indices })
		if err != nil {
			t.Error(err)
		}
		whole <- addrs
	}()
	if got := receive(t, "the missing indices", missing); !slices.Equal(got, []int{0}) {
		t.Errorf("missing %v", got)
	}
	claim(t, s, "c:1")
	if got := receive(t, "all", whole); !slices.Equal(got, []string{"c:1", "b:1"}) {
		t.Errorf("addresses %v", got)
	}
}

// The context of an address ends when the index is claimed again under the same address, even if the roster sees no
// time without a claim. The name can lead to another machine, where a connection of the earlier claim hangs.
func TestRosterEndsContextsOfAnotherClaimWithTheSameAddress(t *testing.T) {
	job := etcdtest.NewJob(t)
	s := etcdtest.Open(t, etcdtest.Endpoint(t), job)
	desire(t, s, 1)
	claim(t, s, "ps-0:1")
	r := s.FollowServers(t.Context())
	if _, err := r.Addrs(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	first, release := r.During(t.Context(), 0, "ps-0:1")
	defer release()
	lease, err := s.Client().Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Client().Put(t.Context(), s.Prefix()+"/ps/0", "ps-0:1", clientv3.WithLease(lease.ID)); err != nil {
		t.Fatal(err)
	}
	receive(t, "the end of the first context", first.Done())
	if context.Cause(first) != etcdstore.ErrServerReplaced {
		t.Errorf("cause %v", context.Cause(first))
	}
	second, release := r.During(t.Context(), 0, "ps-0:1")
	defer release()
	if second.Err() != nil {
		t.Errorf("context of the present claim: expected it to continue, found %v", context.Cause(second))
	}
}

// A malformed number is an error until an administrator corrects it.
func TestRosterRecoversFromAMalformedValue(t *testing.T) {
	s := etcdtest.Store(t)
	put := func(value string) {
		t.Helper()
		if _, err := s.Client().Put(t.Context(), s.Prefix()+"/ps_desired", value); err != nil {
			t.Fatal(err)
		}
	}
	put("three")
	r := s.FollowServers(t.Context())
	if _, err := r.Addrs(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "want a decimal count") {
		t.Fatal(err)
	}
	put("1")
	claim(t, s, "a:1")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		addrs, err := r.Addrs(ctx, nil)
		if err == nil && slices.Equal(addrs, []string{"a:1"}) {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("addresses %v, %v", addrs, err)
		}
	}
}

// Evict removes the claim of a dead server, and its index is free immediately. It does not remove a later claim of
// the index.
func TestEvictFreesTheIndexOfOneClaim(t *testing.T) {
	job := etcdtest.NewJob(t)
	s := etcdtest.Open(t, etcdtest.Endpoint(t), job)
	desire(t, s, 1)
	dying := etcdtest.Open(t, etcdtest.Endpoint(t), job)
	if _, err := dying.ClaimPS(t.Context(), "a:1", time.Hour, nil); err != nil {
		t.Fatal(err)
	}
	next := make(chan *etcdstore.Claim, 1)
	go func() {
		c, err := s.ClaimPS(context.Background(), "b:1", psTTL, nil)
		if err != nil {
			t.Error(err)
		}
		next <- c
	}()
	held := make(chan []store.Server, 10)
	r := s.FollowServers(t.Context())
	go r.Each(t.Context(), func(h []store.Server) { held <- h }) //nolint:errcheck // it ends with the test
	of := receive(t, "the claim", held)
	if len(of) != 1 || of[0].Addr != "a:1" {
		t.Fatalf("held: %+v", of)
	}
	if err := s.Evict(t.Context(), of[0]); !errors.Is(err, store.ErrRenewed) {
		t.Errorf("eviction of a living server: error %v, expected %v", err, store.ErrRenewed)
	}
	dying.Close()                // the lease remains, as after a crash
	for ended := 0; ended < 2; { // the second call has no effect
		switch err := s.Evict(t.Context(), of[0]); {
		case err == nil:
			ended++
		case !errors.Is(err, store.ErrRenewed):
			t.Fatal(err)
		}
	}
	if c := receive(t, "the next claim", next); !open(t, c.Lost()) || c.Index() != 0 {
		t.Errorf("index %d, held %t", c.Index(), open(t, c.Lost()))
	}
}

// A server that restarts at its address does not wait for the lease of its earlier start.
func TestServerEvictsItsEarlierStart(t *testing.T) {
	job := etcdtest.NewJob(t)
	desire(t, etcdtest.Open(t, etcdtest.Endpoint(t), job), 2)
	for _, addr := range []string{"a:1", "b:1"} {
		s := etcdtest.Open(t, etcdtest.Endpoint(t), job)
		if _, err := s.ClaimPS(t.Context(), addr, time.Hour, nil); err != nil {
			t.Fatal(err)
		}
		if addr == "b:1" {
			s.Close() // the lease remains, as after a crash
		}
	}
	again := etcdtest.Open(t, etcdtest.Endpoint(t), job)
	if c := claim(t, again, "b:1"); c.Index() != 1 {
		t.Errorf("index %d", c.Index())
	}
	if addrs, err := again.Servers(t.Context()); err != nil || !slices.Equal(addrs, []string{"a:1", "b:1"}) {
		t.Errorf("servers %v, %v", addrs, err)
	}
}

// A second server with the address of a running server waits. The running server renews its lease and keeps its
// index.
func TestStandbyWithAddressOfLivingServerWaits(t *testing.T) {
	job := etcdtest.NewJob(t)
	desire(t, etcdtest.Open(t, etcdtest.Endpoint(t), job), 1)
	sound, err := etcdtest.Open(t, etcdtest.Endpoint(t), job).ClaimPS(t.Context(), "a:1", time.Hour, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	second := make(chan *etcdstore.Claim, 1)
	told := make(chan string, 100)
	store := etcdtest.Open(t, etcdtest.Endpoint(t), job)
	go func() {
		c, _ := store.ClaimPS(ctx, "a:1", time.Hour, func(reason string) { told <- reason })
		second <- c
	}()
	for reason := ""; !strings.Contains(reason, "give each server its own --advertise"); { // after 20 checks
		select {
		case reason = <-told:
		case c := <-second:
			t.Fatalf("the standby took index %d", c.Index())
		}
	}
	if !open(t, sound.Lost()) {
		t.Errorf("running server: expected it to keep its index, found %v", sound.Cause())
	}
	cancel()
	if c := receive(t, "the standby to end", second); c != nil {
		t.Error("the standby took an index")
	}
}
