package ring_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/internal/tcpproxy"
	"trainmaster/master"
	"trainmaster/master/component"
	"trainmaster/master/mastertest"
	"trainmaster/master/rendezvous"
	"trainmaster/master/ring"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
	"trainmaster/trainer"
	client "trainmaster/trainer/rendezvous"
)

// start starts a master with a ring.
func start(t *testing.T, store *etcdstore.Store, low, high int, window time.Duration) (*mastertest.Running, *ring.Ring) {
	t.Helper()
	r := ring.New(ring.Config{Rendezvous: rendezvous.Config{Min: low, Max: high, Window: window}, Store: store})
	m := mastertest.Start(t, store, master.Config{Components: []component.Component{r}, Ring: r})
	mastertest.Eventually(t, "the ring of the leader", func() bool { // its component starts a moment after the term
		_, _, err := r.Observe()
		return err == nil
	})
	return m, r
}

// member is a running member.
type member struct {
	*client.Client
	crash func() // ends it without a word
	ended chan error
	seen  chan *pb.RingUpdate // each state
}

// attend starts a member.
func attend(t *testing.T, at trainer.Locator, id string) *member {
	t.Helper()
	logger, _ := logtest.NewNullLogger()
	m := &member{ended: make(chan error, 1), seen: make(chan *pb.RingUpdate, 100)}
	m.Client = &client.Client{Locate: at, Member: &pb.RingMember{Id: id, Ports: []uint32{4000, 4001}, Processes: 2}, Log: logrus.NewEntry(logger)}
	ctx, cancel := context.WithCancel(context.Background())
	m.crash = cancel
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for _, changed := m.Update(); ; {
			select {
			case <-changed:
				var u *pb.RingUpdate
				u, changed = m.Update()
				m.seen <- u
			case <-ctx.Done():
				return
			}
		}
	}()
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.ended <- m.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		<-watched
	})
	return m
}

// await waits for a generation with the members in rank order.
func (m *member) await(t *testing.T, number uint64, ids ...string) *pb.RingUpdate {
	t.Helper()
	want := fmt.Sprintf("%d %v", number, ids)
	last := "nothing"
	deadline := time.After(30 * time.Second)
	for {
		select {
		case u := <-m.seen:
			var found []string
			for _, member := range u.GetGeneration().GetMembers() {
				found = append(found, member.Id)
			}
			if last = fmt.Sprintf("%d %v", u.GetGeneration().GetNumber(), found); last == want && u.State == pb.RingState_RING_STATE_MEMBER {
				return u
			}
		case <-deadline:
			t.Fatalf("member %s: expected generation %s, found %s", m.Member.Id, want, last)
		}
	}
}

func (m *member) awaitState(t *testing.T, state pb.RingState) *pb.RingUpdate {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		select {
		case u := <-m.seen:
			if u.State == state {
				return u
			}
		case <-deadline:
			u, _ := m.Update()
			t.Fatalf("member %s: expected state %v, found %v", m.Member.Id, state, u)
		}
	}
}

// stored returns the ring in the store.
func stored(t *testing.T, store *etcdstore.Store) rendezvous.Ring {
	t.Helper()
	value, _, err := store.Value(t.Context(), rendezvous.Key)
	if err != nil || value == nil {
		t.Fatalf("read %s: expected a ring, found %q, %v", rendezvous.Key, value, err)
	}
	r, err := rendezvous.Decode(value)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestGenerationIsStoredBeforeAMemberReceivesIt(t *testing.T) {
	store := etcdtest.Store(t)
	r, _ := start(t, store, 2, 2, 0)
	a, b := attend(t, trainer.At(r.Addr), "a"), attend(t, trainer.At(r.Addr), "b")
	_ = b
	u := a.awaitState(t, pb.RingState_RING_STATE_MEMBER)
	if s := stored(t, store); s.Number != 1 || len(s.Members) != 2 {
		t.Errorf("expected generation 1 of 2 members in the store, found %+v", s)
	}
	first := u.Generation.Members[0]
	if first.Host != "127.0.0.1" || u.Generation.Coordinator != "127.0.0.1:4001" {
		t.Errorf("expected the address of the connection, found %v and coordinator %s", first, u.Generation.Coordinator)
	}
	if rank, world := first.Processes, first.Processes+u.Generation.Members[1].Processes; rank != 2 || world != 4 {
		t.Errorf("rank: expected 2 of 4, found %d of %d", rank, world)
	}
}

func TestNextLeaderContinuesTheGeneration(t *testing.T) {
	store := etcdtest.Store(t)
	follow := trainer.NewFollow()
	r, _ := start(t, store, 2, 4, 0)
	follow.Set(r.Addr, 1)
	ids := []string{"a", "b", "c"}
	var members []*member
	for i, id := range ids {
		members = append(members, attend(t, follow, id))
		if i == 0 {
			members[i].awaitState(t, pb.RingState_RING_STATE_WAITING) // it is the first
			continue
		}
		members[i].await(t, uint64(i), ids[:i+1]...)
	}
	members[0].await(t, 2, ids...)
	follow.Set("", 0)
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	next, _ := start(t, store, 2, 4, 0)
	follow.Set(next.Addr, 2)
	members[0].await(t, 2, ids...) // from the next leader
	members[2].crash()
	u := members[0].await(t, 3, "a", "b")
	if !strings.Contains(u.Generation.Reason, "member c") {
		t.Errorf("expected a reason with member c, found %q", u.Generation.Reason)
	}
}

// F301: the report of a failure finds the member whose connection has ended.
func TestReportedLossFormsTheNextGenerationImmediately(t *testing.T) {
	store := etcdtest.Store(t)
	r, _ := start(t, store, 2, 3, time.Minute)
	a, b, c := attend(t, trainer.At(r.Addr), "a"), attend(t, trainer.At(r.Addr), "b"), attend(t, trainer.At(r.Addr), "c")
	u := a.awaitState(t, pb.RingState_RING_STATE_MEMBER)
	peers := map[string]*member{"a": a, "b": b, "c": c}
	delete(peers, u.Generation.Members[2].Id)
	lost := map[string]*member{"a": a, "b": b, "c": c}[u.Generation.Members[2].Id]
	lost.crash()
	began := time.Now()
	for id, p := range peers {
		if err := p.Report(t.Context(), 1, pb.RingOutcome_RING_OUTCOME_FAILED, "", "connection reset"); err != nil && !errors.Is(err, client.ErrOldGeneration) {
			t.Fatalf("report of %s: %v", id, err)
		}
	}
	for _, p := range peers {
		next := p.await(t, 2, u.Generation.Members[0].Id, u.Generation.Members[1].Id)
		if next.Generation.Failed != "" {
			t.Errorf("expected no failed member, found %q", next.Generation.Failed)
		}
	}
	if took := time.Since(began); took > rendezvous.LostAfter-200*time.Millisecond {
		t.Errorf("the next generation came after %v, expected it before the grace of %v", took, rendezvous.LostAfter)
	}
}

// F338: two members cannot reach the third, which is connected to the master. The third waits, with the reason, and the others continue.
func TestUnreachableMemberIsExcluded(t *testing.T) {
	store := etcdtest.Store(t)
	r, _ := start(t, store, 1, 3, 0)
	a := attend(t, trainer.At(r.Addr), "a")
	a.await(t, 1, "a")
	b := attend(t, trainer.At(r.Addr), "b")
	b.await(t, 2, "a", "b")
	c := attend(t, trainer.At(r.Addr), "c")
	for generation := uint64(3); generation < 5; generation++ {
		c.await(t, generation, "a", "b", "c")
		var reports sync.WaitGroup
		for _, m := range []*member{a, b} {
			reports.Go(func() {
				if err := m.Report(t.Context(), generation, pb.RingOutcome_RING_OUTCOME_PEER_FAILED, "c", "no route to host"); err != nil {
					t.Errorf("report of %s: %v", m.Member.Id, err)
				}
			})
		}
		reports.Wait()
	}
	u := a.await(t, 5, "a", "b")
	const want = "cannot reach member c, which is excluded for 1m0s: no route to host"
	if !strings.Contains(u.Generation.Reason, want) {
		t.Errorf("generation: expected the reason %q, found %q", want, u.Generation.Reason)
	}
	if u := c.awaitState(t, pb.RingState_RING_STATE_PARKED); !strings.Contains(u.Reason, want) {
		t.Errorf("excluded member: expected the reason %q, found %q", want, u.Reason)
	}
}

func TestReportOfAnOldGenerationIsRefused(t *testing.T) {
	store := etcdtest.Store(t)
	r, _ := start(t, store, 1, 2, 0)
	a := attend(t, trainer.At(r.Addr), "a")
	a.await(t, 1, "a")
	attend(t, trainer.At(r.Addr), "b").await(t, 2, "a", "b")
	err := a.Report(t.Context(), 1, pb.RingOutcome_RING_OUTCOME_FAILED, "", "late")
	if !errors.Is(err, client.ErrOldGeneration) || !strings.Contains(err.Error(), "expected 2, found 1") {
		t.Errorf("expected a refusal with the current number, found %v", err)
	}
}

// F357: an answer without an error would mean that the member may go.
func TestCompletionOfAnEndedGenerationIsRefused(t *testing.T) {
	store := etcdtest.Store(t)
	r, _ := start(t, store, 2, 2, 0)
	a, b := attend(t, trainer.At(r.Addr), "a"), attend(t, trainer.At(r.Addr), "b")
	a.awaitState(t, pb.RingState_RING_STATE_MEMBER)
	if err := b.Leave(t.Context(), "drained"); err != nil {
		t.Fatal(err)
	}
	a.awaitState(t, pb.RingState_RING_STATE_WAITING)
	err := a.Report(t.Context(), 1, pb.RingOutcome_RING_OUTCOME_COMPLETED, "", "")
	if !errors.Is(err, client.ErrOldGeneration) || !strings.Contains(err.Error(), "generation 1 has ended") {
		t.Errorf("completed: expected a refusal with the generation, found %v", err)
	}
	if err := a.Report(t.Context(), 1, pb.RingOutcome_RING_OUTCOME_FAILED, "", "late"); err != nil {
		t.Errorf("failed: expected no error, since the generation has ended, found %v", err)
	}
}

// F353: the member does not see its replacement while it is unreachable.
func TestReplacedMemberReturnsAndEnds(t *testing.T) {
	store := etcdtest.Store(t)
	r, _ := start(t, store, 2, 2, 0)
	relay, err := tcpproxy.New(r.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer relay.Close()
	first := attend(t, trainer.At(relay.Addr()), "a")
	b := attend(t, trainer.At(r.Addr), "b")
	first.awaitState(t, pb.RingState_RING_STATE_MEMBER)
	u := b.awaitState(t, pb.RingState_RING_STATE_MEMBER)
	relay.Refuse(true)
	relay.Cut()
	second := attend(t, trainer.At(r.Addr), "a")
	second.await(t, u.Generation.Number+1, "b", "a")
	relay.Refuse(false)
	select {
	case err := <-first.ended:
		if !errors.Is(err, client.ErrReplaced) {
			t.Errorf("expected an error that names the id, found %v", err)
		}
		first.ended <- nil
	case err := <-second.ended:
		t.Fatalf("expected the end of the first process, found the end of its replacement: %v", err)
	case <-time.After(30 * time.Second):
		t.Fatal("expected the end of the first process")
	}
	now, _ := second.Update()
	if g := now.GetGeneration(); g.GetNumber() != u.Generation.Number+1 || stored(t, store).Number != g.GetNumber() {
		t.Errorf("expected the generation of the replacement to continue, found %v", g)
	}
}

func TestRingOfAJobWithoutDataClosesAndEndsTheJob(t *testing.T) {
	store := etcdtest.Store(t)
	r, _ := start(t, store, 2, 2, 0)
	a, b := attend(t, trainer.At(r.Addr), "a"), attend(t, trainer.At(r.Addr), "b")
	a.awaitState(t, pb.RingState_RING_STATE_MEMBER)
	if err := a.Report(t.Context(), 1, pb.RingOutcome_RING_OUTCOME_COMPLETED, "", ""); err != nil {
		t.Fatal(err)
	}
	s := stored(t, store)
	completed := 0
	for _, m := range s.Members {
		if m.Completed {
			completed++
		}
	}
	if completed != 1 || s.Closed != "" {
		t.Errorf("expected one completed member in the store and an open ring, found %+v", s)
	}
	if err := b.Report(t.Context(), 1, pb.RingOutcome_RING_OUTCOME_COMPLETED, "", ""); err != nil {
		t.Fatal(err)
	}
	for _, m := range []*member{a, b} {
		m.awaitState(t, pb.RingState_RING_STATE_CLOSED)
		if err := <-m.ended; err != nil {
			t.Errorf("member %s: %v", m.Member.Id, err)
		}
		m.ended <- nil
	}
	mastertest.Eventually(t, "the end of the master", r.Ended)
	if err := r.Wait(); err != nil {
		t.Errorf("master: %v", err)
	}
	state, _, _ := mastertest.State(t, store)
	if state.Status != taskqueue.Ended {
		t.Errorf("expected an ended job, found %v", state.Status)
	}
}

func TestEndOfAPodRemovesItsMemberImmediately(t *testing.T) {
	store := etcdtest.Store(t)
	r, component := start(t, store, 2, 3, 0)
	a := attend(t, trainer.At(r.Addr), "a")
	a.awaitState(t, pb.RingState_RING_STATE_WAITING) // it is the first
	b := attend(t, trainer.At(r.Addr), "b")
	b.await(t, 1, "a", "b")
	c := attend(t, trainer.At(r.Addr), "c")
	c.await(t, 2, "a", "b", "c")
	began := time.Now()
	component.Ended("b", "exit code 137")
	u := a.await(t, 3, "a", "c")
	if took := time.Since(began); took > rendezvous.LostAfter/2 {
		t.Errorf("the next generation came after %v", took)
	}
	if !strings.Contains(u.Generation.Reason, "exit code 137") {
		t.Errorf("expected the reason of the pod, found %q", u.Generation.Reason)
	}
}

func TestMembersLeaveAndAreReplaced(t *testing.T) {
	store := etcdtest.Store(t)
	r, _ := start(t, store, 1, 2, 0)
	a := attend(t, trainer.At(r.Addr), "a")
	a.await(t, 1, "a")
	b := attend(t, trainer.At(r.Addr), "b")
	b.await(t, 2, "a", "b")
	c := attend(t, trainer.At(r.Addr), "c")
	if u := c.awaitState(t, pb.RingState_RING_STATE_PARKED); !strings.Contains(u.Reason, "maximum") {
		t.Errorf("expected a reason, found %q", u.Reason)
	}
	if err := b.Leave(t.Context(), "drained"); err != nil {
		t.Fatal(err)
	}
	b.crash()
	c.await(t, 3, "a", "c")
	attend(t, trainer.At(r.Addr), "a") // another process with the id
	if err := <-a.ended; !errors.Is(err, client.ErrReplaced) {
		t.Errorf("expected an error that names the id, found %v", err)
	}
	a.ended <- nil
	if err := c.Close(t.Context(), "enough"); err != nil {
		t.Fatal(err)
	}
	if u := c.awaitState(t, pb.RingState_RING_STATE_CLOSED); u.Reason != "enough" {
		t.Errorf("expected the reason of the request, found %q", u.Reason)
	}
}

// heldRing is the component with a term whose commits of the ring can be held.
type heldRing struct {
	*ring.Ring
	held chan chan struct{} // receives a channel for each commit, which continues when the channel closes
	on   atomic.Bool
}

func (h *heldRing) Run(ctx context.Context, t component.Term) error {
	return h.Ring.Run(ctx, heldTerm{t, h})
}

type heldTerm struct {
	component.Term
	ring *heldRing
}

func (t heldTerm) Submit(ctx context.Context, ev taskqueue.Event) (taskqueue.Answer, error) {
	if _, isRing := ev.(*taskqueue.StoreKeys); isRing && t.ring.on.Load() {
		resume := make(chan struct{})
		t.ring.held <- resume
		<-resume
	}
	return t.Term.Submit(ctx, ev)
}

// F303: the calls of members are answered when the next leader knows their effect.
func TestCallsAreAnsweredAfterTheStore(t *testing.T) {
	for name, c := range map[string]struct {
		call   func(context.Context, *member) error
		stored func(rendezvous.Ring) bool
	}{
		"completed": {
			func(ctx context.Context, m *member) error {
				return m.Report(ctx, 1, pb.RingOutcome_RING_OUTCOME_COMPLETED, "", "")
			},
			func(r rendezvous.Ring) bool {
				return slices.ContainsFunc(r.Members, func(m rendezvous.Member) bool { return m.ID == "a" && m.Completed })
			},
		},
		"failed": {
			func(ctx context.Context, m *member) error {
				return m.Report(ctx, 1, pb.RingOutcome_RING_OUTCOME_FAILED, "", "exit code 1")
			},
			func(r rendezvous.Ring) bool { return r.Number == 2 && r.Failed == "a" },
		},
		"left": {
			func(ctx context.Context, m *member) error { return m.Leave(ctx, "drained") },
			func(r rendezvous.Ring) bool {
				return !r.Active() || !slices.ContainsFunc(r.Members, func(m rendezvous.Member) bool { return m.ID == "a" })
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := etcdtest.Store(t)
			h := &heldRing{Ring: ring.New(ring.Config{Rendezvous: rendezvous.Config{Min: 2, Max: 2}, Store: store}), held: make(chan chan struct{}, 10)}
			r := mastertest.Start(t, store, master.Config{Components: []component.Component{h}, Ring: h.Ring})
			a, b := attend(t, trainer.At(r.Addr), "a"), attend(t, trainer.At(r.Addr), "b")
			a.awaitState(t, pb.RingState_RING_STATE_MEMBER)
			b.awaitState(t, pb.RingState_RING_STATE_MEMBER)
			h.on.Store(true)
			answered := make(chan error, 1)
			go func() { answered <- c.call(t.Context(), a) }()
			resume := <-h.held
			h.on.Store(false)
			select {
			case err := <-answered:
				t.Errorf("answered before the store: %v", err)
				answered <- err
			case <-time.After(300 * time.Millisecond): // an answer without a store comes sooner
			}
			close(resume)
			if err := <-answered; err != nil {
				t.Fatal(err)
			}
			if s := stored(t, store); !c.stored(s) {
				t.Errorf("the store does not have the effect: %+v", s)
			}
		})
	}
}
