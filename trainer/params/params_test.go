package params_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver"
	"trainmaster/pserver/dataport"
	"trainmaster/pserver/pservertest"
	"trainmaster/trainer/params"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func quiet() *logrus.Entry {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return logrus.NewEntry(log)
}

// startShards starts real servers and returns their addresses and how to stop each.
var startShards = pservertest.Start

func fixed(addrs []string) func(context.Context) ([]string, error) {
	return func(context.Context) ([]string, error) { return slices.Clone(addrs), nil }
}

func config(addrs []string, mode params.Mode) params.Config {
	return params.Config{
		Addrs: fixed(addrs), Mode: mode, Optimizer: params.Optimizer{Kind: params.SGD, LearningRate: 1},
		Incarnation: 1, RetryMin: time.Millisecond, RetryMax: 20 * time.Millisecond, Log: quiet(),
	}
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("the test took more than a minute"))
	t.Cleanup(cancel)
	return ctx
}

func connect(t testing.TB, cfg params.Config) *params.Client {
	t.Helper()
	c, err := params.Connect(within(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func tensors(value float32) []params.Tensor {
	list := []params.Tensor{{Name: "w", Shape: []int{500, 1000}}, {Name: "b", Shape: []int{33}}, {Name: "a", Shape: []int{3, 3}}}
	for i, n := range []int{500_000, 33, 9} {
		list[i].Data = slices.Repeat([]float32{value}, n)
	}
	return list
}

func holds(list []params.Tensor, value float32) bool {
	return !slices.ContainsFunc(list, func(tensor params.Tensor) bool {
		return slices.ContainsFunc(tensor.Data, func(v float32) bool { return v != value })
	})
}

// cutter is a proxy that breaks every connection after some bytes, in either
// direction, mostly in the middle of a frame.
type cutter struct {
	listener net.Listener
	target   string
	random   func() int64
	cuts     int
	mu       sync.Mutex
	work     sync.WaitGroup
}

func startCutter(t testing.TB, target string, random func() int64) *cutter {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{listener: listener, target: target, random: random}
	c.work.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", target)
			if err != nil {
				in.Close()
				continue
			}
			c.mu.Lock()
			up, down := c.random(), c.random()
			c.cuts++
			c.mu.Unlock()
			c.work.Go(func() { c.pipe(out, in, up) })
			c.work.Go(func() { c.pipe(in, out, down) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		c.work.Wait()
	})
	return c
}

func (c *cutter) pipe(to, from net.Conn, bytes int64) {
	io.CopyN(to, from, bytes)
	to.Close()
	from.Close()
}

// Connections break repeatedly, before, in and after frames. Every push is
// applied once.
func TestPushesThroughBrokenConnections(t *testing.T) {
	for _, dtype := range params.WireDTypes() {
		t.Run(dtype, func(t *testing.T) { pushThroughBrokenConnections(t, params.WireDType(dtype)) })
	}
}

func pushThroughBrokenConnections(t *testing.T, dtype params.WireDType) {
	addrs, _ := startShards(t, 2, pserver.Config{DataSocket: pserver.SocketOff})
	direct := connect(t, func() params.Config {
		cfg := config(addrs, params.Async)
		cfg.Ordinal, cfg.Incarnation = 7, 8
		return cfg
	}())
	values := tensors(0)
	if err := direct.Init(within(t), values); err != nil {
		t.Fatal(err)
	}
	var broken []*cutter
	var through []string
	for i, addr := range addrs {
		r := rand.New(rand.NewPCG(1, uint64(i)))
		c := startCutter(t, addr, func() int64 { return 200 + r.Int64N(6_000_000) })
		broken, through = append(broken, c), append(through, c.listener.Addr().String())
	}
	cfg := config(through, params.Async)
	cfg.WireDType = dtype
	c := connect(t, cfg)
	if err := c.Init(within(t), values); err != nil {
		t.Fatal(err)
	}
	const steps = 60
	grads := tensors(-1)
	for step := uint64(1); step <= steps; step++ {
		version, err := c.PushPull(within(t), step, 1, grads, values)
		if err != nil || version != step || !holds(values, float32(step)) {
			t.Fatalf("step %d: version %d, %v, first values %v %v %v", step, version, err, values[0].Data[0], values[1].Data[0], values[2].Data[0])
		}
	}
	cuts := 0
	for _, b := range broken {
		b.mu.Lock()
		cuts += b.cuts
		b.mu.Unlock()
	}
	if cuts < 10 {
		t.Errorf("only %d connections: nothing was broken", cuts)
	}
	t.Logf("%d connections for %d steps", cuts, steps)
}

// A caller that changes its gradients during a call succeeds with the changed values at the second attempt. The server would refuse
// the old checksum forever.
func TestGradientsThatChangeMeanwhile(t *testing.T) {
	addrs, _ := startShards(t, 1, pserver.Config{DataSocket: pserver.SocketOff})
	values, grads := tensors(0), tensors(-1)
	random := rand.New(rand.NewPCG(1, 1))
	broken := startCutter(t, addrs[0], func() int64 { return 2_000_000 + random.Int64N(1_900_000) })
	cfg := config([]string{broken.listener.Addr().String()}, params.Async)
	find, pushing := cfg.Addrs, false
	cfg.Addrs = func(ctx context.Context) ([]string, error) {
		if pushing { // the connection broke, and nothing is being sent
			grads[0].Data[0]--
		}
		return find(ctx)
	}
	c := connect(t, cfg)
	if err := c.Init(within(t), values); err != nil {
		t.Fatal(err)
	}
	pushing = true
	for step := uint64(1); grads[0].Data[0] > -4; step++ {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, err := c.PushPull(ctx, step, 1, grads, values)
		cancel()
		if err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
	}
}

// The initializer vanishes after its claim. Another trainer waits and takes over when the claim expires.
func TestClaimOfDeadInitializerExpires(t *testing.T) {
	const patience = 300 * time.Millisecond
	addrs, _ := startShards(t, 2, pserver.Config{InitTimeout: patience})
	conn, err := grpc.NewClient("passthrough:///"+addrs[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	model := &pb.ParameterModel{
		Optimizer: &pb.ParameterOptimizer{Kind: params.SGD, LearningRate: 1}, Mode: pb.UpdateMode_UPDATE_MODE_ASYNC, Shards: 2,
	}
	for _, tensor := range tensors(0) {
		spec := &pb.ParameterTensor{Name: tensor.Name}
		for _, d := range tensor.Shape {
			spec.Shape = append(spec.Shape, int64(d))
		}
		model.Tensors = append(model.Tensors, spec)
	}
	reply, err := pb.NewParameterServerClient(conn).InitParameters(within(t), &pb.InitParametersRequest{Model: model, Incarnation: 1})
	if err != nil || reply.GetOutcome() != pb.InitParametersReply_OUTCOME_CLAIMED {
		t.Fatalf("claim: %v, %v", reply, err)
	}
	began := time.Now()

	cfg := config(addrs, params.Async)
	cfg.Ordinal, cfg.Incarnation = 1, 2
	values := tensors(2)
	if err := connect(t, cfg).Init(within(t), values); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < patience {
		t.Errorf("taken over after %v, the claim is good for %v", took, patience)
	}
	if !holds(values, 2) {
		t.Errorf("parameters start at %v, expected the second trainer's", values[0].Data[0])
	}
}

// Many trainers initialize in parallel: all receive the values of one of them.
func TestOneInitializes(t *testing.T) {
	addrs, _ := startShards(t, 3, pserver.Config{})
	var group sync.WaitGroup
	seen := make([]float32, 8)
	for i := range seen {
		group.Go(func() {
			cfg := config(addrs, params.Async)
			cfg.Ordinal, cfg.Incarnation = uint32(i), uint64(i)+1
			c := connect(t, cfg)
			values := tensors(float32(i) + 1)
			if err := c.Init(within(t), values); err != nil {
				t.Error(err)
			}
			if seen[i] = values[0].Data[0]; !holds(values, seen[i]) {
				t.Error("parameters of several trainers")
			}
		})
	}
	group.Wait()
	if slices.Min(seen) != slices.Max(seen) {
		t.Errorf("trainers see %v", seen)
	}
}

// Without a checkpoint a restart loses the parameters. The result is an error, not an endless wait.
func TestParametersLost(t *testing.T) {
	addrs, stop := startShards(t, 1, pserver.Config{})
	book := make(chan []string, 1)
	book <- addrs
	cfg := config(addrs, params.Async)
	cfg.Addrs = func(ctx context.Context) ([]string, error) {
		select {
		case a := <-book:
			book <- a
			return a, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	c := connect(t, cfg)
	values := tensors(1)
	if err := c.Init(within(t), values); err != nil {
		t.Fatal(err)
	}
	<-book
	stop[0]()
	fresh, _ := startShards(t, 1, pserver.Config{})
	book <- fresh
	if _, err := c.PushPull(within(t), 1, 1, tensors(1), values); !errors.Is(err, params.ErrUninitialized) {
		t.Errorf("push at a server without parameters: %v, expected %v", err, params.ErrUninitialized)
	}
}

// While a server is away a call waits, and ends with its context.
func TestContextEndsAWait(t *testing.T) {
	addrs, stop := startShards(t, 1, pserver.Config{})
	c := connect(t, config(addrs, params.Async))
	values := tensors(1)
	if err := c.Init(within(t), values); err != nil {
		t.Fatal(err)
	}
	stop[0]()
	why := errors.New("job ended")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(100*time.Millisecond, func() { cancel(why) })
	if _, err := c.Pull(ctx, values, 0); !errors.Is(err, why) {
		t.Errorf("pull from a server that is away: %v, expected %v", err, why)
	}
}

// A pull in mode sync waits for its version, and its context can end that too.
func TestContextEndsAWaitForAVersion(t *testing.T) {
	addrs, _ := startShards(t, 2, pserver.Config{Limits: dataport.Limits{PullWait: 50 * time.Millisecond}})
	c := connect(t, config(addrs, params.Sync))
	values := tensors(1)
	if err := c.Init(within(t), values); err != nil {
		t.Fatal(err)
	}
	why := errors.New("job ended")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(200*time.Millisecond, func() { cancel(why) }) // several answers "not yet" later
	if _, err := c.Pull(ctx, values, 1); !errors.Is(err, why) {
		t.Errorf("pull of an uncommitted version: %v, expected %v", err, why)
	}
	if _, err := c.Pull(within(t), values, 0); err != nil {
		t.Errorf("the client after that: %v", err)
	}
}

func TestPushOfReplacedTrainerReturnsErrFenced(t *testing.T) {
	addrs, _ := startShards(t, 1, pserver.Config{})
	old := connect(t, config(addrs, params.Async))
	values := tensors(1)
	if err := old.Init(within(t), values); err != nil {
		t.Fatal(err)
	}
	cfg := config(addrs, params.Async)
	cfg.Incarnation = 2
	if err := connect(t, cfg).Init(within(t), values); err != nil {
		t.Fatal(err)
	}
	if _, err := old.PushPull(within(t), 1, 1, tensors(1), values); !errors.Is(err, params.ErrFenced) {
		t.Errorf("push of the older incarnation: %v, expected %v", err, params.ErrFenced)
	}
}

func TestMistakesAreNamed(t *testing.T) {
	addrs, _ := startShards(t, 1, pserver.Config{})
	for want, change := range map[string]func(*params.Config){
		"Addrs is nil":               func(c *params.Config) { c.Addrs = nil },
		"Mode is mode 0":             func(c *params.Config) { c.Mode = 0 },
		`optimizer "lion": expected`: func(c *params.Config) { c.Optimizer.Kind = "lion" },
		"learning-rate is 0":         func(c *params.Config) { c.Optimizer.LearningRate = 0 },
		`"sgd": momentum is 0.9`:     func(c *params.Config) { c.Optimizer.Momentum = 0.9 },
		"Incarnation is 0":           func(c *params.Config) { c.Incarnation = 0 },
		"RetryMax is -1s":            func(c *params.Config) { c.RetryMax = -time.Second },
		"found 0 parameter servers":  func(c *params.Config) { c.Addrs = fixed(nil) },
		"find the parameter servers: why": func(c *params.Config) {
			c.Addrs = func(context.Context) ([]string, error) { return nil, errors.New("why") }
		},
	} {
		cfg := config(addrs, params.Async)
		change(&cfg)
		if _, err := params.Connect(within(t), cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Connect: %v, expected %q", err, want)
		}
	}

	c := connect(t, config(addrs, params.Async))
	if _, err := c.Pull(within(t), tensors(0), 0); err == nil || !strings.Contains(err.Error(), "call Init first") {
		t.Errorf("Pull before Init: %v", err)
	}
	values := tensors(0)
	if err := c.Init(within(t), values); err != nil {
		t.Fatal(err)
	}
	short, renamed := tensors(0), tensors(0)
	short[1].Data = short[1].Data[:32]
	renamed[2].Name = "z"
	for want, call := range map[string]func() error{
		"2 tensors, the model has 3": func() error { _, err := c.Pull(within(t), values[:2], 0); return err },
		`"b" [33] has 32 elements`:   func() error { _, err := c.PushPull(within(t), 1, 1, short, values); return err },
		`the model has "a" [3 3]`:    func() error { _, err := c.PushPull(within(t), 1, 1, values, renamed); return err },
		"steps start at 1":           func() error { _, err := c.PushPull(within(t), 0, 1, values, values); return err },
		"scale is -1":                func() error { _, err := c.PushPull(within(t), 1, -1, values, values); return err },
		"stage is for mode sync":     func() error { return c.Stage(within(t), 0, values, 1) },
	} {
		if err := call(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, expected %q", err, want)
		}
	}
}
