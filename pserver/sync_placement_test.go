package pserver_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver"
	"trainmaster/trainer/params"
)

// strict is a synchronous job on two servers with two trainers, whose gradients are functions of trainer and version.
type strict struct {
	*testing.T
	book     *book
	tables   []params.Table
	rule     params.Optimizer
	master   *master
	trainers []*params.Client
	values   []params.Tensor
}

// strictModels are those of strict jobs: with and without tables of embeddings.
var strictModels = map[string][]params.Table{"tensors": nil, "tables": bothTables}

// onStrictModels runs a test of both.
func onStrictModels(t *testing.T, test func(t *testing.T, tables []params.Table)) {
	t.Helper()
	for name, tables := range strictModels {
		t.Run(name, func(t *testing.T) { test(t, tables) })
	}
}

func newStrict(t *testing.T, tables []params.Table, o params.Optimizer) *strict {
	t.Helper()
	return newStrictOn(t, startServers(t, 2, pserver.Config{}), tables, o)
}

func newStrictOn(t *testing.T, b *book, tables []params.Table, o params.Optimizer) *strict {
	t.Helper()
	s := &strict{T: t, book: b, tables: tables, rule: o, values: small(random(1))}
	s.master = newMaster(t, s.book)
	s.connect(0, 0)
	return s
}

// connect makes the trainers of a life of the job.
func (s *strict) connect(incarnation uint64, jobEpoch uint32) {
	s.Helper()
	s.trainers = nil
	for ordinal := range uint32(2) {
		c := connect(s, s.book, params.Config{Mode: params.Sync, Optimizer: s.rule, Tables: s.tables, Ordinal: ordinal, Incarnation: incarnation + uint64(ordinal) + 1, JobEpoch: jobEpoch})
		mustInit(s, c, s.values)
		s.trainers = append(s.trainers, c)
	}
}

// stagedIDs is how many ids a trainer stages for each table.
const stagedIDs = 3000

// strictGradients are those of a trainer at a version, made once for all strict jobs.
type strictGradients struct {
	tensors []params.Tensor
	ids     [][]int64 // by table
	rows    [][]float32
}

var gradientsOf = func() func(trainer int, version uint64) *strictGradients {
	var all [2][strictSteps]func() *strictGradients
	for trainer := range all {
		for version := range all[trainer] {
			all[trainer][version] = sync.OnceValue(func() *strictGradients {
				seed := uint64(100*trainer + version)
				g := &strictGradients{tensors: small(random(seed))}
				for _, table := range bothTables {
					ids, rows := rowBatch(seed, stagedIDs, table.Dim)
					if trainer == 1 && version == 3 { // it touches none
						ids, rows = nil, nil
					}
					g.ids, g.rows = append(g.ids, ids), append(g.rows, rows)
				}
				return g
			})
		}
	}
	return func(trainer int, version uint64) *strictGradients { return all[trainer][version]() }
}()

// stage stages everything, tables first.
func (s *strict) stage(trainer int, version uint64) error {
	g, records := gradientsOf(trainer, version), 10+7*trainer
	for k, table := range s.tables {
		if err := s.trainers[trainer].StageRows(within(s), table.Name, version, g.ids[k], g.rows[k], records); err != nil {
			return err
		}
	}
	tensors := slices.Clone(g.tensors)
	for i := range tensors {
		tensors[i].Data = slices.Clone(tensors[i].Data) // it is clipped in place
	}
	return s.trainers[trainer].Stage(within(s), version, tensors, records)
}

func (s *strict) mustStage(trainer int, version uint64) {
	s.Helper()
	if err := s.stage(trainer, version); err != nil {
		s.Fatal(err)
	}
}

// contributors are in an order that is not that of their numbers.
func contributors() []*pb.StepContributor {
	return []*pb.StepContributor{by(1, 17), by(0, 10)}
}

// commit makes a version and has both trainers pull it.
func (s *strict) commit(version uint64) {
	s.Helper()
	if err := s.master.commit(within(s), version, contributors()...); err != nil {
		s.Fatal(err)
	}
	for _, c := range s.trainers {
		if got, err := c.Pull(within(s), s.values, version); err != nil || got != version {
			s.Fatalf("pulled version %d, %v; expected %d", got, err, version)
		}
	}
}

func (s *strict) step(version uint64) {
	s.Helper()
	s.mustStage(0, version-1)
	s.mustStage(1, version-1)
	s.commit(version)
}

const strictSteps = 5

// ended is what a job has after its steps.
type ended struct {
	values []params.Tensor
	rows   [][]float32 // by table
}

func (s *strict) end(version uint64) ended {
	s.Helper()
	e := ended{values: s.values}
	for _, table := range s.tables {
		e.rows = append(e.rows, rowsOf(s, s.trainers[1], table, everyID(stagedIDs), version))
	}
	return e
}

// unmoved returns the result of the steps if no block ever moves.
func unmoved(t *testing.T, tables []params.Table, o params.Optimizer) ended {
	t.Helper()
	s := newStrict(t, tables, o)
	for version := range uint64(strictSteps) {
		s.step(version + 1)
	}
	return s.end(strictSteps)
}

func (s *strict) wantEqual(want ended) {
	s.Helper()
	got := s.end(strictSteps)
	if err := differ(got.values, want.values); err != nil {
		s.Errorf("after the rollback %v", err)
	}
	for k, table := range s.tables {
		if !slices.Equal(got.rows[k], want.rows[k]) {
			s.Errorf("after the rollback %q has other rows", table.Name)
		}
	}
}

// commitOf makes a version of the trainers that connect(100, ...) made, on one server.
func (m *handMove) commitOf(server int, jobEpoch uint32, version uint64) error {
	_, err := m.servers[server].CommitStep(within(m.t), &pb.CommitStepRequest{Version: version, JobEpoch: jobEpoch, Contributors: []*pb.StepContributor{
		{Ordinal: 1, Incarnation: 102, Records: 17}, {Ordinal: 0, Incarnation: 101, Records: 10},
	}})
	return err
}

// A synchronous job rolls back to a set in another placement. Gradients staged before are dropped, and the steps since the set give
// the same bits as in the old placement.
func TestSyncRollbackToAnotherPlacement(t *testing.T) {
	onStrictModels(t, func(t *testing.T, tables []params.Table) {
		want := unmoved(t, tables, heavy)
		for from := range 2 { // server 0 has one block, and none after the rollback
			t.Run(fmt.Sprint(from), func(t *testing.T) {
				c := startCluster(t, t.TempDir(), 2, nil)
				s := newStrictOn(t, c.book, tables, heavy)
				s.step(1)
				set := c.mustTake(t)
				m := newHandMove(t, s.book, from)
				s.mustStage(0, 1)
				if err := m.commit(); err != nil {
					t.Fatal(err)
				}
				if err := c.client.Rollback(within(t), 2, 2, set, m.stored()); err != nil {
					t.Fatal(err)
				}
				for i, server := range m.servers {
					d, err := server.Describe(within(t), &pb.DescribeRequest{})
					if err != nil || d.GetPlacement().GetEpoch() != m.layout.Epoch || d.GetState() != pb.DescribeReply_STATE_READY {
						t.Errorf("server %d: %v, %v; expected placement %d", i, d, err, m.layout.Epoch)
					}
				}
				s.connect(100, 2)
				for version := uint64(1); version < strictSteps; version++ {
					s.mustStage(0, version)
					s.mustStage(1, version)
					for i := range m.servers {
						if i == 0 && from == 0 && tables == nil && version == 1 {
							continue // it has no block: it may miss a version
						}
						if err := m.commitOf(i, 2, version+1); err != nil {
							t.Fatalf("server %d: %v", i, err)
						}
					}
				}
				if _, err := s.trainers[0].Pull(within(t), s.values, strictSteps); err != nil {
					t.Fatal(err)
				}
				s.wantEqual(want)
			})
		}
	})
}

// A server of a synchronous job takes part in no migration: its blocks move in a rollback.
func TestSyncServerRejectsMigration(t *testing.T) {
	s := newStrict(t, bothTables, heavy)
	m := newHandMove(t, s.book, 0)
	_, steps := m.steps()
	for i, name := range map[int]string{1: "freeze", 2: "take", 4: "placement of the destination", 5: "placement of the source"} {
		if err := steps[i](); err == nil || !strings.Contains(err.Error(), "synchronous job moves blocks in a rollback only") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	s.step(1)
}

// A server that was started again makes no step before the leader has rolled it back: it lacks the versions since its checkpoint.
func TestSyncRestartedServerRejectsSteps(t *testing.T) {
	b, dir := newBook(2), t.TempDir()
	servers := []*server{startServer(t, b, 0, pserver.Config{CheckpointDir: dir}), startServer(t, b, 1, pserver.Config{CheckpointDir: dir})}
	s := newStrictOn(t, b, nil, heavy)
	if _, err := newSetTaker(t, b).take(within(t)); err != nil {
		t.Fatal(err)
	}
	s.step(1)
	s.mustStage(0, 1)
	s.mustStage(1, 1)
	servers[1].lose()
	if err := servers[1].wait(); !errors.Is(err, pserver.ErrLeaseLost) {
		t.Fatal(err)
	}
	again := control(t, startServer(t, b, 1, pserver.Config{CheckpointDir: dir}).addr)
	if _, err := again.CommitStep(within(t), &pb.CommitStepRequest{Version: 2, JobEpoch: 1, Contributors: contributors()}); err == nil || !strings.Contains(err.Error(), "expected a commit of version 1") {
		t.Errorf("commit of version 2 at version 0: got %v", err)
	}
	if d, err := again.Describe(within(t), &pb.DescribeRequest{}); err != nil || d.GetVersion() != 0 {
		t.Errorf("%v, %v: expected version 0", d, err)
	}
}
