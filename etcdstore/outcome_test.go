package etcdstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/taskqueue"
)

// kind is the class of an error of Commit.
type kind string

const (
	done     kind = "done"
	fenced   kind = "fenced"
	unknown  kind = "unknown"
	full     kind = "store full"
	definite kind = "definite"
)

func kindOf(err error) kind {
	var kinds []kind
	for sentinel, k := range map[error]kind{
		taskqueue.ErrFenced: fenced, taskqueue.ErrUnknownOutcome: unknown, taskqueue.ErrStoreFull: full,
	} {
		if errors.Is(err, sentinel) {
			kinds = append(kinds, k)
		}
	}
	switch {
	case err == nil:
		return done
	case len(kinds) == 0:
		return definite
	case len(kinds) > 1:
		return kind(fmt.Sprintf("ambiguous: %v", kinds))
	}
	return kinds[0]
}

// TestOutcomes checks the table of the package documentation. A proxy replaces the answer of a real etcd to a commit.
// Each answer is tested with an applied transaction, and with a transaction that was not applied.
func TestOutcomes(t *testing.T) {
	job := etcdtest.NewJob(t)
	f := startFront(t, etcdtest.Endpoint(t))
	direct := etcdtest.Open(t, etcdtest.Endpoint(t), job)
	lock := lead(t, etcdtest.Open(t, f.endpoint, job), "a")
	mod := commit(t, lock, 0, "PUT: start")

	grpcError := func(code codes.Code, text string) error { return status.Error(code, text) }
	cases := []struct {
		answer     error
		undone     kind // the transaction was not applied
		didHappen  kind // the transaction was applied
		impossible bool // etcd never sends this answer after it applied a transaction
	}{
		{answer: rpctypes.ErrGRPCTimeout, undone: unknown, didHappen: unknown},
		{answer: rpctypes.ErrGRPCTimeoutDueToLeaderFail, undone: unknown, didHappen: unknown},
		{answer: rpctypes.ErrGRPCTimeoutDueToConnectionLost, undone: unknown, didHappen: unknown},
		{answer: rpctypes.ErrGRPCStopped, undone: unknown, didHappen: unknown},
		{answer: rpctypes.ErrGRPCLeaderChanged, undone: unknown, didHappen: unknown},
		{answer: rpctypes.ErrGRPCNoLeader, undone: unknown, didHappen: unknown},
		{answer: rpctypes.ErrGRPCCorrupt, undone: unknown, didHappen: unknown},
		{answer: grpcError(codes.Unavailable, "there is no connection available"), undone: unknown, didHappen: unknown},
		{answer: grpcError(codes.DeadlineExceeded, "context deadline exceeded"), undone: unknown, didHappen: unknown},
		{answer: grpcError(codes.Canceled, "context canceled"), undone: unknown, didHappen: unknown},
		{answer: grpcError(codes.Unknown, "raft proposal dropped"), undone: unknown, didHappen: unknown},
		{answer: grpcError(codes.Internal, "stream terminated by RST_STREAM"), undone: unknown, didHappen: unknown},
		{answer: grpcError(codes.Aborted, "?"), undone: unknown, didHappen: unknown},

		{answer: rpctypes.ErrGRPCNoSpace, undone: full, didHappen: done},
		{answer: rpctypes.ErrGRPCLeaseNotFound, undone: fenced, impossible: true},

		{answer: rpctypes.ErrGRPCRequestTooManyRequests, undone: definite, impossible: true},
		{answer: rpctypes.ErrGRPCRequestTooLarge, undone: definite, impossible: true},
		{answer: rpctypes.ErrGRPCTooManyOps, undone: definite, impossible: true},
		{answer: rpctypes.ErrGRPCDuplicateKey, undone: definite, impossible: true},
		{answer: rpctypes.ErrGRPCPermissionDenied, undone: definite, impossible: true},
		{answer: rpctypes.ErrGRPCInvalidAuthToken, undone: definite, impossible: true},
		{answer: rpctypes.ErrGRPCUserEmpty, undone: definite, impossible: true},
		{answer: rpctypes.ErrGRPCNotSupportedForLearner, undone: definite, impossible: true},
		{answer: grpcError(codes.Unimplemented, "unknown service etcdserverpb.KV"), undone: definite, impossible: true},
		{answer: grpcError(codes.ResourceExhausted, "grpc: received message larger than max"), undone: definite, impossible: true},
	}
	for i, c := range cases {
		before := fmt.Sprintf("PUT: %d before", i)
		f.failTxns(c.answer, nil)
		_, err := lock.Commit(t.Context(), mod, []byte(before), nil)
		sent := f.arrived()
		f.failTxns(nil, nil)
		if got := kindOf(err); got != c.undone {
			t.Errorf("%v, not applied: got %s (%v), expected %s", c.answer, got, err, c.undone)
		}
		// The client may renew an authentication token. It sends nothing else twice.
		want := 1
		if errors.Is(c.answer, rpctypes.ErrGRPCInvalidAuthToken) {
			want = 2
		}
		if sent != want {
			t.Errorf("%v: expected %[3]d transactions, found %[2]d", c.answer, sent, want)
		}
		if _, now, err := direct.State(t.Context()); err != nil || now != mod {
			t.Fatalf("%v: state moved from %d to %d, %v", c.answer, mod, now, err)
		}
		if c.impossible {
			continue
		}
		after := fmt.Sprintf("PUT: %d after", i)
		f.failTxns(nil, c.answer)
		_, err = lock.Commit(t.Context(), mod, []byte(after), nil)
		f.failTxns(nil, nil)
		if got := kindOf(err); got != c.didHappen {
			t.Errorf("%v, applied: got %s (%v), expected %s", c.answer, got, err, c.didHappen)
		}
		value, now, err := direct.State(t.Context())
		if err != nil || string(value) != after {
			t.Fatalf("%v: state %q, %v", c.answer, value, err)
		}
		mod = now
	}
}

// F3: etcd received the request, and the connection breaks before the answer.
func TestCutAfterTheRequestIsUnknown(t *testing.T) {
	job := etcdtest.NewJob(t)
	proxy := etcdtest.StartProxy(t, etcdtest.Endpoint(t))
	direct := etcdtest.Open(t, etcdtest.Endpoint(t), job)
	lock := lead(t, etcdtest.Open(t, proxy.Endpoint(), job), "a")
	mod := commit(t, lock, 0, "one")

	proxy.HoldReplies(true)
	outcome := make(chan error, 1)
	go func() {
		_, err := lock.Commit(context.Background(), mod, []byte("two"), nil)
		outcome <- err
	}()
	eventually(t, "etcd to apply the request", func() bool {
		value, _, err := direct.State(t.Context())
		return err == nil && string(value) == "two"
	})
	if len(outcome) > 0 {
		t.Fatal("expected no outcome before an answer")
	}
	proxy.Cut()
	proxy.HoldReplies(false)
	if err := receive(t, "the outcome", outcome); kindOf(err) != unknown {
		t.Fatalf("taken as %s (%v), want unknown", kindOf(err), err)
	}
	// The state is the state of this commit, so the term continues.
	value, now, err := lock.ReadState(t.Context())
	if err != nil || string(value) != "two" {
		t.Fatalf("read back %q, %v", value, err)
	}
	commit(t, lock, now, "three")
}

// F3: the request was sent and did not reach etcd.
func TestCutBeforeTheRequestIsUnknown(t *testing.T) {
	job := etcdtest.NewJob(t)
	proxy := etcdtest.StartProxy(t, etcdtest.Endpoint(t))
	lock := lead(t, etcdtest.Open(t, proxy.Endpoint(), job), "a")
	mod := commit(t, lock, 0, "one")

	proxy.HoldRequests(true)
	outcome := make(chan error, 1)
	go func() {
		_, err := lock.Commit(context.Background(), mod, []byte("two"), nil)
		outcome <- err
	}()
	const largerThanAKeepAlive = 200 // bytes
	eventually(t, "a held commit", func() bool { return proxy.HeldRequests() > largerThanAKeepAlive })
	proxy.Cut()
	proxy.HoldRequests(false)
	if err := receive(t, "the outcome", outcome); kindOf(err) != unknown {
		t.Fatalf("taken as %s (%v), want unknown", kindOf(err), err)
	}
	if value, now, err := lock.ReadState(t.Context()); err != nil || string(value) != "one" || now != mod {
		t.Fatalf("read back %q at %d, %v", value, now, err)
	}
	commit(t, lock, mod, "two") // the same bytes under the same compares
}

// F3: no answer before the deadline. etcd applies the transaction at some time.
func TestDeadlineIsUnknown(t *testing.T) {
	job := etcdtest.NewJob(t)
	proxy := etcdtest.StartProxy(t, etcdtest.Endpoint(t))
	lock := lead(t, etcdtest.Open(t, proxy.Endpoint(), job), "a")
	mod := commit(t, lock, 0, "one")
	proxy.HoldReplies(true)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := lock.Commit(ctx, mod, []byte("two"), nil)
	proxy.HoldReplies(false)
	if kindOf(err) != unknown || !strings.Contains(err.Error(), "deadline exceeded") {
		t.Fatalf("taken as %s (%v), want unknown by deadline", kindOf(err), err)
	}
	value, _, err := lock.ReadState(t.Context())
	if err != nil || string(value) != "two" {
		t.Fatalf("read back %q, %v", value, err)
	}
}

// A request that never reached a connection is a definite failure, after a wait of any length.
func TestNeverSentIsDefinite(t *testing.T) {
	t.Parallel()
	job := etcdtest.NewJob(t)
	proxy := etcdtest.StartProxy(t, etcdtest.Endpoint(t))
	direct := etcdtest.Open(t, etcdtest.Endpoint(t), job)
	lock, err := etcdtest.Open(t, proxy.Endpoint(), job).Campaign(t.Context(), etcdstore.CampaignConfig{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	mod := commit(t, lock, 0, "one")
	proxy.Refuse(true)
	proxy.Cut()
	definiteOnce := func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err := lock.Commit(ctx, mod, []byte("two"), nil)
		return kindOf(err) == definite
	}
	// The dying connection may still accept the first request.
	eventually(t, "a definite failure without a connection", definiteOnce)
	if !definiteOnce() {
		t.Error("second request: expected a definite failure")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lock.Commit(ended, mod, []byte("two"), nil); kindOf(err) != definite {
		t.Errorf("with an ended context: %s (%v)", kindOf(err), err)
	}
	wantState(t, direct, "one", mod)
	proxy.Refuse(false)
	eventually(t, "a commit of the same leader", func() bool {
		_, err := lock.Commit(t.Context(), mod, []byte("two"), nil)
		return err == nil
	})
}

// A part with an unknown outcome is sent again.
func TestPartsSurviveACut(t *testing.T) {
	job := etcdtest.NewJob(t)
	proxy := etcdtest.StartProxy(t, etcdtest.Endpoint(t))
	direct := etcdtest.Open(t, etcdtest.Endpoint(t), job)
	lock := lead(t, etcdtest.Open(t, proxy.Endpoint(), job), "a")
	mod := commit(t, lock, 0, "one")
	proxy.HoldReplies(true)
	outcome := make(chan error, 1)
	go func() {
		outcome <- lock.PutParts(context.Background(), mod, []taskqueue.Write{{Key: etcdstore.PartKey("r", 0), Value: []byte("part")}}, nil)
	}()
	eventually(t, "the part in etcd", func() bool {
		value, _, err := direct.Value(t.Context(), etcdstore.PartKey("r", 0))
		return err == nil && string(value) == "part"
	})
	proxy.Cut()
	proxy.HoldReplies(false)
	if err := receive(t, "the parts' outcome", outcome); err != nil {
		t.Fatal(err)
	}
}

// An attempt to write a part ends without an answer. The next attempt writes the part.
func TestPartWithoutAnAnswerIsSentAgain(t *testing.T) {
	job := etcdtest.NewJob(t)
	f := startFront(t, etcdtest.Endpoint(t))
	lock, err := etcdtest.Open(t, f.endpoint, job).Campaign(t.Context(), etcdstore.CampaignConfig{TTL: 6 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	mod := commit(t, lock, 0, "one")
	f.mu.Lock()
	f.hang = 1
	f.mu.Unlock()
	outcome := make(chan error, 1)
	go func() {
		outcome <- lock.PutParts(context.Background(), mod, []taskqueue.Write{{Key: etcdstore.PartKey("r", 0), Value: []byte("PUT: part")}}, nil)
	}()
	if err := receive(t, "the part's outcome", outcome); err != nil {
		t.Error(err)
	}
	if n := f.arrived(); n < 2 {
		t.Errorf("%d attempts arrived, expected at least 2", n)
	}
}

// F8: etcd becomes full and reports it. The store continues once etcd has room.
func TestStoreFull(t *testing.T) {
	etcd := etcdtest.StartProcess(t, 4<<20)
	s := etcd.Store()
	lock, err := s.Campaign(t.Context(), etcdstore.CampaignConfig{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	state := []byte("one")
	mod := commit(t, lock, 0, "one")
	filling := func(i int) error {
		next := fmt.Appendf(nil, "state %d", i)
		got, err := lock.Commit(t.Context(), mod, next, []taskqueue.Write{{Key: fmt.Sprintf("/fill/%d", i), Value: make([]byte, 512<<10)}})
		if err == nil {
			state, mod = next, got
		}
		return err
	}
	var full error
	for i := 0; full == nil; i++ {
		if full = filling(i); i > 100 {
			t.Fatal("expected a full store after 4 MiB")
		}
	}
	if !errors.Is(full, taskqueue.ErrStoreFull) || kindOf(full) != "store full" || !strings.Contains(full.Error(), "alarm disarm") {
		t.Fatalf("full: %v", full)
	}
	wantState(t, s, string(state), mod)
	if _, err := lock.Commit(t.Context(), mod, []byte("small"), nil); !errors.Is(err, taskqueue.ErrStoreFull) {
		t.Errorf("small commit: got %v", err)
	}
	if err := lock.PutParts(t.Context(), mod, []taskqueue.Write{{Key: etcdstore.PartKey("r", 0)}}, nil); !errors.Is(err, taskqueue.ErrStoreFull) {
		t.Errorf("part: got %v", err)
	}
	wantState(t, s, string(state), mod)

	makeRoom(t, s, etcd.Endpoint())
	if !lock.Valid() {
		t.Fatal(lock.Cause())
	}
	commit(t, lock, mod, "room again")
}

// makeRoom follows the action in the error: compact, defragment, disarm.
func makeRoom(t *testing.T, s *etcdstore.Store, endpoint string) {
	t.Helper()
	client := s.Client()
	if _, err := client.Delete(t.Context(), s.Prefix()+"/fill/", prefixed); err != nil {
		t.Fatal(err)
	}
	_, revision, err := s.Prefixed(t.Context(), "/task_queues")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Compact(t.Context(), revision, physical); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Defragment(t.Context(), endpoint); err != nil {
		t.Fatal(err)
	}
	alarms, err := client.AlarmList(t.Context())
	if err != nil || len(alarms.Alarms) != 1 || alarms.Alarms[0].Alarm != etcdserverpb.AlarmType_NOSPACE {
		t.Fatalf("alarms %v, %v", alarms, err)
	}
	if _, err := client.AlarmDisarm(t.Context(), (*alarmMember)(alarms.Alarms[0])); err != nil {
		t.Fatal(err)
	}
}
