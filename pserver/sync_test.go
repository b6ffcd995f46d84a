package pserver_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver"
	"trainmaster/trainer/params"
)

// control dials the control service of a shard.
func control(t testing.TB, addr string) pb.ParameterServerClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return pb.NewParameterServerClient(conn)
}

// master commits steps at all shards, as the real one does.
type master struct {
	t     testing.TB
	book  *book
	conns map[string]pb.ParameterServerClient
}

func newMaster(t testing.TB, b *book) *master {
	return &master{t, b, map[string]pb.ParameterServerClient{}}
}

func (m *master) commit(ctx context.Context, version uint64, contributors ...*pb.StepContributor) error {
	addrs, err := m.book.complete(ctx)
	if err != nil {
		return err
	}
	for _, addr := range addrs {
		if m.conns[addr] == nil {
			m.conns[addr] = control(m.t, addr)
		}
		reply, err := m.conns[addr].CommitStep(ctx, &pb.CommitStepRequest{Version: version, JobEpoch: 1, Contributors: contributors})
		if err != nil {
			return err
		}
		if reply.GetVersion() < version {
			return errors.New("shard is behind after a commit")
		}
	}
	return nil
}

func by(ordinal uint32, records uint32) *pb.StepContributor {
	return &pb.StepContributor{Ordinal: ordinal, Incarnation: uint64(ordinal) + 1, Records: records}
}

// Three trainers stage in whatever order the scheduler likes, the master
// commits in rank order, and one loop over the same gradients gets the same bits.
func TestSyncReplaysBitByBit(t *testing.T) {
	const trainers, steps = 3, 4
	book := startServers(t, 2, pserver.Config{})
	m := newMaster(t, book)
	gradient := func(ordinal int, version uint64) ([]params.Tensor, uint32) {
		return tensors(random(uint64(ordinal)*100 + version)), uint32(10 + 7*ordinal)
	}

	staged := make(chan struct{})
	var group sync.WaitGroup
	finals := make([][]params.Tensor, trainers)
	for ordinal := range trainers {
		group.Go(func() {
			c := connect(t, book, params.Config{Mode: params.Sync, Optimizer: heavy, Ordinal: uint32(ordinal)})
			values := tensors(random(1))
			if err := c.Init(within(t), values); err != nil {
				t.Error(err)
			}
			for version := range uint64(steps) {
				grads, records := gradient(ordinal, version)
				if err := c.Stage(within(t), version, grads, int(records)); err != nil {
					t.Error(err)
				}
				staged <- struct{}{}
				if got, err := c.Pull(within(t), values, version+1); err != nil || got != version+1 {
					t.Errorf("pulled version %d, %v; expected %d", got, err, version+1)
				}
			}
			finals[ordinal] = values
		})
	}
	for version := range uint64(steps) {
		for range trainers {
			<-staged
		}
		if err := m.commit(within(t), version+1, by(2, 24), by(0, 10), by(1, 17)); err != nil {
			t.Fatal(err)
		}
	}
	group.Wait()

	want, velocity := tensors(random(1)), tensors(constant(0))
	for version := range uint64(steps) {
		var grads [][]params.Tensor
		var total uint32
		for _, ordinal := range []int{2, 0, 1} {
			g, records := gradient(ordinal, version)
			grads, total = append(grads, g), total+records
		}
		share := float32(1 / float64(total))
		for i := range want {
			for j := range want[i].Data {
				sum := grads[0][i].Data[j]
				for _, g := range grads[1:] {
					sum += g[i].Data[j]
				}
				v := &velocity[i].Data[j]
				*v = float32(heavy.Momentum**v) + float32(sum*share)
				want[i].Data[j] -= float32(heavy.LearningRate * *v)
			}
		}
	}
	for ordinal, got := range finals {
		if err := differ(got, want); err != nil {
			t.Errorf("trainer %d: %v", ordinal, err)
		}
	}
}

func TestSyncRefusesWhatDoesNotFit(t *testing.T) {
	book := startServers(t, 1, pserver.Config{})
	c := connect(t, book, params.Config{Mode: params.Sync})
	values := tensors(constant(1))
	mustInit(t, c, values)
	m := newMaster(t, book)
	grads := tensors(constant(10))

	if err := m.commit(within(t), 1, by(0, 5)); err == nil || !strings.Contains(err.Error(), "has staged nothing") {
		t.Errorf("commit: %v, expected that nothing is staged", err)
	}
	if err := c.Stage(within(t), 0, grads, 10); err != nil {
		t.Fatal(err)
	}
	for want, contributors := range map[string][]*pb.StepContributor{
		"its stage says 10": {by(0, 5)},
		"contributes twice": {by(0, 10), by(0, 10)},
		"trainer 3":         {by(0, 10), by(3, 10)},
	} {
		err := m.commit(within(t), 1, contributors...)
		if code := status.Code(err); err == nil || !strings.Contains(err.Error(), want) || code == codes.Internal || code == codes.Unknown {
			t.Errorf("commit: %v, expected %q", err, want)
		}
	}
	if err := m.commit(within(t), 1, by(0, 10)); err != nil {
		t.Fatal(err)
	}
	if err := m.commit(within(t), 3, by(0, 10)); err == nil || !strings.Contains(err.Error(), "expected a commit of version 2") {
		t.Errorf("commit of version 3 at version 1: %v", err)
	}
	if err := m.commit(within(t), 1, by(0, 10)); err != nil {
		t.Errorf("the same commit again: %v", err)
	}
	version, err := c.Pull(within(t), values, 1)
	if err != nil || version != 1 {
		t.Fatalf("version %d, %v", version, err)
	}
	if err := differ(values, tensors(constant(1-0.5*(10*float32(1/float64(10)))))); err != nil {
		t.Error(err)
	}

	// A gradient of a past version is late: nothing of it is used.
	var stale *params.StaleError
	if err := c.Stage(within(t), 0, grads, 10); !errors.As(err, &stale) || stale.Version != 1 {
		t.Errorf("stage at version 0: %v, expected a StaleError with version 1", err)
	}
	if _, err := c.PushPull(within(t), 1, 1, grads, values); err == nil {
		t.Error("a push was taken in mode sync")
	}
}

// A trainer that stages again at the same version after an interrupted
// attempt is counted once, with its last gradients.
func TestSyncStageAgainReplaces(t *testing.T) {
	book := startServers(t, 2, pserver.Config{})
	c := connect(t, book, params.Config{Mode: params.Sync, Optimizer: params.Optimizer{Kind: params.SGD, LearningRate: 1}})
	values := tensors(constant(0))
	mustInit(t, c, values)
	for _, value := range []float32{1000, 8} {
		if err := c.Stage(within(t), 0, tensors(constant(value)), int(value)); err != nil {
			t.Fatal(err)
		}
	}
	if err := newMaster(t, book).commit(within(t), 1, by(0, 8)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Pull(within(t), values, 1); err != nil {
		t.Fatal(err)
	}
	if err := differ(values, tensors(constant(-1))); err != nil {
		t.Error(err)
	}
}

// During continuous commits a pull returns blocks of one version
// only: in version v every parameter is -v.
func TestSyncPullsOneVersion(t *testing.T) {
	book := startServers(t, 3, pserver.Config{})
	one := params.Optimizer{Kind: params.SGD, LearningRate: 1}
	c := connect(t, book, params.Config{Mode: params.Sync, Optimizer: one})
	values := tensors(constant(0))
	mustInit(t, c, values)
	stop := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		defer close(stop)
		m := newMaster(t, book)
		grads := tensors(constant(1))
		for version := range uint64(60) {
			if err := c.Stage(within(t), version, grads, 1); err != nil {
				t.Error(err)
				return
			}
			if err := m.commit(within(t), version+1, by(0, 1)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	pulls := 0
	reader := connect(t, book, params.Config{Mode: params.Sync, Optimizer: one, Ordinal: 9})
	seen := tensors(constant(0))
	mustInit(t, reader, seen)
	for running := true; running; pulls++ {
		select {
		case <-stop:
			running = false
		default:
		}
		version, err := reader.Pull(within(t), seen, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := differ(seen, tensors(constant(-float32(version)))); err != nil {
			t.Fatalf("version %d: %v", version, err)
		}
	}
	group.Wait()
	t.Logf("%d pulls", pulls)
}

// Trainers whose stages do not fit into memory wait until a commit makes room.
func TestSyncStageMemoryIsBounded(t *testing.T) {
	elements := 0
	for _, tensor := range tensors(constant(0)) {
		elements += len(tensor.Data)
	}
	book := startServers(t, 1, pserver.Config{StageBytes: int64(4*elements) + 100})
	one := params.Optimizer{Kind: params.SGD, LearningRate: 1}
	first := connect(t, book, params.Config{Mode: params.Sync, Optimizer: one})
	second := connect(t, book, params.Config{Mode: params.Sync, Optimizer: one, Ordinal: 1})
	values := tensors(constant(0))
	mustInit(t, first, values)
	mustInit(t, second, values)
	if err := first.Stage(within(t), 0, tensors(constant(1)), 1); err != nil {
		t.Fatal(err)
	}
	late := make(chan error, 1)
	ctx := within(t)
	go func() { late <- second.Stage(ctx, 0, tensors(constant(1)), 1) }()
	addrs, err := book.complete(ctx)
	if err != nil {
		t.Fatal(err)
	}
	describe := control(t, addrs[0])
	for { // until it was sent away at least once
		reply, err := describe.Describe(ctx, &pb.DescribeRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if reply.GetCounters().GetRefused() > 0 {
			break
		}
	}
	if err := newMaster(t, book).commit(ctx, 1, by(0, 1)); err != nil {
		t.Fatal(err)
	}
	var stale *params.StaleError
	if err := <-late; !errors.As(err, &stale) {
		t.Errorf("second trainer: %v, expected a StaleError", err)
	}
}

// A server without a part in a trainer's pull receives a commit later than the others. The stage for that version is still needed,
// and the next stage waits until the commit.
func TestSyncStagesOneVersionAfterTheOther(t *testing.T) {
	for before := range uint64(2) {
		b := startServers(t, 2, pserver.Config{})
		c := connectTables(t, b, params.Config{Mode: params.Sync})
		m := newMaster(t, b)
		stage := func(version uint64) error {
			for _, table := range bothTables {
				ids, grads := rowBatch(version, 300, table.Dim)
				if err := c.StageRows(within(t), table.Name, version, ids, grads, 1); err != nil {
					return err
				}
			}
			return c.Stage(within(t), version, little(), 1)
		}
		mustStage := func(version uint64) {
			t.Helper()
			if err := stage(version); err != nil {
				t.Fatal(err)
			}
		}
		for version := range before {
			mustStage(version)
			if err := m.commit(within(t), version+1, by(0, 1)); err != nil {
				t.Fatal(err)
			}
		}
		commit := func(server int, version uint64) {
			t.Helper()
			if _, err := control(t, b.addrs[server]).CommitStep(within(t), &pb.CommitStepRequest{Version: version, JobEpoch: 1, Contributors: []*pb.StepContributor{by(0, 1)}}); err != nil {
				t.Error(err)
			}
		}
		d, err := control(t, b.addrs[0]).Describe(within(t), &pb.DescribeRequest{})
		if err != nil {
			t.Fatal(err)
		}
		withBlock := int(d.GetPlacement().GetOwners()[0])
		mustStage(before)
		commit(withBlock, before+1)
		values := little()
		if got, err := c.Pull(within(t), values, before+1); err != nil || got != before+1 {
			t.Fatal(got, err)
		}
		staged := make(chan error, 1)
		go func() { staged <- stage(before + 1) }()
		select {
		case err := <-staged:
			t.Errorf("staged at version %d where version %d is not made yet: %v", before+1, before+1, err)
		case <-time.After(50 * time.Millisecond):
		}
		commit(1-withBlock, before+1)
		if err := <-staged; err != nil {
			t.Fatal(err)
		}
		for server := range 2 {
			commit(server, before+2)
			if d, err := control(t, b.addrs[server]).Describe(within(t), &pb.DescribeRequest{}); err != nil || d.GetCounters().GetStepsCommitted() != before+2 {
				t.Errorf("server %d: %v, %v; expected %d versions that it has made", server, d, err, before+2)
			}
		}
	}
}
