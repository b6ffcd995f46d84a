package pserver_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"

	"trainmaster/pserver"
	"trainmaster/pserver/floats"
	"trainmaster/trainer/params"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		childMain()
		return
	}
	goleak.VerifyTestMain(m)
}

// book is the registry of a test: it assigns indices and records their holders.
type book struct {
	mu       sync.Mutex
	addrs    []string
	changed  chan struct{}
	job      pserver.JobState
	leader   *setTaker  // takes the sets that servers ask for; nil: there is none
	asked    sync.Mutex // one such set at a time
	noLeader bool       // none is to be added
}

// state is the job state that servers receive: one job instance, unless a test sets another.
// testJob is the id of the job of a test: masters and trainers of other tests can reach a server whose port was theirs.
const testJob = "6a6f626a6f626a6f626a6f626a6f626a" // jobjobjobjobjobj

func (b *book) state() pserver.JobState {
	b.mu.Lock()
	defer b.mu.Unlock()
	job := b.job
	job.Led = b.leader != nil
	job.ID = cmp.Or(job.ID, testJob)
	if job.Shards == 0 {
		job.Shards = len(b.addrs)
	}
	return job
}

func newBook(shards int) *book {
	return &book{addrs: make([]string, shards), changed: make(chan struct{})}
}

func (b *book) set(index int, addr string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addrs[index] = addr
	close(b.changed)
	b.changed = make(chan struct{})
}

// complete waits until every index is taken.
func (b *book) complete(ctx context.Context) ([]string, error) {
	for {
		b.mu.Lock()
		addrs, changed := append([]string(nil), b.addrs...), b.changed
		b.mu.Unlock()
		whole := true
		for _, a := range addrs {
			whole = whole && a != ""
		}
		if whole {
			return addrs, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// present returns the address of each index, "" for an index without a server.
func (b *book) present(context.Context) ([]string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.addrs), nil
}

// place is the registry for one index, and its claim.
type place struct {
	book  *book
	index int
	job   pserver.JobState // at the claim
	lost  chan struct{}
	once  sync.Once
}

func (p *place) lose() { p.once.Do(func() { close(p.lost) }) }

func (b *book) place(index int) *place {
	return &place{book: b, index: index, lost: make(chan struct{})}
}

func (p *place) ClaimPS(_ context.Context, addr string, _ func(string)) (pserver.Claim, error) {
	p.job = p.book.state()
	p.book.set(p.index, addr)
	return p, nil
}
func (p *place) Index() int                                        { return p.index }
func (p *place) Job() pserver.JobState                             { return p.job }
func (p *place) Current(context.Context) (pserver.JobState, error) { return p.book.state(), nil }

// AskSet takes a set. If a server is missing or not ready, there is none; the servers ask again.
func (p *place) AskSet(ctx context.Context) error {
	return p.book.takeSet(ctx)
}

func (b *book) takeSet(ctx context.Context) error {
	b.mu.Lock()
	leader := b.leader
	b.mu.Unlock()
	if leader == nil {
		return nil
	}
	return leader.takeWanted(ctx)
}

func (p *place) Lost() <-chan struct{} { return p.lost }
func (p *place) Release(context.Context) error {
	p.book.set(p.index, "")
	return nil
}

func quiet() *logrus.Entry {
	log := logrus.New()
	log.SetOutput(io.Discard)
	if os.Getenv("PSERVER_TEST_LOG") != "" {
		log.SetOutput(os.Stderr)
		log.SetLevel(logrus.DebugLevel)
	}
	return logrus.NewEntry(log)
}

// server is a parameter server in this process.
type server struct {
	*place
	addr string
	stop context.CancelFunc
	done chan error
}

func startServer(t testing.TB, b *book, index int, cfg pserver.Config) *server {
	t.Helper()
	if cfg.CheckpointDir != "" && b.leader == nil && !b.noLeader {
		newSetTaker(t, b)
	}
	p := b.place(index)
	cfg.Registry, cfg.Log = p, quiet()
	s, err := pserver.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	run := &server{place: p, addr: s.Addr(), stop: stop, done: make(chan error, 1)}
	go func() { run.done <- s.Run(ctx) }()
	t.Cleanup(func() {
		run.lose()
		stop()
		run.wait()
	})
	return run
}

// wait returns what Run returned, also when asked again.
func (s *server) wait() error {
	select {
	case err := <-s.done:
		s.done <- err
		return err
	case <-time.After(time.Minute):
		return errors.New("the server runs on, a minute later")
	}
}

// leave ends a server without a word, as a lost lease does: it saves nothing.
func (s *server) leave(t testing.TB) {
	t.Helper()
	s.lose()
	if err := s.wait(); !errors.Is(err, pserver.ErrLeaseLost) {
		t.Fatal(err)
	}
}

func startServers(t testing.TB, shards int, cfg pserver.Config) *book {
	t.Helper()
	b := newBook(shards)
	for i := range shards {
		startServer(t, b, i, cfg)
	}
	return b
}

var (
	plainSGD = params.Optimizer{Kind: params.SGD, LearningRate: 0.5}
	heavy    = params.Optimizer{Kind: params.Momentum, LearningRate: 0.1, Momentum: 0.9}
)

func connect(t testing.TB, b *book, cfg params.Config) *params.Client {
	t.Helper()
	cfg.Addrs, cfg.Log = b.complete, quiet()
	if cfg.Incarnation == 0 {
		cfg.Incarnation = uint64(cfg.Ordinal) + 1
	}
	if cfg.Optimizer == (params.Optimizer{}) {
		cfg.Optimizer = plainSGD
	}
	c, err := params.Connect(within(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// within is a context that no test should outlast.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Minute, errors.New("the test took more than 10 minutes"))
	t.Cleanup(cancel)
	return ctx
}

// filling gives a tensor of a model its elements.
type filling func(tensor int, data []float32)

// tensors makes the tensors of a model; every shard of three gets something.
func tensors(fill filling) []params.Tensor {
	return modelOf(fill,
		params.Tensor{Name: "w1", Shape: []int{600, 1000}}, params.Tensor{Name: "b1", Shape: []int{1000}},
		params.Tensor{Name: "w2", Shape: []int{1000, 10}}, params.Tensor{Name: "b2", Shape: []int{10}}, params.Tensor{Name: "scale"})
}

func modelOf(fill filling, list ...params.Tensor) []params.Tensor {
	for i := range list {
		n := 1
		for _, d := range list[i].Shape {
			n *= d
		}
		list[i].Data = make([]float32, n)
		fill(i, list[i].Data)
	}
	return list
}

// clone is another model of the same elements.
func clone(model []params.Tensor) []params.Tensor {
	model = slices.Clone(model)
	for i := range model {
		model[i].Data = slices.Clone(model[i].Data)
	}
	return model
}

func constant(v float32) filling {
	return func(_ int, data []float32) {
		data[0] = v
		for n := 1; n < len(data); n *= 2 {
			copy(data[n:], data[:n])
		}
	}
}

// normal is what random draws from: the race detector makes a draw for every element of every model take most of a test.
var normal = sync.OnceValue(func() []float32 {
	r, list := rand.New(rand.NewPCG(1, 1)), make([]float32, 1<<16)
	for i := range list {
		list[i] = float32(r.NormFloat64())
	}
	return list
})

// random fills with runs of normal, each from a place by chance. Their length divides that of no block.
func random(seed uint64) filling {
	const run = 1021
	r := rand.New(rand.NewPCG(seed, 0))
	return func(_ int, data []float32) {
		for at := 0; at < len(data); at += run {
			copy(data[at:min(at+run, len(data))], normal()[r.IntN(len(normal())-run):])
		}
	}
}

func mustInit(t testing.TB, c *params.Client, list []params.Tensor) {
	t.Helper()
	if err := c.Init(within(t), list); err != nil {
		t.Fatal(err)
	}
}

// differ names the first element in which two sets of tensors are not equal, bit by bit.
func differ(a, b []params.Tensor) error {
	for i := range a {
		if bytes.Equal(floats.Bytes(a[i].Data), floats.Bytes(b[i].Data)) { // without a look at each by the race detector
			continue
		}
		for j := range a[i].Data {
			if a[i].Data[j] != b[i].Data[j] {
				return fmt.Errorf("%s[%d] is %v, expected %v", a[i].Name, j, a[i].Data[j], b[i].Data[j])
			}
		}
	}
	return nil
}
