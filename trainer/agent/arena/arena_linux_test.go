package arena

import (
	"context"
	"encoding/json"
	"errors"
	"io"
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
	"trainmaster/pserver/pservertest"
	"trainmaster/taskqueue"
	"trainmaster/trainer/params"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// startServers starts real servers in this process.
func startServers(t testing.TB, n int) []string {
	t.Helper()
	addrs, _ := pservertest.Start(t, n, pserver.Config{})
	return addrs
}

func quiet() *logrus.Entry {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return logrus.NewEntry(log)
}

// session is a session of a job, and its master: it commits a step when as many trainers as there are have staged.
type session struct {
	t           testing.TB
	job         string // "": the trainer does not state it
	sync        bool
	incarnation uint64
	failed      context.Context // ends when the job fails; may be nil
	step        func(ctx context.Context, version uint64, ordinal taskqueue.Ordinal, incarnation uint64, records int) (uint64, bool, error)
}

func (s *session) Ordinal() taskqueue.Ordinal { return taskqueue.Ordinal(s.incarnation) }
func (s *session) Incarnation() uint64        { return s.incarnation }
func (s *session) JobID() string              { return s.job }
func (s *session) Epoch() uint32              { return 0 }
func (s *session) Sync() bool                 { return s.sync }
func (s *session) UntilFailed(ctx context.Context) (context.Context, context.CancelFunc) {
	bounded, cancel := context.WithCancelCause(ctx)
	if s.failed == nil {
		return bounded, func() { cancel(nil) }
	}
	stop := context.AfterFunc(s.failed, func() { cancel(context.Cause(s.failed)) })
	return bounded, func() { stop(); cancel(nil) }
}
func (s *session) Staged(ctx context.Context, version uint64, records int) (uint64, bool, error) {
	return s.step(ctx, version, s.Ordinal(), s.incarnation, records)
}

// opened is an arena whose memory this test reads and writes, as the training process does.
type opened struct {
	*Arena
	t   testing.TB
	seq uint64
	m   *model
}

func open(t testing.TB, addrs []string, s *session, settings string) *opened {
	t.Helper()
	a := New(context.Background(), Config{Servers: func(context.Context) ([]string, error) { return slices.Clone(addrs), nil }, Log: quiet()})
	t.Cleanup(a.Close)
	if _, _, err := a.Open(s, s, []byte(settings)); err != nil {
		t.Fatal(err)
	}
	return &opened{Arena: a, t: t, m: a.model}
}

const twoTensors = `{"id":3,"op":"ps_open","wait":10,"tensors":[{"name":"w","shape":[2,3],"dtype":"float32"},{"name":"b","shape":[],"dtype":"float32"}],"optimizer":{"kind":"sgd","learning_rate":0.5}}`

func (o *opened) fill(list []params.Tensor, value float32) {
	for _, x := range list {
		for i := range x.Data {
			x.Data[i] = value
		}
	}
}

func (o *opened) try(r Request) (Reply, error) {
	o.seq++
	r.Seq = o.seq
	ctx, cancel := context.WithTimeout(o.t.Context(), time.Minute)
	defer cancel()
	return o.Do(ctx, r)
}

func (o *opened) do(r Request) Reply {
	o.t.Helper()
	reply, err := o.try(r)
	if err != nil {
		o.t.Fatalf("%s: %v", r.Op, err)
	}
	return reply
}

func (o *opened) want(value float32) {
	o.t.Helper()
	for _, x := range o.m.parameters {
		for _, v := range x.Data {
			if v != value {
				o.t.Fatalf("parameters: expected %v, found %s %v", value, x.Name, x.Data)
			}
		}
	}
}

// The parameters of the first trainer are the parameters of the job, and each push changes them once. Steps continue from the updates of other trainers.
func TestPushes(t *testing.T) {
	addrs := startServers(t, 2)
	a, b := open(t, addrs, &session{t: t, incarnation: 1}, twoTensors), open(t, addrs, &session{t: t, incarnation: 2}, twoTensors)
	a.fill(a.m.parameters, 4)
	b.fill(b.m.parameters, 9)
	a.do(Request{Op: "ps_init"})
	b.do(Request{Op: "ps_init"})
	b.want(4)
	a.fill(a.m.gradients, 2)
	if r := a.do(Request{Op: "push_pull"}); r.Step != 1 || r.Version != 1 {
		t.Errorf("the first push: expected step 1 and version 1, found %+v", r)
	}
	a.want(3)
	half := float32(0.5)
	a.do(Request{Op: "push", Scale: &half})
	a.want(3)
	if r := b.do(Request{Op: "pull"}); r.Version != 2 {
		t.Errorf("pull: expected version 2, found %+v", r)
	}
	b.want(2.5)
	b.fill(b.m.gradients, 1)
	if r := b.do(Request{Op: "push_pull"}); r.Step != 3 || r.Version != 3 {
		t.Errorf("a push after two updates: expected step 3 and version 3, found %+v", r)
	}
	b.want(2)
	// F539: servers would take such a push for a repetition.
	if _, err := b.try(Request{Op: "push", Step: 3}); err == nil || !strings.Contains(err.Error(), "step: expected more than 3, the step of the last push, found 3") {
		t.Errorf("a step that does not grow: expected an error, found %v", err)
	}
}

// F410: a request gives up, and comes again: the gradient is applied once.
func TestRepeatedOperationRunsOnce(t *testing.T) {
	a := open(t, startServers(t, 1), &session{t: t, incarnation: 1}, twoTensors)
	a.fill(a.m.parameters, 8)
	a.do(Request{Op: "ps_init"})
	a.fill(a.m.gradients, 2)
	a.seq++
	push := Request{Op: "push_pull", Seq: a.seq}
	given, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.Do(given, push); err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	for range 3 {
		if r, err := a.Do(t.Context(), push); err != nil || r.Version != 1 {
			t.Errorf("expected version 1, found %+v, %v", r, err)
		}
	}
	a.want(7)
}

// F411: a gradient that is not finite changes nothing, and the error names the tensor. The next push works.
func TestNotFiniteGradientIsNamed(t *testing.T) {
	for _, dtype := range []string{"float32", "bfloat16"} {
		t.Run(dtype, func(t *testing.T) {
			a := open(t, startServers(t, 2), &session{t: t, incarnation: 1}, strings.Replace(twoTensors, `"optimizer"`, `"wire_dtype":"`+dtype+`","optimizer"`, 1))
			a.fill(a.m.parameters, 4)
			a.do(Request{Op: "ps_init"})
			a.fill(a.m.gradients, 2)
			zero := float32(0)
			a.m.gradients[0].Data[4] = zero / zero
			_, err := a.try(Request{Op: "push_pull"})
			if bad, ok := errors.AsType[*params.NotFiniteError](err); !ok || bad.Tensor != "w" || !strings.Contains(err.Error(), `gradient "w": element 4 is NaN`) {
				t.Errorf("expected an error with the tensor, found %v", err)
			}
			a.m.gradients[0].Data[4] = 2
			if r := a.do(Request{Op: "push_pull"}); r.Version != 1 {
				t.Errorf("expected version 1, found %+v", r)
			}
			a.want(3)
		})
	}
}

// committer commits a step when all trainers have staged.
type committer struct {
	t        testing.TB
	addrs    []string
	trainers int

	mu      sync.Mutex
	version uint64
	staged  []*pb.StepContributor
	changed chan struct{}
}

func (c *committer) step(ctx context.Context, version uint64, ordinal taskqueue.Ordinal, incarnation uint64, records int) (uint64, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if version < c.version {
		return c.version, false, nil // late
	}
	if records > 0 {
		c.staged = append(c.staged, &pb.StepContributor{Ordinal: uint32(ordinal), Incarnation: incarnation, Records: uint32(records)})
	}
	if len(c.staged) == c.trainers {
		for _, addr := range c.addrs {
			conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				return 0, false, err
			}
			_, err = pb.NewParameterServerClient(conn).CommitStep(ctx, &pb.CommitStepRequest{Version: version + 1, Contributors: c.staged})
			if err := errors.Join(err, conn.Close()); err != nil {
				return 0, false, err
			}
		}
		c.version, c.staged = version+1, nil
		close(c.changed)
		c.changed = make(chan struct{})
	}
	for c.version == version {
		changed := c.changed
		c.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			c.mu.Lock()
			return 0, false, context.Cause(ctx)
		}
		c.mu.Lock()
	}
	return c.version, true, nil
}

// F412: two trainers stage sums, and the step has the mean over all records. A trainer that is late learns so, has the new parameters, and its gradient is
// in no version before it is computed again.
func TestStages(t *testing.T) {
	addrs := startServers(t, 2)
	c := &committer{t: t, addrs: addrs, trainers: 2, changed: make(chan struct{})}
	a, b := open(t, addrs, &session{t: t, sync: true, incarnation: 1, step: c.step}, twoTensors), open(t, addrs, &session{t: t, sync: true, incarnation: 2, step: c.step}, twoTensors)
	a.fill(a.m.parameters, 4)
	a.do(Request{Op: "ps_init"})
	b.do(Request{Op: "ps_init"})
	a.fill(a.m.gradients, 3) // over 1 record
	b.fill(b.m.gradients, 9) // over 3 records
	var group sync.WaitGroup
	group.Go(func() {
		if r := a.do(Request{Op: "stage", Records: 1}); !*r.Included || r.Version != 1 {
			t.Errorf("expected to be in version 1, found %+v", r)
		}
	})
	if r := b.do(Request{Op: "stage", Records: 3}); !*r.Included || r.Version != 1 {
		t.Errorf("expected to be in version 1, found %+v", r)
	}
	group.Wait()
	a.want(2.5) // 4 - 0.5 * (3 + 9) / 4
	b.want(2.5)

	c.mu.Lock()
	c.trainers = 1
	c.mu.Unlock()
	a.fill(a.m.gradients, 1)
	a.do(Request{Op: "stage", Records: 1})
	b.fill(b.m.gradients, 100)
	if r := b.do(Request{Op: "stage", Records: 3}); *r.Included || r.Version != 2 {
		t.Errorf("a late gradient: expected version 2 without it, found %+v", r)
	}
	b.want(2)
	b.fill(b.m.gradients, 6)
	if r := b.do(Request{Op: "stage", Records: 3}); !*r.Included || r.Version != 3 {
		t.Errorf("the gradient again: expected to be in version 3, found %+v", r)
	}
	b.want(1)
}

// An operation that waits for a server ends when the job fails.
func TestFailedJobEndsAnOperation(t *testing.T) {
	failed, fail := context.WithCancelCause(context.Background())
	defer fail(nil)
	broken := errors.New("the job has failed")
	a := New(context.Background(), Config{Servers: func(ctx context.Context) ([]string, error) {
		fail(broken)
		<-ctx.Done()
		return nil, ctx.Err()
	}, Log: quiet()})
	t.Cleanup(a.Close)
	s := &session{t: t, incarnation: 1, failed: failed}
	if _, _, err := a.Open(s, s, []byte(twoTensors)); err != nil {
		t.Fatal(err)
	}
	if _, err := (&opened{Arena: a, t: t, m: a.model}).try(Request{Op: "ps_init"}); !errors.Is(err, broken) {
		t.Errorf("expected the reason, found %v", err)
	}
}

// F413: the error of an impossible request names the expected value.
func TestErrorsOfTheArena(t *testing.T) {
	servers := func(context.Context) ([]string, error) { return nil, errors.New("not asked") }
	s := &session{t: t, incarnation: 1}
	with := func(change func(map[string]any)) []byte {
		var fields map[string]any
		if err := json.Unmarshal([]byte(twoTensors), &fields); err != nil {
			t.Fatal(err)
		}
		change(fields)
		body, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	tensors := func(list ...Spec) []byte { return with(func(f map[string]any) { f["tensors"] = list }) }
	for words, body := range map[string][]byte{
		"tensors: expected at least one":                            tensors(),
		`tensor "w": expected a name that no other tensor has`:      tensors(Spec{"w", nil, "float32"}, Spec{"w", nil, "float32"}),
		`tensor "h": expected dtype float32, found "float16"`:       tensors(Spec{"h", []int{2}, "float16"}),
		`tensor "z": expected 1 to 2147483647 elements, found`:      tensors(Spec{"z", []int{2, 0}, "float32"}),
		`tensor "l": expected 1 to 2147483647 elements, found`:      tensors(Spec{"l", []int{1 << 20, 1 << 20}, "float32"}),
		"mode: expected async, as --update-mode of the master":      with(func(f map[string]any) { f["mode"] = "sync" }),
		`optimizer "lion": expected one of sgd, momentum`:           with(func(f map[string]any) { f["optimizer"] = map[string]any{"kind": "lion"} }),
		`"betas": expected a setting of a model, a table`:           with(func(f map[string]any) { f["optimizer"] = map[string]any{"kind": "adam", "betas": 1} }),
		`optimizer.learning_rate: expected a number, found string`:  with(func(f map[string]any) { f["optimizer"] = map[string]any{"kind": "sgd", "learning_rate": "x"} }),
		`tables.name: expected a string, found number`:              with(func(f map[string]any) { f["tables"] = []any{map[string]any{"name": 4}} }),
		`tables.dim: expected a whole number, found number 2.5`:     with(func(f map[string]any) { f["tables"] = []any{map[string]any{"name": "w", "dim": 2.5}} }),
		`WireDType is "float16": expected float32 or bfloat16`:      with(func(f map[string]any) { f["wire_dtype"] = "float16" }),
		"staleness limit 3 without a policy: expected policy scale": with(func(f map[string]any) { f["staleness"] = map[string]any{"limit": 3} }),
	} {
		a := New(t.Context(), Config{Servers: servers, Log: quiet()})
		_, _, err := a.Open(s, s, body)
		if _, ok := errors.AsType[*InvalidError](err); !ok || !strings.Contains(err.Error(), words) {
			t.Errorf("expected %q, found %v", words, err)
		}
		a.Close()
	}
	a := New(t.Context(), Config{Log: quiet()})
	if _, _, err := a.Open(s, s, []byte(twoTensors)); err == nil || !strings.Contains(err.Error(), "master run --ps 1 -- COMMAND\", or set TRAINMASTER_ENDPOINTS") {
		t.Errorf("without servers: found %v", err)
	}
	a.Close()

	o := open(t, startServers(t, 1), s, twoTensors)
	refused := func(words string, r Request) {
		t.Helper()
		if _, err := o.Do(t.Context(), r); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("expected %q, found %v", words, err)
		}
	}
	if _, _, err := o.Open(s, s, []byte(twoTensors)); err == nil || !strings.Contains(err.Error(), "one model in a session") {
		t.Errorf("a second model: found %v", err)
	}
	refused("expected ps_init before it", Request{Op: "pull", Seq: 1})
	o.do(Request{Op: "ps_init"})
	refused("expected a larger number than in the last operation", Request{Op: "pull"})
	for words, r := range map[string]Request{
		"stage is for mode sync, this client is in mode async": {Op: "stage", Records: 1},
		"learning-rate scale is -1: expected a positive":       {Op: "push", Scale: new(float32(-1))},
	} {
		if _, err := o.try(r); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("expected %q, found %v", words, err)
		}
	}
}

// F527: the address of a server that was killed belongs to a server of another job.
func TestServerOfAnotherJob(t *testing.T) {
	job := strings.Repeat("0", 32)
	addrs, _ := pservertest.StartOf(t, job, 1, pserver.Config{})
	own := open(t, addrs, &session{t: t, incarnation: 1, job: job}, twoTensors)
	own.do(Request{Op: "ps_init"})
	other := open(t, addrs, &session{t: t, incarnation: 2, job: strings.Repeat("1", 32)}, twoTensors)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := other.Do(ctx, Request{Op: "ps_init", Seq: 1}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("found %v, expected to wait for a server of its job", err)
	}
}
