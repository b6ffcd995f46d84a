package etcdstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/taskqueue"
)

func TestTwoCampaignersOneLeads(t *testing.T) { // F12
	job := etcdtest.NewJob(t)
	var leading atomic.Int32
	locks := make(chan *etcdstore.Lock, 5)
	for range 5 {
		s := etcdtest.Open(t, etcdtest.Endpoint(t), job)
		go func() {
			lock, err := s.Campaign(context.Background(), etcdstore.CampaignConfig{Address: "a"})
			if err != nil {
				t.Error(err)
				return
			}
			if n := leading.Add(1); n != 1 {
				t.Errorf("expected at most one leader, found %d", n)
			}
			locks <- lock
		}()
	}
	var last int64
	for range 5 {
		lock := receive(t, "the next leader", locks)
		if lock.Revision() <= last {
			t.Errorf("create revision %d leads after %d", lock.Revision(), last)
		}
		last = lock.Revision()
		if !lock.Valid() || !open(t, lock.Lost()) || lock.Cause() != nil {
			t.Error("new lock: expected it to be valid")
		}
		leading.Add(-1)
		if err := lock.Resign(t.Context()); err != nil {
			t.Error(err)
		}
		if lock.Valid() || open(t, lock.Lost()) || lock.Cause() == nil {
			t.Error("resigned lock: expected it to be invalid")
		}
	}
}

func TestLockKeyContainsHolder(t *testing.T) {
	s := etcdtest.Store(t)
	lock := lead(t, s, "10.0.0.1:8080")
	keys, _, err := s.Prefixed(t.Context(), "/master/lock/")
	if err != nil {
		t.Fatal(err)
	}
	value := keys[strings.TrimPrefix(lock.Key(), s.Prefix())]
	var found map[string]string
	if err := json.Unmarshal(value, &found); err != nil {
		t.Fatalf("%q: %v", value, err)
	}
	if found["address"] != "10.0.0.1:8080" || !strings.HasSuffix(lock.Key(), "/"+found["lease"]) {
		t.Errorf("key %s has %s", lock.Key(), value)
	}
	if err := lock.Resign(t.Context()); err != nil {
		t.Fatal(err)
	}
	if keys, _, err = s.Prefixed(t.Context(), "/master/"); err != nil || len(keys) != 0 {
		t.Errorf("after resigning: expected no keys, found %v, %v", keys, err)
	}
}

// A campaign reports its key before the key exists, so a process never takes its own new key for the key of another
// process.
func TestCampaignReportsKeyBeforeCreation(t *testing.T) {
	s := etcdtest.Store(t)
	var told []string
	lock, err := s.Campaign(t.Context(), etcdstore.CampaignConfig{TTL: time.Minute, Queued: func(lease string) {
		told = append(told, lease)
		if keys, _, err := s.Prefixed(t.Context(), "/master/lock/"); err != nil || len(keys) > 0 {
			t.Errorf("report of lease %s: expected no key yet, found %v, %v", lease, keys, err)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	if len(told) != 1 || !strings.HasSuffix(lock.Key(), "/"+told[0]) {
		t.Errorf("reported leases %v, key %s", told, lock.Key())
	}
}

func TestStandbyReportsLeader(t *testing.T) {
	job := etcdtest.NewJob(t)
	first := lead(t, etcdtest.Open(t, etcdtest.Endpoint(t), job), "10.0.0.1:1")
	second := etcdtest.Open(t, etcdtest.Endpoint(t), job)
	reasons := make(chan string, 10)
	done := make(chan *etcdstore.Lock)
	go func() {
		lock, err := second.Campaign(context.Background(), etcdstore.CampaignConfig{Waiting: func(reason string) { reasons <- reason }})
		if err != nil {
			t.Error(err)
		}
		done <- lock
	}()
	if reason := receive(t, "a reason to wait", reasons); !strings.Contains(reason, "10.0.0.1:1") {
		t.Errorf("reason %q does not name the leader", reason)
	}
	// Only the key is deleted, as by an operator.
	if _, err := second.Client().Delete(t.Context(), first.Key()); err != nil {
		t.Fatal(err)
	}
	receive(t, "the first lock's loss", first.Lost())
	if first.Valid() || !strings.Contains(first.Cause().Error(), "found none") {
		t.Errorf("valid %v, cause %v", first.Valid(), first.Cause())
	}
	if lock := receive(t, "the lock of the standby", done); !lock.Valid() {
		t.Error("the new lock is not valid")
	}
}

func TestRevokedLeaseLosesTheLock(t *testing.T) {
	s := etcdtest.Store(t)
	lock := lead(t, s, "a")
	if _, err := s.Client().Revoke(t.Context(), lock.Lease()); err != nil {
		t.Fatal(err)
	}
	receive(t, "Lost to close", lock.Lost())
	if lock.Valid() {
		t.Error("expected an invalid lock")
	}
}

// A standby whose queued key was deleted must not assume leadership when the earlier keys disappear.
func TestDeletedCampaignKeyIsCreatedAgain(t *testing.T) {
	job := etcdtest.NewJob(t)
	first := lead(t, etcdtest.Open(t, etcdtest.Endpoint(t), job), "first")
	second := etcdtest.Open(t, etcdtest.Endpoint(t), job)
	done := make(chan *etcdstore.Lock, 1)
	go func() {
		lock, err := second.Campaign(context.Background(), etcdstore.CampaignConfig{Address: "second"})
		if err != nil {
			t.Error(err)
		}
		done <- lock
	}()
	var bid string
	eventually(t, "the second bid", func() bool {
		keys, _, err := second.Prefixed(t.Context(), "/master/lock/")
		for key := range keys {
			if second.Prefix()+key != first.Key() {
				bid = second.Prefix() + key
			}
		}
		return err == nil && bid != ""
	})
	if _, err := second.Client().Delete(t.Context(), bid); err != nil {
		t.Fatal(err)
	}
	if err := first.Resign(t.Context()); err != nil {
		t.Fatal(err)
	}
	lock := receive(t, "the second lock", done)
	if lock.Key() == bid {
		t.Fatalf("expected another key than the deleted key %s", bid)
	}
	commit(t, lock, 0, "state")
}

// F6: a holder that is cut off from etcd stops before its lease expires.
func TestCutOffHolderStopsInTime(t *testing.T) {
	t.Parallel()
	job := etcdtest.NewJob(t)
	proxy := etcdtest.StartProxy(t, etcdtest.Endpoint(t))
	s := etcdtest.Open(t, proxy.Endpoint(), job)
	const ttl, margin = 2 * time.Second, 500 * time.Millisecond
	lock, err := s.Campaign(t.Context(), etcdstore.CampaignConfig{TTL: ttl, Margin: margin})
	if err != nil {
		t.Fatal(err)
	}
	proxy.HoldRequests(true)
	cut := time.Now() // etcd received no later keep-alive
	receive(t, "Lost to close", lock.Lost())
	if took := time.Since(cut); took > ttl-margin+250*time.Millisecond {
		t.Errorf("lock lost %v after the cut, expected at most %v", took, ttl-margin)
	}
	if lock.Valid() {
		t.Error("expected an invalid lock")
	}
	direct := etcdtest.Open(t, etcdtest.Endpoint(t), job)
	if got, err := direct.Client().Get(t.Context(), lock.Key()); err != nil || len(got.Kvs) == 0 {
		t.Errorf("expected the key to exist when its holder stops, found %v, %v", got, err)
	}
	lead(t, direct, "next") // the next holder gets the lock once etcd has deleted the key
}

// A lock remains valid for many times its TTL while etcd answers.
func TestLockOutlivesTTLWithKeepAlives(t *testing.T) {
	t.Parallel()
	s := etcdtest.Store(t)
	lock, err := s.Campaign(t.Context(), etcdstore.CampaignConfig{TTL: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-lock.Lost():
		t.Fatal(lock.Cause())
	case <-time.After(5 * time.Second):
	}
	if !lock.Valid() {
		t.Error("not valid after 5 s of keep-alives")
	}
	commit(t, lock, 0, "still leading")
}

// etcd is killed and restarts within the lease. The lock remains valid, and its keep-alives resume.
func TestLockSurvivesARestartOfEtcd(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.StartProcess(t, 0)
	s := etcd.Store()
	const ttl = 10 * time.Second
	lock, err := s.Campaign(t.Context(), etcdstore.CampaignConfig{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	mod := commit(t, lock, 0, "before")
	etcd.Kill()
	etcd.Start()
	value, found, err := lock.ReadState(t.Context())
	if err != nil || string(value) != "before" || found != mod {
		t.Fatalf("after the restart: %q at %d, %v", value, found, err)
	}
	select {
	case <-lock.Lost():
		t.Fatal(lock.Cause())
	case <-time.After(ttl):
	}
	commit(t, lock, mod, "after")
	if !lock.Valid() {
		t.Error(lock.Cause())
	}
}

// A standby retries while etcd is unreachable for longer than its lease: before it has queued a key, and when it
// loses its queued key.
func TestCampaignOutlivesAnOutage(t *testing.T) { // F11
	t.Parallel()
	t.Run("before it queued", func(t *testing.T) {
		etcd := etcdtest.StartProcess(t, 0)
		s := etcd.Store()
		etcd.Kill()
		done := make(chan error, 1)
		go func() {
			_, err := s.Campaign(context.Background(), etcdstore.CampaignConfig{TTL: 2 * time.Second})
			done <- err
		}()
		select {
		case err := <-done:
			t.Fatalf("campaign ended while etcd was down: %v", err)
		case <-time.After(time.Second):
		}
		etcd.Start()
		if err := receive(t, "leadership", done); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("in the queue", func(t *testing.T) {
		etcd := etcdtest.StartProcess(t, 0)
		job := etcdtest.NewJob(t)
		first, err := etcdtest.Open(t, etcd.Endpoint(), job).Campaign(t.Context(), etcdstore.CampaignConfig{TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		second := etcdtest.Open(t, etcd.Endpoint(), job)
		reasons, done := make(chan string, 100), make(chan error, 1)
		go func() {
			_, err := second.Campaign(context.Background(), etcdstore.CampaignConfig{TTL: 2 * time.Second, Waiting: func(reason string) { reasons <- reason }})
			done <- err
		}()
		says := func(words string) {
			t.Helper()
			eventually(t, words, func() bool {
				select {
				case reason := <-reasons:
					return strings.Contains(reason, words)
				case err := <-done:
					t.Fatalf("the campaign ended with %v, before: %s", err, words)
				default:
				}
				return false
			})
		}
		says("waiting for " + first.Key())
		etcd.Kill()
		says("our place in the queue is gone")
		etcd.Start()
		if err := first.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := receive(t, "leadership", done); err != nil {
			t.Fatal(err)
		}
	})
}

// F1: etcd is stopped by SIGSTOP and sends no answers. The holder stops when the lease expires by its own clock.
func TestHolderStopsWhenEtcdIsStopped(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.StartProcess(t, 0)
	s := etcd.Store()
	lock, err := s.Campaign(t.Context(), etcdstore.CampaignConfig{TTL: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(etcd.Pid(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(etcd.Pid(), syscall.SIGCONT) }()
	receive(t, "Lost to close", lock.Lost())
	if !strings.Contains(lock.Cause().Error(), "keep-alive") {
		t.Errorf("cause: %v", lock.Cause())
	}
}

func TestCampaignEndsWithItsContext(t *testing.T) {
	job := etcdtest.NewJob(t)
	lead(t, etcdtest.Open(t, etcdtest.Endpoint(t), job), "first")
	second := etcdtest.Open(t, etcdtest.Endpoint(t), job)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := second.Campaign(ctx, etcdstore.CampaignConfig{Waiting: func(string) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("campaign ended with %v", err)
	}
	eventually(t, "the queued key to be deleted", func() bool {
		keys, _, err := second.Prefixed(t.Context(), "/master/lock/")
		return err == nil && len(keys) == 1
	})
}

func TestCampaignRejectsInvalidConfig(t *testing.T) {
	s := etcdtest.Store(t)
	for _, cfg := range []etcdstore.CampaignConfig{
		{TTL: time.Millisecond},
		{TTL: 2 * time.Second, Margin: 2 * time.Second},
		{Margin: -1},
	} {
		if _, err := s.Campaign(t.Context(), cfg); err == nil {
			t.Errorf("%+v was accepted", cfg)
		}
	}
}

func TestClosedStoreLosesItsLocks(t *testing.T) {
	s, err := etcdstore.Open(t.Context(), etcdstore.Config{Endpoints: []string{etcdtest.Endpoint(t)}, Job: etcdtest.NewJob(t)})
	if err != nil {
		t.Fatal(err)
	}
	lock := lead(t, s, "a")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	receive(t, "Lost to close", lock.Lost())
	if _, err := lock.Commit(t.Context(), 0, []byte("x"), nil); err == nil || errors.Is(err, taskqueue.ErrUnknownOutcome) {
		t.Errorf("commit on a closed store: %v", err)
	}
}
