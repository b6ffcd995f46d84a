package master_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/mastertest"
	"trainmaster/taskqueue"
)

// F8: a full etcd refuses commits. Every caller of the batch receives the error, and nothing is counted or
// dispatched. Once etcd has room, the same requests are answered.
func TestFullStore(t *testing.T) {
	etcd := etcdtest.StartProcess(t, 8<<20)
	store := etcd.Store()
	r := mastertest.Start(t, store, master.Config{Queue: taskqueue.Options{Passes: 1}})
	r.Register(40)
	const trainers = 10
	requests := make([]*taskqueue.Request, trainers)
	for i := range requests {
		trainer := r.Join(fmt.Sprint("t", i))
		requests[i] = trainer.Request(nil, []taskqueue.Token{trainer.Take(t)})
	}
	client := store.Client()
	filler := strings.Repeat("x", 1<<20)
	for i := 0; ; i++ {
		if _, err := client.Put(t.Context(), fmt.Sprint("/filler/", i), filler); err != nil {
			break // full
		}
		if i > 100 {
			t.Fatal("expected a full etcd")
		}
	}
	_, before, revision := mastertest.State(t, store)

	send := func() (replies []master.Reply, errs []error) {
		replies, errs = make([]master.Reply, trainers), make([]error, trainers)
		var wg sync.WaitGroup
		for i := range requests {
			wg.Go(func() {
				request := *requests[i]
				replies[i], errs[i] = r.Next(t.Context(), &request)
			})
		}
		wg.Wait()
		return replies, errs
	}
	for range 3 {
		for i, err := range second(send()) {
			if !errors.Is(err, master.ErrNotStored) || !errors.Is(err, taskqueue.ErrStoreFull) {
				t.Fatalf("caller %d: expected a full store, found %v", i, err)
			}
		}
	}
	term, err := r.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var sending sync.WaitGroup
	sending.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				send()
			}
		}
	})
	for range 100 { // as a status page does, some of them in the same batches
		if status, err := r.Status(t.Context()); err != nil || status.Term != term.Term {
			t.Errorf("read of the state: term %d, then %d, %v", term.Term, status.Term, err)
		}
	}
	close(stop)
	sending.Wait()
	if _, after, now := mastertest.State(t, store); now != revision || string(after) != string(before) {
		t.Errorf("state: expected revision %d, found %d", revision, now)
	}
	status, err := r.Status(t.Context())
	if err != nil || status.Refused == 0 || status.Sets[0].Done != 0 || status.Sets[0].Pending != trainers {
		t.Errorf("status: expected refused commits, no done task, %d pending tasks; got %+v, %v", trainers, status, err)
	}

	empty(t, client)
	replies, errs := send()
	for i, err := range errs {
		if err != nil || replies[i].Assignment == nil || replies[i].Finishes[0] != taskqueue.Counted {
			t.Errorf("caller %d, with room again: %+v, %v", i, replies[i], err)
		}
	}
	if p := mastertest.Verify(t, store)[0]; p.CountedOnce != trainers {
		t.Errorf("ledger: found %d counted tasks, expected %d", p.CountedOnce, trainers)
	}
}

// F3, F8: the connection of a commit breaks, and etcd is full after that. No answer resolves the outcome. The
// caller is refused, the master releases the lock, and another master leads once etcd has room.
func TestFullStoreAfterAnUnknownOutcomeEndsTheTerm(t *testing.T) {
	etcd := etcdtest.StartProcess(t, 8<<20)
	job := etcdtest.NewJob(t)
	direct := etcdtest.Open(t, etcd.Endpoint(), job)
	proxy := etcdtest.StartProxy(t, etcd.Endpoint())
	r := mastertest.Start(t, etcdtest.Open(t, proxy.Endpoint(), job), master.Config{Queue: taskqueue.Options{Passes: 1}})
	r.Register(4)
	a := r.Join("a")
	request := a.Request(nil, nil)
	proxy.HoldRequests(true)
	answered := make(chan error, 1)
	go func() { _, err := r.Next(context.Background(), request); answered <- err }()
	const largerThanAKeepAlive = 400
	mastertest.Eventually(t, "a held commit", func() bool { return proxy.HeldRequests() > largerThanAKeepAlive })
	filler := strings.Repeat("x", 1<<20)
	for i := 0; ; i++ {
		if _, err := direct.Client().Put(t.Context(), fmt.Sprint("/filler/", i), filler); err != nil {
			break // full
		}
	}
	proxy.Cut() // the request is lost
	proxy.HoldRequests(false)
	if err := <-answered; !errors.Is(err, master.ErrNotLeader) {
		t.Errorf("caller of an unknown outcome: got %v, expected %v", err, master.ErrNotLeader)
	}
	mastertest.Eventually(t, "the release of the lock", func() bool {
		keys, _, err := direct.Prefixed(t.Context(), etcdstore.LockPrefix)
		return err == nil && len(keys) == 0
	})
	mastertest.Eventually(t, "a status with the full store and the command", func() bool {
		_, err := r.Status(t.Context())
		return errors.Is(err, master.ErrNotLeader) && strings.Contains(err.Error(), "the store is full") && strings.Contains(err.Error(), "etcdctl alarm disarm")
	})
	if err := r.Stop(); err != nil {
		t.Error(err)
	}
	empty(t, direct.Client())
	next := mastertest.Start(t, direct, master.Config{Queue: taskqueue.Options{Passes: 1}})
	if reply, err := next.Next(t.Context(), request); err != nil || reply.Assignment == nil {
		t.Errorf("same request to the next master: got %+v, %v", reply, err)
	}
	mastertest.Verify(t, direct)
}

func second[A, B any](_ A, b B) B { return b }

// empty makes room by the steps in the error: delete, compact, defragment, disarm.
func empty(t *testing.T, client *clientv3.Client) {
	t.Helper()
	ctx := t.Context()
	deleted, err := client.Delete(ctx, "/filler/", clientv3.WithPrefix())
	if err == nil {
		_, err = client.Compact(ctx, deleted.Header.Revision, clientv3.WithCompactPhysical())
	}
	if err == nil {
		_, err = client.Defragment(ctx, client.Endpoints()[0])
	}
	if err == nil {
		_, err = client.AlarmDisarm(ctx, &clientv3.AlarmMember{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// behind returns a master that reaches etcd through a proxy, and a store with a direct connection.
func behind(t *testing.T, config master.Config) (r *mastertest.Running, proxy *etcdtest.Proxy, direct *etcdstore.Store) {
	t.Helper()
	proxy = etcdtest.StartProxy(t, etcdtest.Endpoint(t))
	job := etcdtest.NewJob(t)
	direct = etcdtest.Open(t, etcdtest.Endpoint(t), job)
	return mastertest.Start(t, etcdtest.Open(t, proxy.Endpoint(), job), config), proxy, direct
}

type answer struct {
	reply master.Reply
	err   error
}

// asks sends a request of a trainer without waiting for its answer.
func asks(t *testing.T, trainer *mastertest.Trainer, finished ...taskqueue.Token) <-chan answer {
	c := make(chan answer, 1)
	go func() {
		reply, err := trainer.Next(t.Context(), finished...)
		c <- answer{reply, err}
	}()
	return c
}

// largerThanAKeepAlive distinguishes a held transaction from a held keep-alive.
const largerThanAKeepAlive = 200

// F3: no caller is answered before the outcome of the commit is known, for each outcome: the commit was applied and
// the answer was lost, the commit was lost, or another value was written.
func TestUnknownOutcome(t *testing.T) {
	t.Run("applied", func(t *testing.T) {
		r, proxy, direct := behind(t, master.Config{})
		r.Register(5)
		a := r.Join("a")
		before, _, revision := mastertest.State(t, direct)
		proxy.HoldReplies(true)
		answered := asks(t, a)
		mastertest.Eventually(t, "an applied commit", func() bool {
			_, _, now := mastertest.State(t, direct)
			return now > revision
		})
		select {
		case got := <-answered:
			t.Fatalf("expected no answer before the outcome is known, got %+v", got)
		default:
		}
		proxy.Cut()
		proxy.HoldReplies(false)
		got := <-answered
		if got.err != nil || got.reply.Assignment == nil {
			t.Fatalf("got %+v", got)
		}
		if after, _, _ := mastertest.State(t, direct); after.Commit != before.Commit+1 {
			t.Errorf("expected one commit, found %d", after.Commit-before.Commit)
		}
		wantOneDispatch(t, r, direct, got.reply)
	})
	t.Run("lost", func(t *testing.T) {
		r, proxy, direct := behind(t, master.Config{})
		r.Register(5)
		a := r.Join("a")
		before, _, revision := mastertest.State(t, direct)
		proxy.HoldRequests(true)
		answered := asks(t, a)
		mastertest.Eventually(t, "a held commit", func() bool { return proxy.HeldRequests() > largerThanAKeepAlive })
		proxy.Cut()
		proxy.HoldRequests(false)
		got := <-answered
		if got.err != nil || got.reply.Assignment == nil {
			t.Fatalf("got %+v", got)
		}
		if after, _, now := mastertest.State(t, direct); after.Commit != before.Commit+1 || now == revision {
			t.Errorf("commit: expected %d, found %d", before.Commit, after.Commit)
		}
		wantOneDispatch(t, r, direct, got.reply)
	})
	t.Run("another value", func(t *testing.T) {
		r, proxy, direct := behind(t, master.Config{})
		r.Register(5)
		a := r.Join("a")
		proxy.HoldRequests(true)
		answered := asks(t, a)
		mastertest.Eventually(t, "a held commit", func() bool { return proxy.HeldRequests() > largerThanAKeepAlive })
		replaceState(t, direct, func(s *taskqueue.Snapshot) { s.Nonce++ })
		proxy.Cut()
		proxy.HoldRequests(false)
		if got := <-answered; !errors.Is(got.err, master.ErrNotLeader) || got.reply.Assignment != nil {
			t.Fatalf("expected the end of the term, got %+v", got)
		}
		r.AwaitLeading() // the next term continues from the stored state
		if _, err := a.Next(t.Context()); err != nil {
			t.Error(err)
		}
		mastertest.Verify(t, direct)
	})
}

// wantOneDispatch checks that the state and the ledger have one dispatch: the dispatch in the answer.
func wantOneDispatch(t *testing.T, r *mastertest.Running, store *etcdstore.Store, reply master.Reply) {
	t.Helper()
	tasks, err := r.PendingTasks(t.Context())
	if err != nil || len(tasks) != 1 || tasks[0].Token != reply.Assignment.Task.Token {
		t.Errorf("answer: token %v; pending: %+v, %v", reply.Assignment.Task.Token, tasks, err)
	}
	if p := mastertest.Verify(t, store)[0]; p.Redelivered != 0 {
		t.Errorf("ledger: expected no further dispatch, found %d", p.Redelivered)
	}
}

// replaceState overwrites the state without a fence.
func replaceState(t *testing.T, store *etcdstore.Store, change func(*taskqueue.Snapshot)) {
	t.Helper()
	state, _, _ := mastertest.State(t, store)
	change(state)
	encoded, err := etcdstore.Encode(state)
	if err != nil {
		t.Fatal(err)
	}
	overwrite(t, store, "/task_queues", encoded)
}

func overwrite(t *testing.T, store *etcdstore.Store, key string, value []byte) {
	t.Helper()
	if _, err := store.Client().Put(t.Context(), store.Prefix()+key, string(value)); err != nil {
		t.Fatal(err)
	}
}

// together sends calls in one batch: the previous commit is held until all calls wait.
func together(t *testing.T, r *mastertest.Running, proxy *etcdtest.Proxy, direct *etcdstore.Store, n int, call func(i int)) {
	t.Helper()
	_, _, revision := mastertest.State(t, direct)
	proxy.HoldReplies(true)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := r.Master.Join(t.Context(), "first", ""); err != nil {
			t.Error(err)
		}
	})
	mastertest.Eventually(t, "an applied earlier commit", func() bool {
		_, _, now := mastertest.State(t, direct)
		return now > revision
	})
	before := r.Waiting()
	for i := range n {
		wg.Go(func() { call(i) })
	}
	mastertest.Eventually(t, "waiting callers", func() bool { return r.Waiting() >= before+n })
	proxy.HoldReplies(false)
	wg.Wait()
}

// F17: an event that panics is dropped alone. Its caller receives an error. The other callers of the batch receive
// their answers once.
func TestPanickingEventIsDroppedAlone(t *testing.T) {
	r, proxy, direct := behind(t, master.Config{})
	r.Register(20)
	trainers := make([]*mastertest.Trainer, 8)
	for i := range trainers {
		trainers[i] = r.Join(fmt.Sprint("t", i))
	}
	greedy := r.Join("greedy") // finishes a task of another trainer, and asks for more tasks than it may hold
	held := []taskqueue.Token{greedy.Take(t)}
	reply, err := r.Next(t.Context(), greedy.Request(held, nil))
	if err != nil {
		t.Fatal(err)
	}
	held = append(held, reply.Assignment.Task.Token)
	full := greedy.Request(held, []taskqueue.Token{r.Join("other").Take(t)})
	var mu sync.Mutex
	tokens := map[taskqueue.Token]bool{}
	together(t, r, proxy, direct, len(trainers)+4, func(i int) {
		var err error
		want := "internal error"
		switch i {
		case len(trainers):
			err = r.RefuseMetric(t.Context(), nil)
		case len(trainers) + 1:
			_, err = r.PlainAsk(t.Context(), nil)
		case len(trainers) + 2:
			_, err = r.Master.Next(t.Context(), full)
			want = taskqueue.ErrTooManyHeld.Error()
		case len(trainers) + 3:
			err = r.Inspect(t.Context(), func(*taskqueue.Queue) { panic("a view that panics") })
		default:
			reply, err := trainers[i].Next(t.Context())
			if err != nil || reply.Assignment == nil {
				t.Errorf("caller %d: %+v, %v", i, reply, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			tokens[reply.Assignment.Task.Token] = true
			return
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("caller %d: expected %q, got %v", i, want, err)
		}
	})
	if len(tokens) != len(trainers) {
		t.Errorf("dispatched tasks: found %d, expected %d", len(tokens), len(trainers))
	}
	if p := mastertest.Verify(t, direct)[0]; p.Redelivered != 0 || p.CountedOnce != 1 {
		t.Errorf("found %d redelivered and %d counted tasks, expected 0 and 1", p.Redelivered, p.CountedOnce)
	}
	tasks, err := r.PendingTasks(t.Context())
	if err != nil || len(tasks) != len(trainers)+len(held) {
		t.Errorf("pending tasks: found %d, expected %d; %v", len(tasks), len(trainers)+len(held), err)
	}
}

// A caller that leaves before its batch receives no task. A caller that leaves during its commit receives the answer,
// so that the API can return the task.
func TestCanceledCaller(t *testing.T) {
	r, proxy, direct := behind(t, master.Config{})
	r.Register(5)
	a, b := r.Join("a"), r.Join("b")
	gone, cancel := context.WithCancelCause(t.Context())
	together(t, r, proxy, direct, 2, func(i int) {
		if i == 0 {
			mastertest.Eventually(t, "a waiting call", func() bool { return r.Waiting() > 0 })
			cancel(errors.New("client disconnected"))
			if _, err := b.Next(t.Context()); err != nil {
				t.Error(err)
			}
			return
		}
		if reply, err := a.Next(gone); err == nil || err.Error() != "client disconnected" {
			t.Errorf("canceled caller: got %+v, %v", reply, err)
		}
	})
	tasks, err := r.PendingTasks(t.Context())
	if err != nil || len(tasks) != 1 || tasks[0].Holders[0].Trainer != "b" {
		t.Errorf("pending: found %+v, %v; expected one task of b", tasks, err)
	}

	_, _, revision := mastertest.State(t, direct)
	late, hangUp := context.WithCancel(t.Context())
	proxy.HoldReplies(true)
	answered := make(chan answer, 1)
	go func() {
		reply, err := a.Next(late)
		answered <- answer{reply, err}
	}()
	mastertest.Eventually(t, "an applied commit", func() bool {
		_, _, now := mastertest.State(t, direct)
		return now > revision
	})
	hangUp()
	proxy.HoldReplies(false)
	if got := <-answered; got.err != nil || got.reply.Assignment == nil {
		t.Errorf("caller of a commit under way: expected its task, got %+v", got)
	}
}

// A batch with more keys than a transaction can write is split.
func TestLargeBatchUsesSeveralTransactions(t *testing.T) {
	r, proxy, direct := behind(t, master.Config{})
	const n = 300
	var mu sync.Mutex
	ordinals := map[taskqueue.Ordinal]bool{}
	together(t, r, proxy, direct, n, func(i int) {
		s, err := r.Master.Join(t.Context(), fmt.Sprint("t", i), "127.0.0.1:1")
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		ordinals[s.Ordinal] = true
	})
	roster, err := direct.Roster(t.Context())
	if err != nil || len(roster) != n+1 || len(ordinals) != n {
		t.Errorf("roster: found %d trainers with %d ordinals, expected %d; %v", len(roster), len(ordinals), n+1, err)
	}
}

// If the state exceeds its size limit, no task is dispatched and finishes are accepted. Waiting trainers receive
// tasks once finishes have made room. A refused commit changes none of it.
func TestLargeStateTakesFinishesOnly(t *testing.T) {
	store := etcdtest.Store(t)
	r := mastertest.Start(t, store, master.Config{Shuffle: true, Queue: taskqueue.Options{SessionTTL: time.Hour}}) // no trainer sends heartbeats
	r.Register(100_000)
	trainers := make([]*mastertest.Trainer, 300)
	held := make([]taskqueue.Token, len(trainers))
	for i := range trainers {
		trainers[i] = r.Join(fmt.Sprint("t", i))
		held[i] = trainers[i].Take(t)
	}
	_, encoded, _ := mastertest.State(t, store)
	r.LimitState(t, len(encoded)-200)
	waiting := asks(t, r.Join("waits"))
	mastertest.Eventually(t, "a parked request", func() bool { return r.Parked(t) == 1 })
	if _, err := r.PlainAsk(t.Context(), nil); err == nil { // reloads the stored state
		t.Error("event that panics: expected an error")
	}
	for i, trainer := range trainers {
		request := trainer.Request(nil, held[i:i+1])
		request.Want = false
		reply, err := r.Next(t.Context(), request)
		if err != nil || reply.Finishes[0] != taskqueue.Counted {
			t.Fatalf("finish: got %+v, %v", reply, err)
		}
		select {
		case got := <-waiting:
			if got.err != nil || got.reply.Assignment == nil || got.reply.Assignment.Task.Token.Position != len(held) {
				t.Errorf("waiting trainer: got %+v, expected position %d", got, len(held))
			}
			if i == 0 {
				t.Error("expected a waiting trainer")
			}
			return
		default:
		}
	}
	t.Error("after all finishes: expected an answer for the waiting trainer")
}

// F30: a waiting trainer receives the last task as soon as its holder returns it in any way.
func TestWaitingTrainersReceiveReturnedTasks(t *testing.T) {
	for name, giveBack := range map[string]func(t *testing.T, r *mastertest.Running, a *mastertest.Trainer, task taskqueue.Token) error{
		"leave": func(t *testing.T, r *mastertest.Running, a *mastertest.Trainer, _ taskqueue.Token) error {
			return r.Leave(t.Context(), a.Ordinal, a.Incarnation)
		},
		"failure": func(t *testing.T, r *mastertest.Running, a *mastertest.Trainer, task taskqueue.Token) error {
			return r.Fail(t.Context(), a.Ordinal, a.Incarnation, task, "no reason")
		},
		"a new incarnation": func(t *testing.T, r *mastertest.Running, _ *mastertest.Trainer, _ taskqueue.Token) error {
			_, err := r.Master.Join(t.Context(), "a", "")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := mastertest.Start(t, etcdtest.Store(t), master.Config{})
			r.Register(1)
			a, b := r.Join("a"), r.Join("b")
			task := a.Take(t)
			answered := asks(t, b)
			mastertest.Eventually(t, "b in a long poll", func() bool { return r.Parked(t) == 1 })
			began := time.Now()
			if err := giveBack(t, r, a, task); err != nil {
				t.Fatal(err)
			}
			got := <-answered
			if got.err != nil || got.reply.Assignment == nil || got.reply.Assignment.Task.Token.Attempt != 2 {
				t.Errorf("got %+v", got)
			}
			if waited := time.Since(began); waited > time.Second {
				t.Errorf("answer: took %v, expected less than a long poll", waited)
			}
		})
	}
}

// A trainer that holds a task and asks for another task is answered immediately.
func TestPrefetchDoesNotWait(t *testing.T) {
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{})
	r.Register(1)
	a := r.Join("a")
	task := a.Take(t)
	began := time.Now()
	reply, err := r.Next(t.Context(), a.Request([]taskqueue.Token{task}, nil))
	if err != nil || reply.Assignment != nil || time.Since(began) > 5*time.Second {
		t.Errorf("after %v: %+v, %v", time.Since(began), reply, err)
	}
}

// The end of the job reaches all waiting trainers. F29: a job with all tasks set aside fails.
func TestJobEndReachesAllWaitingTrainers(t *testing.T) {
	for name, tt := range map[string]struct {
		failures int
		want     error
	}{"finished": {0, master.ErrJobFinished}, "failed": {4, master.ErrJobFailed}} {
		t.Run(name, func(t *testing.T) {
			r := mastertest.Start(t, etcdtest.Store(t), master.Config{Queue: taskqueue.Options{Passes: 1}, Linger: time.Millisecond})
			r.Register(1)
			a := r.Join("a")
			var waiting []<-chan answer
			task := a.Take(t)
			for range tt.failures - 1 {
				if err := r.Fail(t.Context(), a.Ordinal, a.Incarnation, task, "it does not converge"); err != nil {
					t.Fatal(err)
				}
				task = a.Take(t)
			}
			for i := range 5 {
				waiting = append(waiting, asks(t, r.Join(fmt.Sprint("w", i))))
			}
			mastertest.Eventually(t, "five waiting trainers", func() bool { return r.Parked(t) == 5 })
			if tt.failures > 0 {
				if err := r.Fail(t.Context(), a.Ordinal, a.Incarnation, task, "it does not converge"); err != nil {
					t.Fatal(err)
				}
			} else if _, err := a.Next(t.Context(), task); !errors.Is(err, tt.want) {
				t.Errorf("last trainer: got %v", err)
			}
			for i, c := range waiting {
				if got := <-c; !errors.Is(got.err, tt.want) {
					t.Errorf("waiting trainer %d: got %v, expected %v", i, got.err, tt.want)
				}
			}
			err := r.Wait()
			if tt.failures == 0 && err != nil || tt.failures > 0 && (!errors.Is(err, master.ErrJobFailed) || !strings.Contains(err.Error(), "set aside")) {
				t.Errorf("end of the master: got %v", err)
			}
		})
	}
}

// One trainer saves the model: the first that asks, while its save lease and its session are valid. The next master
// knows this trainer.
func TestOneTrainerIsElectedSaver(t *testing.T) {
	store := etcdtest.Store(t)
	r := mastertest.Start(t, store, master.Config{})
	a, b := r.Join("a"), r.Join("b")
	elects := func(r *mastertest.Running, who *mastertest.Trainer, want bool) {
		t.Helper()
		if elected, err := r.SaveModel(t.Context(), who.Ordinal, who.Incarnation); err != nil || elected != want {
			t.Errorf("elected: %v, %v; want %v", elected, err, want)
		}
	}
	elects(r, a, true)
	elects(r, b, false)
	elects(r, a, true)
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	r = mastertest.Start(t, store, master.Config{})
	elects(r, b, false)
	elects(r, a, true)
	a.At(r).Leave(t)
	elects(r, b, true)
	if _, err := r.SaveModel(t.Context(), a.Ordinal, a.Incarnation); !errors.Is(err, master.ErrRejoin) {
		t.Errorf("trainer without a session: got %v", err)
	}
}

// Requests of clients are bounded, so that they cannot break a transaction with other requests.
func TestRequestsAreBounded(t *testing.T) {
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{})
	a := r.Join("a")
	many := a.Request(nil, make([]taskqueue.Token, 17))
	if _, err := r.Next(t.Context(), many); err == nil || !strings.Contains(err.Error(), "at most 16 tasks, found 17") {
		t.Errorf("17 finishes at once: %v", err)
	}
	if _, err := r.Next(t.Context(), a.Request(make([]taskqueue.Token, 65), nil)); err == nil || !strings.Contains(err.Error(), "at most 64 tasks, found 65") {
		t.Errorf("65 held tasks: %v", err)
	}
	if _, err := r.Master.Join(t.Context(), "b", strings.Repeat("x", 201)); err == nil || !strings.Contains(err.Error(), "200 characters, found 201") {
		t.Errorf("a long address: %v", err)
	}
	for _, id := range []string{"", strings.Repeat("x", 201), "a b", "a/b", "a\nb", "\x7f", "a\xff"} {
		if _, err := r.Master.Join(t.Context(), id, ""); err == nil || !strings.Contains(err.Error(), "trainer id") {
			t.Errorf("id %.20q: %v", id, err)
		}
	}
}
