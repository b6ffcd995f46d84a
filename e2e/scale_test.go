package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/dataset/sample"
	"trainmaster/internal/safetensors"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/placement"
	"trainmaster/taskqueue"
	"trainmaster/trainer/params"
	"trainmaster/trainer/reference"
)

// load pushes gradients of 1 with a learning rate of 1. Every parameter and every table row therefore counts its pushes.
type load struct {
	*job
	client *params.Client
	steps  atomic.Uint64
	worst  time.Duration // longest push
}

// loadTensors returns tensors with 8 blocks of different sizes.
func loadTensors(value float32) []params.Tensor {
	list := []params.Tensor{{Name: "w", Shape: []int{1_250_000}}, {Name: "v", Shape: []int{300_000}}, {Name: "b", Shape: []int{1000}}}
	for i := range list {
		list[i].Data = make([]float32, list[i].Shape[0])
		for j := range list[i].Data {
			list[i].Data[j] = value
		}
	}
	return list
}

// loadTables returns tables with several thousand slots. A step of a migration moves 256 slots.
func loadTables() (tables []params.Table) {
	for _, name := range []string{"p", "q", "r", "s"} {
		tables = append(tables, params.Table{Name: name, Dim: 2, Init: params.Zeros})
	}
	return tables
}

// loadIDs returns the rows that every push updates. They cover nearly all slots.
func loadIDs() (ids []int64) {
	for id := range int64(5000) {
		ids = append(ids, id)
	}
	return ids
}

func (j *job) load(ordinal uint32) *load {
	j.t.Helper()
	log := logrus.New()
	log.SetOutput(io.Discard)
	client, err := params.Connect(j.t.Context(), params.Config{
		Addrs: func(ctx context.Context) ([]string, error) { return j.store.WaitPS(ctx, nil) }, Mode: params.Async,
		Optimizer: params.Optimizer{Kind: params.SGD, LearningRate: 1}, Tables: loadTables(), Ordinal: ordinal, Incarnation: noSession + uint64(ordinal), Log: logrus.NewEntry(log),
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

// push pushes until ctx ends. After each push it pauses as long as the push took, to leave processor time to other processes.
func (l *load) push(ctx context.Context) error {
	grads, dst, ids := loadTensors(1), loadTensors(0), loadIDs()
	for ctx.Err() == nil {
		began := time.Now()
		if _, err := l.client.PushPull(l.t.Context(), l.steps.Load()+1, 1, grads, dst); err != nil {
			return err
		}
		for _, table := range loadTables() {
			if err := l.client.PushRows(l.t.Context(), table.Name, l.steps.Load()+1, 1, ids, slices.Repeat([]float32{1}, len(ids)*table.Dim)); err != nil {
				return err
			}
		}
		l.steps.Add(1)
		took := time.Since(began)
		l.worst = max(l.worst, took)
		select {
		case <-ctx.Done():
		case <-time.After(took):
		}
	}
	return nil
}

// underLoad calls what while clients push. It then fails the test unless every parameter has every push once.
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
	for id, v := range loads[0].rows() {
		if v != -float32(total) {
			j.t.Fatalf("row %s is %v: expected the sum of %d pushes", id, v, total)
		}
	}
}

// rows returns the first value of each row by table and id. It fails the test unless all values of a row are equal.
func (l *load) rows() map[string]float32 {
	l.t.Helper()
	rows := map[string]float32{}
	for _, table := range loadTables() {
		if err := l.client.Scan(l.t.Context(), table.Name, func(ids []int64, values []float32) error {
			for i, id := range ids {
				name := fmt.Sprint(table.Name, id)
				if _, twice := rows[name]; twice || values[2*i] != values[2*i+1] {
					return fmt.Errorf("row %s: found twice, or with different values %v", name, values[2*i:2*i+2])
				}
				rows[name] = values[2*i]
			}
			return nil
		}); err != nil {
			l.t.Fatal(err)
		}
	}
	if want := len(loadTables()) * len(loadIDs()); len(rows) != want {
		l.t.Fatalf("%d rows in all tables, expected %d", len(rows), want)
	}
	return rows
}

// requestScale requests a number of servers. It retries, because the term of a leader may end on a busy machine.
func (j *job) requestScale(servers int) {
	j.t.Helper()
	eventually(j.t, fmt.Sprintf("a leader accepts the request for %d servers", servers), func() (bool, string) {
		leader, err := j.leader()
		if err == nil {
			_, err = leader.Scale(j.t.Context(), &pb.ScaleRequest{ParameterServers: uint32(servers)})
		}
		return err == nil, fmt.Sprint(err)
	})
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

// slotsOwned counts the slots of the first table on each server.
func slotsOwned(l *placement.Layout) string {
	if len(l.Slots) == 0 {
		return "none"
	}
	return owned(&placement.Layout{Shards: l.Shards, Owners: l.Slots[0]})
}

// owned counts the blocks of each server.
func owned(l *placement.Layout) string {
	counts := make([]int, l.Shards)
	for _, owner := range l.Owners {
		counts[owner]++
	}
	return fmt.Sprint(counts)
}

// A job is scaled from two parameter servers to three and then to one while trainers push. No push is lost or counted twice.
func TestScaleUnderLoad(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	j.master("--ps", "2", "--lease-ttl", "60s") // the term must not end on a busy machine
	servers := []*process{j.server(), j.server()}
	loads := []*load{j.load(1), j.load(2)}
	j.underLoad(loads, func() {
		up := start(t, "scale", j.dir, j.in("scale", "ps=3")...)
		up.awaitLog("parameter server with index 2 (of 0 to 2) is not there: start one with: master pserver --endpoints ")
		up.awaitLog(", and the --checkpoint-dir of the others")
		up.signal(syscall.SIGINT)
		up.wantExit(1)
		if !strings.Contains(up.log(), "to undo it: master scale ps=2 --endpoints") {
			t.Error("output of the interrupted command: expected the command that undoes the request")
		}
		up = start(t, "scale", j.dir, j.in("scale", "ps=3")...)
		servers = append(servers, j.server())
		up.wantExit(0)
	})
	if got := j.layout(); got.Shards != 3 || got.Goal != 3 || owned(got) != "[2 2 4]" || slotsOwned(got) != "[342 341 341]" {
		t.Errorf("%+v: %s and %s", got, owned(got), slotsOwned(got))
	}
	j.awaitSet(3, 0)
	j.underLoad(loads, func() {
		down := run(t, j.dir, j.in("scale", "ps=1")...)
		down.wants(t, 0)
		for _, left := range regexp.MustCompile(`(\d+) of (\d+) (blocks|slots)`).FindAllStringSubmatch(down.stdout, -1) {
			if len(left[1]) > len(left[2]) {
				t.Errorf("progress of master scale: expected at most %s %s to move, found %s", left[2], left[3], left[1])
			}
		}
		if !strings.Contains(down.stdout, "distributed over 1 parameter server\n") {
			t.Errorf("output of master scale: expected 1 parameter server, found %q", down.stdout)
		}
	})
	if got := j.layout(); got.Shards != 1 || owned(got) != "[8]" || slotsOwned(got) != "[1024]" {
		t.Errorf("%+v: %s and %s", got, owned(got), slotsOwned(got))
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
	eventually(t, "an export before its set is pruned", func() (bool, string) {
		o := run(t, j.dir, "model", "export", j.checkpoints(), "--file", "all.safetensors")
		return o.code == 0, o.stderr
	})
	tensors, _, err := safetensors.ReadFile(filepath.Join(j.dir, "all.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range loadTables() {
		i := slices.IndexFunc(tensors, func(tensor safetensors.Tensor) bool { return tensor.Name == table.Name+".ids" })
		if i < 0 || len(tensors[i].Data) != 8*len(loadIDs()) {
			t.Errorf("set: expected all rows of table %q", table.Name)
		}
	}
}

// The leader is killed during migrations. The next leader completes them, and no push is lost or counted twice.
func TestLeaderKilledWhileBlocksMove(t *testing.T) {
	t.Parallel()
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
			j.requestScale(n)
			if epoch := j.layout().Epoch; round > 0 { // in round 0 the leader may be killed before the first step
				eventually(t, "a step of the migration", func() (bool, string) { return j.layout().Epoch > epoch, fmt.Sprint(j.layout()) })
			}
			master.kill()
			master = j.master("--ps", "2")
			eventually(t, fmt.Sprintf("%d servers", n), func() (bool, string) {
				got := j.layout()
				return got.Shards == n && len(j.layout().Owners) == 8 && j.balanced(got), fmt.Sprintf("%+v", got)
			})
		}
	})
}

// balanced reports whether the numbers of blocks per server differ by at most 2.
func (j *job) balanced(l *placement.Layout) bool {
	counts := make([]int, l.Shards)
	for _, owner := range l.Owners {
		counts[owner]++
	}
	return slices.Max(counts)-slices.Min(counts) <= 2
}

// A factorization machine is trained on 2, 3 and 1 servers in one job. Every task counts once, every trained category has
// its rows, and the accuracy is not affected.
func TestScaleWhileTablesAreTrained(t *testing.T) {
	t.Parallel()
	const passes = 3
	j := newJob(t)
	tasks := j.useFlights()
	master := j.master("--passes", fmt.Sprint(passes), "--ps", "2", "--lease-ttl", "60s")
	servers := []*process{j.server(), j.server()}
	var trainers []*process
	for _, id := range []string{"a", "b"} {
		trainers = append(trainers, j.trainer(id, "--model", "fm"))
	}
	j.awaitMidPass(1)
	servers = append(servers, j.server())
	for _, n := range []int{3, 1} {
		run(t, j.dir, j.in("scale", fmt.Sprintf("ps=%d", n))...).wants(t, 0)
		if got := j.layout(); got.Shards != n || len(got.Slots) != 2 {
			t.Errorf("%d servers: %+v", n, got)
		}
	}
	for _, p := range append(trainers, master) {
		p.wantExit(0)
	}
	j.wantExactlyOnce(passes, tasks)
	j.wantAccuracy(0.77)
	categories := map[int64]bool{}
	for record, err := range records(j.data.Train.Paths) {
		if err != nil {
			t.Fatal(err)
		}
		var c sample.Categorical
		if err := sample.DecodeCategorical(record, &c); err != nil {
			t.Fatal(err)
		}
		for _, id := range c.IDs {
			categories[id] = true
		}
	}
	saved, err := reference.ReadSaved(j.model())
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range saved.Tables {
		got := map[int64]bool{}
		for _, id := range table.IDs {
			got[id] = true
		}
		if len(got) != len(table.IDs) || !maps.Equal(got, categories) {
			t.Errorf("table %q: found %d rows of %d ids, expected the rows of %d categories", table.Name, len(table.IDs), len(got), len(categories))
		}
	}
	ended := 0
	for _, s := range servers {
		if strings.Contains(s.log(), "all its blocks were moved to others") {
			s.wantExit(0)
			ended++
		}
	}
	if ended != 2 {
		t.Errorf("%d servers were decommissioned, expected 2", ended)
	}
}

// The source and then the destination of a migration of slots is killed. It restarts from an earlier set, the migration
// completes, and every later push counts once in all rows.
func TestServerKilledWhileSlotsMove(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	j.master("--ps", "2", "--lease-ttl", "60s")
	servers := []*process{j.server(shortLease...), j.server(shortLease...)}
	loads := []*load{j.load(1), j.load(2)}
	first := servers[slices.IndexFunc(servers, func(s *process) bool { return strings.Contains(s.log(), "shard=0") })]
	pushing, stop := context.WithCancel(t.Context())
	errs := make([]error, len(loads))
	var all sync.WaitGroup
	for i, l := range loads {
		all.Go(func() { errs[i] = l.push(pushing) })
	}
	for _, n := range []int{3, 1} {
		if n > 2 {
			j.server(shortLease...)
		}
		j.requestScale(n)
		was := slotsOwned(j.layout())
		eventually(t, "slots migrate", func() (bool, string) { got := slotsOwned(j.layout()); return got != was && got != "none", got })
		first.kill()
		first = j.server(shortLease...)
		first.awaitLog("parameters restored")
		eventually(t, fmt.Sprintf("%d servers", n), func() (bool, string) {
			got := j.layout()
			return got.Shards == n && got.Goal == n, fmt.Sprint(slotsOwned(got))
		})
	}
	for i, l := range loads { // a whole push after the last restart: it updates every row
		steps := l.steps.Load()
		eventually(t, fmt.Sprintf("load %d pushes", i+1), func() (bool, string) { return l.steps.Load() >= steps+2, fmt.Sprint(l.steps.Load()) })
	}
	stop()
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	before := loads[0].rows()
	pushed := uint64(0)
	for _, l := range loads {
		steps := l.steps.Load()
		pushing, stop := context.WithCancel(t.Context())
		time.AfterFunc(200*time.Millisecond, stop)
		if err := l.push(pushing); err != nil {
			t.Fatal(err)
		}
		stop()
		pushed += l.steps.Load() - steps
	}
	for id, v := range loads[1].rows() {
		if v != before[id]-float32(pushed) {
			t.Fatalf("row %s: found %v after %v and %d pushes", id, v, before[id], pushed)
		}
	}
}

// A server is killed after blocks were moved to it. It restores its blocks from the last set, whichever server wrote them. No
// push to other servers is lost.
func TestServerKilledAfterBlocksMoved(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	j.master("--ps", "1", "--lease-ttl", "60s")
	j.server()
	loads := []*load{j.load(1)}
	last := j.server(shortLease...)
	j.underLoad(loads, func() { run(t, j.dir, j.in("scale", "ps=2")...).wants(t, 0) })
	set := j.latestSet().Number
	j.awaitSet(2, set+1) // the next set may have begun before the last push
	last.kill()
	j.server(shortLease...).awaitLog("parameters restored")
	j.underLoad(loads, func() {
		began := loads[0].steps.Load()
		eventually(t, "further pushes", func() (bool, string) { n := loads[0].steps.Load(); return n > began+5, fmt.Sprint(n) })
	})
}

// awaitSteps waits for more further synchronous steps, and at least for the first step of the job.
func (j *job) awaitSteps(more uint64) {
	j.t.Helper()
	version := func() uint64 {
		value, _, err := j.store.Value(j.t.Context(), taskqueue.StepKey)
		if err != nil {
			j.t.Fatal(err)
		}
		var step taskqueue.Step
		if value != nil {
			err = json.Unmarshal(value, &step)
		}
		if err != nil {
			j.t.Fatal(err)
		}
		return step.Version
	}
	began := version()
	eventually(j.t, "further steps", func() (bool, string) { n := version(); return n > 0 && n >= began+more, fmt.Sprint(n) })
}

// A synchronous job is scaled to three parameter servers and then to one while it trains. The leader is killed during the
// second migration. Each record is trained once per pass.
func TestScaleSynchronous(t *testing.T) {
	t.Parallel()
	const passes = 8
	c := newCounters(t)
	lead := func() *process {
		return c.master("--passes", fmt.Sprint(passes), "--ps", "2", "--update-mode", "sync", "--checkpoint-every", "1s")
	}
	m := lead()
	c.server()
	c.server()
	trainers := []*process{c.counter("a"), c.counter("b")}
	c.awaitSteps(0)
	c.server()
	run(t, c.dir, c.in("scale", "ps=3")...).wants(t, 0)
	c.awaitSteps(2)
	epoch := c.layout().Epoch
	down := start(t, "scale", c.dir, c.in("scale", "ps=1")...)
	eventually(t, "a step of the migration", func() (bool, string) { return c.layout().Epoch > epoch, fmt.Sprint(c.layout()) })
	m.kill()
	m = lead()
	down.awaitLog("distributed over 1 parameter server\n")
	down.wantExit(0)
	c.awaitSteps(2)
	c.hurry()
	for _, p := range trainers {
		p.wantExit(0)
	}
	m.wantExit(0)
	c.wantVerified(passes, countedRecords/countedChunk)
	c.wantCounted(passes)
}

// A synchronous job whose parameter servers keep no checkpoints has no set that other servers could load. Scale is refused, and the job
// continues.
func TestScaleOfSynchronousJobWithoutCheckpointsIsRefused(t *testing.T) {
	t.Parallel()
	c := newCounters(t)
	m := c.master("--passes", "4", "--ps", "2", "--update-mode", "sync")
	c.server("--checkpoint-dir", "")
	c.server("--checkpoint-dir", "")
	trainers := []*process{c.counter("a"), c.counter("b")}
	c.awaitSteps(0)
	for _, goal := range []string{"ps=1", "ps=3"} {
		run(t, c.dir, c.in("scale", goal)...).wants(t, 1, "the number of parameter servers cannot be changed while the job runs", "start the parameter servers of a new job with --checkpoint-dir")
	}
	c.awaitSteps(2)
	c.hurry()
	for _, p := range trainers {
		p.wantExit(0)
	}
	m.wantExit(0)
	c.wantVerified(4, countedRecords/countedChunk)
}

// noSession is above all incarnations of a master. Servers forget trainers with lower incarnations and without a session.
const noSession = 1 << 62
