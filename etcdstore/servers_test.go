package etcdstore_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/taskqueue"
)

const psTTL = 2 * time.Second

func claim(t *testing.T, s *etcdstore.Store, addr string) *etcdstore.Claim {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := s.ClaimPS(ctx, addr, psTTL, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func desire(t *testing.T, s *etcdstore.Store, n int) {
	t.Helper()
	if got, err := s.SetDesiredIfAbsent(t.Context(), n); err != nil || got != n {
		t.Fatalf("desired %d, %v; want %d", got, err, n)
	}
}

func TestTwoServersClaimOneIndex(t *testing.T) { // F56
	job := etcdtest.NewJob(t)
	desire(t, etcdtest.Open(t, etcdtest.Endpoint(t), job), 1)
	won := make(chan *etcdstore.Claim, 2)
	standing := make(chan string, 100)
	for i := range 2 {
		s := etcdtest.Open(t, etcdtest.Endpoint(t), job)
		go func() {
			c, err := s.ClaimPS(context.Background(), fmt.Sprintf("10.0.0.%d:1", i), psTTL, func(reason string) { standing <- reason })
			if err != nil {
				t.Error(err)
			}
			won <- c
		}()
	}
	first := receive(t, "a winner", won)
	if first.Index() != 0 {
		t.Errorf("index %d", first.Index())
	}
	if reason := receive(t, "the other server to wait", standing); !strings.Contains(reason, "on standby") {
		t.Errorf("reason %q", reason)
	}
	if len(won) > 0 {
		t.Fatal("expected one holder of index 0, found two")
	}
	if err := first.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if open(t, first.Lost()) {
		t.Error("released claim: expected it to be lost")
	}
	if second := receive(t, "the claim of the waiting server", won); second.Index() != 0 {
		t.Errorf("index %d", second.Index())
	}
}

// If many servers claim concurrently, every index below the desired count has exactly one holder.
func TestManyServersClaimAllIndices(t *testing.T) {
	job := etcdtest.NewJob(t)
	watcher := etcdtest.Open(t, etcdtest.Endpoint(t), job)
	const n = 6
	claims := make(chan *etcdstore.Claim, n)
	for i := range n {
		s := etcdtest.Open(t, etcdtest.Endpoint(t), job)
		go func() { // before the desired count is set
			c, err := s.ClaimPS(context.Background(), fmt.Sprintf("host:%d", i), 10*time.Second, nil)
			if err != nil {
				t.Error(err)
			}
			claims <- c
		}()
	}
	desire(t, watcher, n)
	var got []int
	for range n {
		got = append(got, receive(t, "a claim", claims).Index())
	}
	slices.Sort(got)
	if !slices.Equal(got, []int{0, 1, 2, 3, 4, 5}) {
		t.Errorf("indices %v", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	addrs, err := watcher.WaitPS(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(addrs)
	if want := []string{"host:0", "host:1", "host:2", "host:3", "host:4", "host:5"}; !slices.Equal(addrs, want) {
		t.Errorf("addresses %v", addrs)
	}
}

func TestLostServerFreesItsIndex(t *testing.T) { // F55, the part of the registry
	t.Parallel()
	job := etcdtest.NewJob(t)
	s := etcdtest.Open(t, etcdtest.Endpoint(t), job)
	desire(t, s, 2)
	proxy := etcdtest.StartProxy(t, etcdtest.Endpoint(t))
	cut := claim(t, etcdtest.Open(t, proxy.Endpoint(), job), "cut:1")
	claim(t, s, "stays:1")
	seen := s.WatchPS(t.Context())
	if got := receive(t, "both", seen); !maps.Equal(got, map[int]string{0: "cut:1", 1: "stays:1"}) {
		t.Fatalf("servers %v", got)
	}
	proxy.HoldRequests(true)
	receive(t, "the loss of the cut-off server", cut.Lost())
	if got := receive(t, "the view without the lost server", seen); !maps.Equal(got, map[int]string{1: "stays:1"}) {
		t.Errorf("servers %v", got)
	}
	if again := claim(t, s, "new:1"); again.Index() != 0 {
		t.Errorf("index %d", again.Index())
	}
	if got := receive(t, "the view with the new server", seen); !maps.Equal(got, map[int]string{0: "new:1", 1: "stays:1"}) {
		t.Errorf("servers %v", got)
	}
}

func TestWaitPSReportsMissingIndices(t *testing.T) {
	s := etcdtest.Store(t)
	missing := make(chan []int, 10)
	ready := make(chan []string, 1)
	go func() {
		addrs, err := s.WaitPS(context.Background(), func(indices []int) { missing <- indices })
		if err != nil {
			t.Error(err)
		}
		ready <- addrs
	}()
	if got := receive(t, "an unknown count", missing); got != nil {
		t.Errorf("without a desired count: got missing indices %v", got)
	}
	desire(t, s, 2)
	if got := receive(t, "both missing", missing); !slices.Equal(got, []int{0, 1}) {
		t.Errorf("missing %v", got)
	}
	claim(t, s, "a:1")
	if got := receive(t, "one missing", missing); !slices.Equal(got, []int{1}) {
		t.Errorf("missing %v", got)
	}
	claim(t, s, "b:1")
	if got := receive(t, "all", ready); !slices.Equal(got, []string{"a:1", "b:1"}) {
		t.Errorf("addresses %v", got)
	}
}

func TestDesired(t *testing.T) {
	s := etcdtest.Store(t)
	waited := make(chan int, 1)
	go func() {
		n, err := s.Desired(context.Background())
		if err != nil {
			t.Error(err)
		}
		waited <- n
	}()
	if n, err := s.DesiredNow(t.Context()); n != -1 || err != nil {
		t.Errorf("without a desired count: got %d, %v", n, err)
	}
	if value, _, err := s.Value(t.Context(), "/ps_desired"); value != nil || err != nil {
		t.Errorf("read of the desired count: expected no key, found %q, %v", value, err)
	}
	desire(t, s, 3)
	if n, err := s.DesiredNow(t.Context()); n != 3 || err != nil {
		t.Errorf("after the write: got desired count %d, %v", n, err)
	}
	if n := receive(t, "the count", waited); n != 3 {
		t.Errorf("desired %d", n)
	}
	if n, err := s.SetDesiredIfAbsent(t.Context(), 7); n != 3 || err != nil {
		t.Errorf("second writer: expected the stored count, got %d, %v", n, err)
	}
	if _, err := s.Client().Put(t.Context(), s.Prefix()+"/ps_desired", "three"); err != nil {
		t.Fatal(err)
	}
	for name, ask := range map[string]func() error{
		"set":  func() error { _, err := s.SetDesiredIfAbsent(t.Context(), 7); return err },
		"read": func() error { _, err := s.Desired(t.Context()); return err },
		"now":  func() error { _, err := s.DesiredNow(t.Context()); return err },
		"wait": func() error { _, err := s.WaitPS(t.Context(), nil); return err },
	} {
		if err := ask(); err == nil || !strings.Contains(err.Error(), "want a decimal count") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// /ps_step changes with every synchronous step. The change must not trigger waits for servers.
func TestStepsDoNotWakeTheRegistry(t *testing.T) {
	s := etcdtest.Store(t)
	desire(t, s, 1)
	seen := s.WatchPS(t.Context())
	receive(t, "the first view", seen)
	var views []map[int]string
	all := make(chan struct{})
	go func() {
		defer close(all)
		for view := range seen {
			if views = append(views, view); len(view) > 0 {
				return
			}
		}
	}()
	for i := range 50 {
		if _, err := s.Client().Put(t.Context(), s.Prefix()+"/ps_step", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	claim(t, s, "a:1")
	receive(t, "the claim", all)
	if len(views) != 1 {
		t.Errorf("expected one view of one claim, found %d", len(views))
	}
}

// The key for the ids of tables is derived from the secret of the job. Without a secret there is no key.
func TestClaimHasTheKeyOfTableIDs(t *testing.T) {
	s := etcdtest.Store(t)
	desire(t, s, 3)
	if key := claim(t, s, "10.0.0.1:1").Job().TableKey; key != nil {
		t.Errorf("job without a secret: expected no key, found %x", key)
	}
	put := func(secret taskqueue.Secret) {
		if _, err := s.Client().Put(t.Context(), s.Prefix()+taskqueue.SecretKey, string(secret.Encode())); err != nil {
			t.Fatal(err)
		}
	}
	put(taskqueue.Secret{1})
	first := claim(t, s, "10.0.0.2:1").Job().TableKey
	put(taskqueue.Secret{2})
	second := claim(t, s, "10.0.0.3:1").Job().TableKey
	if len(first) < 16 || bytes.Equal(first, second) || bytes.HasPrefix(first, []byte{1}) {
		t.Errorf("two secrets: expected two keys, found %x and %x", first, second)
	}
}

// A server learns at its claim which set etcd names and whether a master leads. It can announce that it wants a set.
func TestServerLearnsSetAndAsksForOne(t *testing.T) {
	s := etcdtest.Store(t)
	desire(t, s, 2)
	first := claim(t, s, "10.0.0.1:1")
	if _, err := s.Client().Put(t.Context(), s.Prefix()+"/checkpoints/latest", "a set"); err != nil {
		t.Fatal(err)
	}
	second := claim(t, s, "10.0.0.2:1")
	if a, b := first.Job(), second.Job(); a.LatestSet != nil || string(b.LatestSet) != "a set" || b.Desired != 2 || b.Led {
		t.Errorf("first server: got %+v, second server: got %+v", a, b)
	}
	if _, err := s.Client().Put(t.Context(), s.Prefix()+"/master/addr", "x"); err != nil {
		t.Fatal(err)
	}
	if job, err := first.Current(t.Context()); err != nil || !job.Led {
		t.Errorf("with a master: got %+v, %v", job, err)
	}
	before, err := s.Client().Get(t.Context(), s.Prefix()+"/ps/0")
	if err == nil {
		err = first.AskSet(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	after, err := s.Client().Get(t.Context(), s.Prefix()+"/ps/0")
	if err != nil || after.Kvs[0].ModRevision == before.Kvs[0].ModRevision || after.Kvs[0].Lease != before.Kvs[0].Lease || string(after.Kvs[0].Value) != "10.0.0.1:1" {
		t.Errorf("key after a request for a set: %v, %v, before %v", after, err, before)
	}
	if err := first.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := first.AskSet(t.Context()); err == nil {
		t.Error("a server without an index asked for a set")
	}
}
