package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/placement"
	"trainmaster/trainer/params"
)

// load pushes gradients of 1 at a learning rate of 1, so that every parameter says how many pushes it has.
type load struct {
	*job
	client *params.Client
	steps  atomic.Uint64
	worst  time.Duration // that a push took
}

// loadTensors has 13 blocks, of several sizes.
func loadTensors(value float32) []params.Tensor {
	list := []params.Tensor{{Name: "w", Shape: []int{2_500_000}}, {Name: "v", Shape: []int{300_000}}, {Name: "b", Shape: []int{1000}}}
	for i := range list {
		list[i].Data = make([]float32, list[i].Shape[0])
		for j := range list[i].Data {
			list[i].Data[j] = value
		}
	}
	return list
}

func (j *job) load(ordinal uint32) *load {
	j.t.Helper()
	log := logrus.New()
	log.SetOutput(io.Discard)
	client, err := params.Connect(j.t.Context(), params.Config{
		Addrs: func(ctx context.Context) ([]string, error) { return j.store.WaitPS(ctx, nil) }, Mode: params.Async,
		Optimizer: params.Optimizer{Kind: params.SGD, LearningRate: 1}, Ordinal: ordinal, Incarnation: uint64(ordinal), Log: logrus.NewEntry(log),
	})
	if err == nil {
		err = client.Init(j.t.Context(), loadTensors(0))
	}
	if err != nil {
		j.t.Fatal(err)
	}
	j.t.Cleanup(func() { client.Close() })
	return &load{job: j, client: client}
}

// push goes on until ctx ends, between two pushes.
func (l *load) push(ctx context.Context) error {
	grads, dst := loadTensors(1), loadTensors(0)
	for ctx.Err() == nil {
		began := time.Now()
		if _, err := l.client.PushPull(l.t.Context(), l.steps.Load()+1, 1, grads, dst); err != nil {
			return err
		}
		l.steps.Add(1)
		l.worst = max(l.worst, time.Since(began))
	}
	return nil
}

// underLoad does something while two clients push, and then wants every parameter to have every push once.
func (j *job) underLoad(loads []*load, what func()) {
	j.t.Helper()
	pushing, stop := context.WithCancel(j.t.Context())
	errs := make([]error, len(loads))
	var all sync.WaitGroup
	for i, l := range loads {
		all.Go(func() { errs[i] = l.push(pushing) })
	}
	what()
	stop()
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		j.t.Fatal(err)
	}
	total := uint64(0)
	for _, l := range loads {
		total += l.steps.Load()
		j.t.Logf("%d pushes, the longest took %v", l.steps.Load(), l.worst)
	}
	values := loadTensors(0)
	version, err := loads[0].client.Pull(j.t.Context(), values, 0)
	if err != nil || version != total {
		j.t.Errorf("version %d, %v; expected the %d pushes", version, err, total)
	}
	for _, tensor := range values {
		for i, v := range tensor.Data {
			if v != -float32(total) {
				j.t.Fatalf("%s[%d] is %v: expected the sum of %d pushes", tensor.Name, i, v, total)
			}
		}
	}
}

func (j *job) layout() *placement.Layout {
	j.t.Helper()
	value, _, err := j.store.Value(j.t.Context(), "/ps_blocks")
	if err != nil {
		j.t.Fatal(err)
	}
	if value == nil {
		return &placement.Layout{}
	}
	layout, err := placement.ParseLayout(value)
	if err != nil {
		j.t.Fatal(err)
	}
	return layout
}

// owned counts the blocks of each server.
func owned(l *placement.Layout) string {
	counts := make([]int, l.Shards)
	for _, owner := range l.Owners {
		counts[owner]++
	}
	return fmt.Sprint(counts)
}

// A job with two parameter servers gets a third and then has one, while trainers push: no push is lost, and none counts twice.
func TestScaleUnderLoad(t *testing.T) {
	j := newJob(t)
	j.master("--ps", "2")
	servers := []*process{j.server(), j.server()}
	loads := []*load{j.load(1), j.load(2)}
	j.underLoad(loads, func() {
		up := start(t, "scale", j.dir, j.in("scale", "ps=3")...)
		up.awaitLog("start one with: master pserver")
		servers = append(servers, j.server())
		up.wantExit(0)
	})
	if got := j.layout(); got.Shards != 3 || got.Goal != 3 || owned(got) != "[4 4 5]" {
		t.Errorf("%+v: %s", got, owned(got))
	}
	j.awaitSet(3, 0)
	j.underLoad(loads, func() {
		down := run(t, j.dir, j.in("scale", "ps=1")...)
		down.wants(t, 0)
		if !strings.Contains(down.stdout, "spread over 1 parameter servers") {
			t.Errorf("master scale said %q", down.stdout)
		}
	})
	if got := j.layout(); got.Shards != 1 || owned(got) != "[13]" {
		t.Errorf("%+v: %s", got, owned(got))
	}
	ended := 0
	for _, s := range servers {
		if !strings.Contains(s.log(), "shard=0") {
			s.wantExit(0)
			ended++
		}
	}
	if ended != 2 {
		t.Errorf("%d servers ended, expected 2", ended)
	}
	run(t, j.dir, "model", "inspect", j.checkpoints()).wants(t, 0)
}

// The leader is killed while blocks move, wherever it stands: the next one ends what was begun, and no push is lost or counts twice.
func TestLeaderKilledWhileBlocksMove(t *testing.T) {
	j := newJob(t)
	master := j.master("--ps", "2")
	j.server()
	j.server()
	loads := []*load{j.load(1), j.load(2)}
	j.underLoad(loads, func() {
		for round, n := range []int{3, 1, 2} {
			if n > 1 {
				j.server()
			}
			leader, err := j.leader()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := leader.Scale(t.Context(), &pb.ScaleRequest{ParameterServers: uint32(n)}); err != nil {
				t.Fatal(err)
			}
			if epoch := j.layout().Epoch; round > 0 { // else at once, perhaps before the first step
				eventually(t, "a step of the move", func() (bool, string) { return j.layout().Epoch > epoch, fmt.Sprint(j.layout()) })
			}
			master.kill()
			master = j.master("--ps", "2")
			eventually(t, fmt.Sprintf("%d servers", n), func() (bool, string) {
				got := j.layout()
				return got.Shards == n && len(j.layout().Owners) == 13 && j.even(got), fmt.Sprintf("%+v", got)
			})
		}
	})
}

// even says whether every server has its share, of blocks.
func (j *job) even(l *placement.Layout) bool {
	counts := make([]int, l.Shards)
	for _, owner := range l.Owners {
		counts[owner]++
	}
	return slices.Max(counts)-slices.Min(counts) <= 3
}

// A server that got blocks is killed: it goes on with the blocks that it has by now, from the last set of checkpoints that has
// them, whoever had them then. The others' pushes are all there.
func TestServerKilledAfterBlocksMoved(t *testing.T) {
	j := newJob(t)
	j.master("--ps", "1")
	j.server()
	loads := []*load{j.load(1)}
	last := j.server()
	j.underLoad(loads, func() { run(t, j.dir, j.in("scale", "ps=2")...).wants(t, 0) })
	set := j.latestSet().Number
	j.awaitSet(2, set+1) // the one before it may have begun before the last push
	last.kill()
	j.server().awaitLog("parameters restored")
	j.underLoad(loads, func() {
		began := loads[0].steps.Load()
		eventually(t, "further pushes", func() (bool, string) { n := loads[0].steps.Load(); return n > began+5, fmt.Sprint(n) })
	})
}
