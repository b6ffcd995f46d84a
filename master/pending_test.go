package master

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"trainmaster/master/committer"
	"trainmaster/master/store"
	"trainmaster/taskqueue"
)

// measured is a memory that records the size of its largest commit.
type measured struct {
	*memory
	most atomic.Int64 // bytes of keys and values
}

func (s *measured) Lead(context.Context, store.Campaign) (store.Leadership, error) { return s, nil }

func (s *measured) Commit(ctx context.Context, expected int64, state []byte, writes []taskqueue.Write) (int64, error) {
	bytes := len("/task_queues") + len(state)
	for _, w := range writes {
		bytes += len(w.Key) + len(w.Value)
	}
	s.most.Store(max(s.most.Load(), int64(bytes)))
	return s.memory.Commit(ctx, expected, state, writes)
}

// holder is a plain connection that holds as many tasks as permitted.
type holder struct {
	m    *Master
	name string
	who  taskqueue.PlainAsk // session of the first answer
	held []taskqueue.Token
	at   []int // indices of the held tasks
}

// ask finishes one of the held tasks (-1: none) and takes another task. It returns false without a task.
func (h *holder) ask(t *testing.T, finish int) bool {
	ask := taskqueue.PlainAsk{Trainer: h.who.Trainer, Incarnation: h.who.Incarnation, Connection: h.name, Want: true}
	if finish >= 0 {
		ask.Finished, ask.Token, ask.Index = true, h.held[finish], h.at[finish]
		h.held = append(h.held[:finish], h.held[finish+1:]...)
		h.at = append(h.at[:finish], h.at[finish+1:]...)
	}
	reply, err := h.m.PlainAsk(t.Context(), &ask)
	if err != nil {
		t.Errorf("%s: %v", h.name, err)
		return false
	}
	h.who.Trainer, h.who.Incarnation = reply.Ordinal, reply.Incarnation
	if reply.Assignment == nil {
		return false
	}
	h.held = append(h.held, reply.Assignment.Task.Token)
	h.at = append(h.at, reply.Assignment.Task.Index)
	return true
}

// With more than 35,000 pending tasks, and batches of thousands of tasks, the largest request stays below the size at
// which dispatching stops. This size is half of the 1 MiB that etcd accepts in any configuration.
func TestPendingTasksStayWithinARequest(t *testing.T) {
	const (
		connections = 2300
		each        = 16 // limit of tasks of a connection
	)
	bubble(t, func(t *testing.T) {
		store := &measured{memory: newMemory()}
		logger, _ := logtest.NewNullLogger()
		options := taskqueue.Options{Passes: 1, TimeoutMin: 24 * time.Hour, TimeoutMax: 24 * time.Hour}
		m, err := New(Config{Store: store, Log: logrus.NewEntry(logger), Shuffle: true, Seed: 1, ChunksPerTask: 1, Queue: options})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var ran sync.WaitGroup
		ran.Go(func() { _ = m.Run(ctx) })
		defer ran.Wait()
		defer cancel()
		for !m.Leading() {
			time.Sleep(time.Millisecond)
		}
		register(t, m, 4*connections*each)
		holders := make([]*holder, connections)
		together := func(work func(h *holder, random *rand.Rand)) {
			var wg sync.WaitGroup
			for i, h := range holders {
				wg.Go(func() { work(h, rand.New(rand.NewPCG(1, uint64(i)))) })
			}
			wg.Wait()
		}
		for i := range holders {
			holders[i] = &holder{m: m, name: fmt.Sprint("connection ", i)}
		}
		together(func(h *holder, random *rand.Rand) { // in a random order, so that the pending tasks are scattered
			for len(h.held) < each {
				time.Sleep(time.Duration(random.IntN(4)) * time.Millisecond)
				finish := -1
				if len(h.held) > 0 && random.IntN(3) == 0 {
					finish = random.IntN(len(h.held))
				}
				if !h.ask(t, finish) {
					return
				}
			}
		})
		view, err := m.Overview(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		pending := view.Sets[0].Pending
		t.Logf("%d pending tasks, largest request of %d bytes", pending, store.most.Load())
		if pending != connections*each {
			t.Errorf("pending tasks: found %d, expected %d", pending, connections*each)
		}
		if most := store.most.Load(); most >= committer.MaxStateBytes || most < connections*each {
			t.Errorf("largest request: found %d bytes, expected less than %d, where dispatching stops", most, committer.MaxStateBytes)
		}
	})
}

// The ledger entries of one transaction stay far below the 1 MiB that etcd accepts in any configuration, for any
// number of concurrent calls, even if the calls write few keys.
func TestManyJoinsFitTheirTransactions(t *testing.T) {
	for name, id := range map[string]string{"one name": "%.200[2]s", "names of their own": "%05[1]d%.195[2]s"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				store := &measured{memory: newMemory()}
				logger, _ := logtest.NewNullLogger()
				term, err := recoverTerm(t.Context(), store, Config{Store: store, Log: logrus.NewEntry(logger)})
				if err != nil {
					t.Fatal(err)
				}
				joins := make([]*committer.Pending, 12_000)
				for i := range joins {
					if joins[i], err = term.Put(t.Context(), &taskqueue.Join{ID: fmt.Sprintf(id, i, strings.Repeat("x", maxID))}); err != nil {
						t.Fatal(err)
					}
				}
				if err := term.Round(t.Context(), false); err != nil {
					t.Fatal(err)
				}
				for i, join := range joins {
					if answer, _, done, err := join.Answer(); err != nil || !done || answer.Incarnation == 0 {
						t.Fatalf("join %d: %+v, %v, done: %v", i, answer, err, done)
					}
				}
				t.Logf("%d commits, largest request of %d bytes", len(store.written()), store.most.Load())
				if most := store.most.Load(); most >= 2*committer.MaxBatchLedger {
					t.Errorf("largest request: found %d bytes, expected less than %d", most, 2*committer.MaxBatchLedger)
				}
			})
		})
	}
}
