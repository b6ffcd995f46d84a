package ring_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master/rendezvous"
	"trainmaster/master/ring"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/trainer"
	client "trainmaster/trainer/rendezvous"
)

func add(key string, amount int64) *pb.RingStoreRequest {
	return &pb.RingStoreRequest{Generation: 1, Operation: &pb.RingStoreRequest_Add{Add: &pb.RingAdd{Key: key, Amount: amount}}}
}

func set(key, value string) *pb.RingStoreRequest {
	return &pb.RingStoreRequest{Generation: 1, Operation: &pb.RingStoreRequest_Set{Set: &pb.RingSet{Key: key, Value: []byte(value)}}}
}

func changes(t *testing.T, m *member, r *pb.RingStoreRequest) *pb.RingStoreReply {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	reply, err := m.Change(ctx, r)
	if err != nil {
		t.Fatalf("%v: %v", r, err)
	}
	return reply
}

// F431: the leader ends between two changes, and in the middle of them. The next leader has each change once.
func TestValuesOutliveTheLeader(t *testing.T) {
	store := etcdtest.Store(t)
	first, _ := start(t, store, 2, 2, 0)
	at := trainer.NewFollow()
	at.Set(first.Addr, 1)
	a := attend(t, at, "a")
	a.awaitState(t, pb.RingState_RING_STATE_WAITING) // the ranks are in the order of the joins
	b := attend(t, at, "b")
	a.await(t, 1, "a", "b")
	b.await(t, 1, "a", "b")
	changes(t, a, set("text", "one"))
	waited := make(chan error, 1)
	go func() {
		values, err := b.Values(t.Context(), 1, []string{"text", "later"}, time.Minute)
		if err == nil && (len(values) != 2 || string(values[0]) != "one" || string(values[1]) != "two") {
			err = fmt.Errorf("expected one and two, found %q", values)
		}
		waited <- err
	}()
	const each = 40
	var adders sync.WaitGroup
	for _, m := range []*member{a, b} {
		adders.Go(func() {
			for range each {
				if _, err := m.Change(t.Context(), add("sum", 1)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	_ = first.Stop()
	second, _ := start(t, store, 2, 2, 0)
	at.Set(second.Addr, 2)
	adders.Wait()
	if reply := changes(t, a, add("sum", 0)); reply.GetNumber() != 2*each {
		t.Errorf("expected %d, found %d", 2*each, reply.GetNumber())
	}
	changes(t, b, set("later", "two"))
	if err := <-waited; err != nil {
		t.Error(err)
	}
	if values, err := a.Values(t.Context(), 1, []string{"text", "never"}, 10*time.Millisecond); values != nil || err != nil {
		t.Errorf("a missing value: expected none after the wait, found %q, %v", values, err)
	}
	for want, r := range map[string]*pb.RingStoreRequest{
		`expected a decimal number as the value, found "one"`: add("text", 1),
		"expected 1 to 512 bytes":                             set("", "x"),
		"expected at most 24576 bytes, found 24577":           set("large", strings.Repeat("x", rendezvous.MaxValue+1)),
		"a value has at most 24 KiB":                          set("huge", strings.Repeat("x", 100<<10)),
	} {
		if _, err := a.Change(t.Context(), r); !errors.Is(err, client.ErrValue) || !strings.Contains(err.Error(), want) {
			t.Errorf("expected %q, found %v", want, err)
		}
	}
}

// F432: values exist for four generations. A caller that is not a member has none.
func TestValuesOfOldGenerations(t *testing.T) {
	store := etcdtest.Store(t)
	_, r := start(t, store, 1, 1, 0)
	ctx := t.Context()
	var member rendezvous.MemberKey
	next := func(generation uint64) {
		t.Helper()
		if generation > 1 {
			if err := r.Report(ctx, member, generation-1, ring.Failed, "", "again"); err != nil {
				t.Fatal(err)
			}
		} else {
			m := rendezvous.Member{ID: "a", Instance: "1", Host: "127.0.0.1", Ports: []int{1}, Processes: 1}
			if _, err := r.Join(m); err != nil {
				t.Fatal(err)
			}
			w, err := r.Watch(m.Key())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(w.End)
			member = m.Key()
		}
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) { // asks again
			u, _, err := r.Observe()
			if err == nil && u.Ring.Number == generation && u.Ring.Ended == "" {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("expected generation %d, found %d, %v", generation, u.Ring.Number, err)
			}
		}
	}
	put := func(generation uint64) error {
		_, err := r.Change(ctx, member, generation, generation, "k", rendezvous.SetValue{Content: []byte("v")})
		return err
	}
	for g := uint64(1); g <= 6; g++ {
		next(g)
		if err := put(g); err != nil {
			t.Fatal(err)
		}
	}
	for g := uint64(1); g <= 6; g++ {
		values, err := r.Values(ctx, member, g, []string{"k"}, 0)
		if kept := g > 6-rendezvous.KeptGenerations; kept != (values != nil) || kept == errors.Is(err, ring.ErrOld) {
			t.Errorf("generation %d: kept %v, found %q, %v", g, kept, values, err)
		}
	}
	stored, _, err := store.Prefixed(ctx, rendezvous.ValuesPrefix)
	if err != nil || len(stored) != rendezvous.KeptGenerations {
		t.Errorf("expected %d keys in etcd, found %d, %v", rendezvous.KeptGenerations, len(stored), err)
	}
	if err := put(7); !errors.Is(err, ring.ErrBad) {
		t.Errorf("a generation that does not exist: found %v", err)
	}
	member.Instance = "2"
	if err := put(6); !errors.Is(err, ring.ErrReplaced) {
		t.Errorf("another instance: found %v", err)
	}
	member.ID = "b"
	if _, err := r.Values(ctx, member, 6, []string{"k"}, 0); !errors.Is(err, ring.ErrUnknown) {
		t.Errorf("no member: found %v", err)
	}
}

// More values than a message has room for are read with several requests.
func TestManyLargeValuesAreRead(t *testing.T) {
	store := etcdtest.Store(t)
	m, _ := start(t, store, 1, 1, 0)
	a := attend(t, trainer.At(m.Addr), "a")
	a.await(t, 1, "a")
	var keys []string
	for n := range 200 {
		keys = append(keys, fmt.Sprint("k", n))
		changes(t, a, set(keys[n], strings.Repeat("x", rendezvous.MaxValue)))
	}
	limit, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if values, err := a.Values(limit, 1, keys, time.Second); len(values) != len(keys) || err != nil {
		t.Errorf("expected %d values, found %d: %v", len(keys), len(values), err)
	}
}
