package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"trainmaster/etcdstore"
	"trainmaster/local/bench/load"
	"trainmaster/taskqueue"
	"trainmaster/trainer"
)

const roleTrainers = "trainers"

// trainersConfig configures a process with many trainers of package trainer. They take tasks and sleep for the duration of a
// task.
type trainersConfig struct {
	Endpoint string // of etcd
	N        int
	Data     []string
	Protocol trainer.Protocol
	TaskTime time.Duration // on average
	Window   time.Duration // of a measurement of latencies
	Settle   time.Duration // from the fault to the second measurement
	Journal  string        // file for the tasks that were finished and acknowledged
}

// The replies of the process, in this order, with a window before the fault and a window after it. The process waits for its parent
// after joinedReply and after each windowReply. After the first window, it receives the address of the lost master.
type (
	joinedReply struct{ Seconds float64 }
	windowReply struct{ P50MS, P99MS, CallsPerS float64 }
	backReply   struct{ Seconds, MedianSeconds float64 }
	overReply   struct{ SessionsLost int64 }
)

// joinTogether is the number of trainers that join at a time. All trainers reconnect together only after the fault.
const joinTogether = 64

// crowd is the trainers.
type crowd struct {
	*trainersConfig
	follow   *trainer.Follow
	clients  []*trainer.Client
	lost     atomic.Int64 // sessions
	finished [][]finished // by trainer; written by its loop

	old  atomic.Pointer[string] // address of the master that went; nil: not yet
	fell atomic.Int64           // when it did, unix nanoseconds; 0: not yet
	back []atomic.Int64         // by trainer: nanoseconds until another one answered

	mu      sync.Mutex
	measure bool // guarded by mu, as is took
	took    load.Latencies
}

// finished is a line of the journal.
type finished struct {
	Pass     taskqueue.Pass `json:"pass"`
	Position int            `json:"position"`
}

// serve is the process: join, idle, work, measure, wait for the end of the fault, measure, leave.
func (t *trainersConfig) serve(ctx context.Context, p *parent) error {
	if err := openFiles(filesFor(t.N)); err != nil {
		return err
	}
	store, err := etcdstore.Open(ctx, etcdstore.Config{Endpoints: []string{t.Endpoint}})
	if err != nil {
		return err
	}
	defer store.Close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	c := &crowd{trainersConfig: t, follow: trainer.NewFollow(), clients: make([]*trainer.Client, t.N), finished: make([][]finished, t.N), back: make([]atomic.Int64, t.N)}
	var owned errgroup.Group
	owned.Go(func() error {
		for a := range store.WatchMasterAddr(ctx) {
			c.follow.Set(a.Addr, a.Term)
		}
		return nil
	})
	err = c.run(ctx, p)
	stop()
	return errors.Join(err, owned.Wait())
}

func (c *crowd) run(ctx context.Context, p *parent) error {
	began := time.Now()
	if err := c.join(ctx); err != nil {
		return err
	}
	if err := p.out.Encode(joinedReply{time.Since(began).Seconds()}); err != nil || !p.await() {
		return err
	}
	if err := c.clients[0].ReportDataset(ctx, c.Data); err != nil {
		return err
	}
	working, stop := context.WithCancel(ctx)
	defer stop()
	group, working := errgroup.WithContext(working)
	for i := range c.clients {
		group.Go(func() error {
			if err := c.work(working, i); err != nil {
				return fmt.Errorf("trainer %d: %w", i, err)
			}
			return nil
		})
	}
	err := c.phases(working, p)
	stop()
	if err := errors.Join(err, group.Wait()); err != nil {
		return err
	}
	if err := c.write(); err != nil {
		return err
	}
	return p.out.Encode(overReply{c.lost.Load()})
}

// phases reports the figures, and returns when its parent ends it.
func (c *crowd) phases(ctx context.Context, p *parent) error {
	// After the first tasks, which all began together, the trainers are spread over their tasks.
	if err := rest(ctx, 2*c.TaskTime); err != nil {
		return nil // the group has the reason
	}
	if err := p.out.Encode(c.window(ctx)); err != nil {
		return err
	}
	old, proceed := p.line()
	if !proceed {
		return nil
	}
	c.old.Store(&old)
	fell := time.Now()
	c.fell.Store(fell.UnixNano())
	told := make(chan windowReply, 1)
	var owned sync.WaitGroup
	defer owned.Wait()
	owned.Go(func() {
		_ = rest(ctx, c.Settle)
		told <- c.window(ctx)
	})
	back, err := c.awaitBack(ctx)
	if err != nil {
		return err
	}
	if err := p.out.Encode(back); err != nil {
		return err
	}
	err = p.out.Encode(<-told)
	p.await()
	return err
}

// filesFor is what n connections need, with some for etcd, files and connections that close.
func filesFor(n int) uint64 { return uint64(n) + 500 }

func (c *crowd) join(ctx context.Context) error {
	var joins errgroup.Group
	joins.SetLimit(joinTogether)
	for i := range c.clients {
		joins.Go(func() (err error) {
			c.clients[i], err = trainer.Join(ctx, c.config(i))
			return err
		})
	}
	return joins.Wait()
}

func (c *crowd) config(i int) trainer.Config {
	return trainer.Config{ID: trainerID(i), Locate: c.follow, Protocol: c.Protocol, Log: silent(), Answered: func(a trainer.Answer) { c.answered(i, a) }}
}

// answered notes when a trainer is back, and what its calls take.
func (c *crowd) answered(i int, a trainer.Answer) {
	if fell, old := c.fell.Load(), c.old.Load(); fell != 0 && a.Master != *old {
		c.back[i].CompareAndSwap(0, time.Now().UnixNano()-fell)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.measure && a.Call == "Next" {
		c.took.Add(a.Took)
	}
}

// window measures the duration of Next, the GetTask of a trainer with a session, for calls with an answer after its start.
func (c *crowd) window(ctx context.Context) windowReply {
	c.mu.Lock()
	c.measure, c.took = true, nil
	c.mu.Unlock()
	_ = rest(ctx, c.Window)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.measure = false
	if len(c.took) == 0 {
		return windowReply{}
	}
	q := load.Quantiles([]load.Latencies{c.took}, 0.5, 0.99)
	return windowReply{millis(q[0]), millis(q[1]), float64(len(c.took)) / c.Window.Seconds()}
}

const backPatience = 2 * time.Minute

// awaitBack waits until the next leader has answered every trainer.
func (c *crowd) awaitBack(ctx context.Context) (backReply, error) {
	deadline := time.Now().Add(backPatience)
	for {
		seconds := make([]float64, 0, len(c.back))
		for i := range c.back {
			if took := c.back[i].Load(); took > 0 {
				seconds = append(seconds, time.Duration(took).Seconds())
			}
		}
		if len(seconds) == len(c.back) {
			identity := func(s float64) float64 { return s }
			return backReply{Seconds: maxOf(seconds), MedianSeconds: median(seconds, identity)}, nil
		}
		if time.Now().After(deadline) {
			return backReply{}, fmt.Errorf("%d of %d trainers are back after %v", len(seconds), len(c.back), backPatience)
		}
		if err := rest(ctx, 20*time.Millisecond); err != nil {
			return backReply{}, err
		}
	}
}

func maxOf(values []float64) (most float64) {
	for _, v := range values {
		most = max(most, v)
	}
	return most
}

// work is the life of a trainer, until ctx ends. A lost session is replaced by a new one.
func (c *crowd) work(ctx context.Context, i int) error {
	for {
		err := c.session(ctx, i)
		if ctx.Err() != nil {
			_ = c.clients[i].Close() // a busy master may answer the farewell too late: what was acknowledged is known
			return nil
		}
		if !errors.Is(err, trainer.ErrSessionLost) {
			return errors.Join(err, c.clients[i].Close())
		}
		c.lost.Add(1)
		_ = c.clients[i].Close() // the master knows it no more
		if c.clients[i], err = trainer.Join(context.WithoutCancel(ctx), c.config(i)); err != nil {
			return err
		}
	}
}

// session trains until it ends. A finish counts when the answer to its request has
// arrived: when Next returns for the second time after it.
func (c *crowd) session(ctx context.Context, i int) error {
	var done, said *taskqueue.Task
	for {
		task, err := c.clients[i].Next(ctx, done)
		if err != nil {
			return err
		}
		if said != nil {
			c.finished[i] = append(c.finished[i], finished{said.Token.Pass, said.Token.Position})
		}
		said, done = done, task
		if err := rest(ctx, time.Duration(rand.Int64N(int64(2*c.TaskTime)))); err != nil {
			return err
		}
	}
}

func (c *crowd) write() error {
	file, err := os.Create(c.Journal)
	if err != nil {
		return err
	}
	lines := json.NewEncoder(file)
	for _, list := range c.finished {
		for _, f := range list {
			if err := lines.Encode(f); err != nil {
				return errors.Join(err, file.Close())
			}
		}
	}
	return file.Close()
}
