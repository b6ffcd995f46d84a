package pserver_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

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

// unmoved is what the steps give where no block ever moves.
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
		s.Errorf("after a move %v", err)
	}
	for k, table := range s.tables {
		if !slices.Equal(got.rows[k], want.rows[k]) {
			s.Errorf("after a move %q has other rows", table.Name)
		}
	}
}

// stagedAt counts what a server was sent to stage.
func (m *handMove) stagedAt(server int) uint64 {
	m.t.Helper()
	d, err := m.servers[server].Describe(within(m.t), &pb.DescribeRequest{})
	if err != nil {
		m.t.Fatal(err)
	}
	return d.GetCounters().GetBlocksStaged() + d.GetCounters().GetRowsStaged()
}

// Blocks and slots move between two steps, with what is staged and while it is being staged, there and back: replaying the steps
// gives the same bits as on servers that kept theirs.
func TestSyncMovesReplayBitByBit(t *testing.T) {
	for name, c := range map[string]struct {
		tables []params.Table
		rule   params.Optimizer
	}{
		"heavy": {nil, heavy}, "clipped": {nil, params.Optimizer{Kind: "adam", LearningRate: 0.01, ClipNorm: 5}},
		"tables": {bothTables, heavy}, "tables, adam": {bothTables, params.Optimizer{Kind: "adam", LearningRate: 0.01}},
	} {
		t.Run(name, func(t *testing.T) {
			want := unmoved(t, c.tables, c.rule)
			s := newStrict(t, c.tables, c.rule)
			m := newHandMove(t, s.book, 0)
			all, _ := m.steps()
			s.step(1)
			s.mustStage(0, 1) // staged before
			m.upTo(1)
			staged, before := make(chan error, 1), m.stagedAt(1)
			go func() { staged <- s.stage(1, 1) }() // staged while it is frozen, and after it has left
			for m.stagedAt(1) == before {           // what stays is not waited for
				time.Sleep(time.Millisecond)
			}
			_, steps := m.steps()
			for i, step := range steps[2:] {
				if err := step(); err != nil {
					t.Fatalf("%s: %v", all[i+2], err)
				}
			}
			if err := <-staged; err != nil {
				t.Fatal(err)
			}
			s.commit(2)
			m.from = 1
			s.mustStage(1, 2)
			m.upTo(len(all) - 1)
			s.mustStage(0, 2)
			s.commit(3)
			m.from = 0
			s.mustStage(0, 3)
			s.mustStage(1, 3)
			m.upTo(len(all) - 1) // there and back, with all that is staged
			m.from = 1
			m.upTo(len(all) - 1)
			s.commit(4)
			s.step(5)
			s.wantEqual(want)
		})
	}
}

// Both trainers stage while blocks and slots go here and there, at any moment of a move, and some moves are given up by a leader
// that is followed by another one: the bits are those of a job whose blocks stayed.
func TestSyncMovesUnderLoadReplayBitByBit(t *testing.T) {
	onStrictModels(t, func(t *testing.T, tables []params.Table) {
		want := unmoved(t, tables, heavy)
		for seed := range uint64(4) {
			r := rand.New(rand.NewPCG(seed, 3))
			s := newStrict(t, tables, heavy)
			m := newHandMove(t, s.book, 0)
			for version := range uint64(strictSteps) {
				var staging errgroup.Group
				for trainer := range s.trainers {
					staging.Go(func() error { return s.stage(trainer, version) })
				}
				for range 3 {
					m.from = r.IntN(2)
					some := r.Uint32N(8)
					m.choose(func(slot int) bool { return uint32(slot)*2654435761>>29 <= some })
					names, _ := m.steps()
					last := r.IntN(len(names))
					m.upTo(last)
					if last < len(names)-1 {
						m.term++
						if err := m.placer.Tell(within(t), m.term, m.stored()); err != nil {
							t.Fatal(err)
						}
					}
				}
				if err := staging.Wait(); err != nil {
					t.Fatalf("seed %d, version %d: %v", seed, version, err)
				}
				s.commit(version + 1)
			}
			s.wantEqual(want)
		}
	})
}

// The leader dies between any two steps of a move, or in a step, with everything staged. Before the next one has told all servers
// what is committed, which ends the move, it tells them of a version: who has one of two copies of a block does not make it.
func TestSyncMoveIsLeftToAnotherLeader(t *testing.T) {
	onStrictModels(t, func(t *testing.T, tables []params.Table) {
		want := unmoved(t, tables, heavy)
		names, _ := (&handMove{}).steps()
		for last, name := range names {
			for from := range 2 {
				t.Run(fmt.Sprintf("%s/%d", name, from), func(t *testing.T) {
					s := newStrict(t, tables, heavy)
					m := newHandMove(t, s.book, from)
					s.step(1)
					s.mustStage(0, 1)
					s.mustStage(1, 1)
					m.upTo(last)
					for i, server := range m.servers {
						refused := i == from && last >= 1 && last < 5 || i != from && (last == 2 || last == 3)
						_, err := server.CommitStep(within(t), &pb.CommitStepRequest{Version: 2, JobEpoch: 1, Contributors: contributors()})
						if refused != (err != nil) || refused && !strings.Contains(err.Error(), "on their way") {
							t.Fatalf("server %d is told of a version: %v, expected a refusal: %v", i, err, refused)
						}
					}
					if err := m.placer.Tell(within(t), 2, m.stored()); err != nil {
						t.Fatal(err)
					}
					s.commit(2)
					s.step(3)
					m.term = 2
					m.upTo(0)
					s.step(4)
					s.step(5)
					s.wantEqual(want)
				})
			}
		}
	})
}

// Slots alone hold a version up as blocks do, and a trainer that stages for their tables.
func TestSyncMoveOfSlotsAlone(t *testing.T) {
	s := newStrict(t, bothTables, heavy)
	m := newHandMove(t, s.book, 0)
	m.blocks = nil
	s.mustStage(0, 0)
	s.mustStage(1, 0)
	m.upTo(2)
	for i, server := range m.servers {
		if _, err := server.CommitStep(within(t), &pb.CommitStepRequest{Version: 1, JobEpoch: 1, Contributors: contributors()}); err == nil || !strings.Contains(err.Error(), "on their way") {
			t.Errorf("server %d makes a version while there are two copies of a slot: %v", i, err)
		}
	}
	staged := make(chan error, 1)
	go func() { staged <- s.stage(0, 0) }() // again
	select {
	case err := <-staged:
		t.Errorf("rows are staged while slots of their table leave: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	_, steps := m.steps()
	for _, step := range steps[3:] {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-staged; err != nil {
		t.Fatal(err)
	}
	s.commit(1)
}

// A block goes only between servers at one version: a server that was not told of a step yet, or lost it, is told first.
func TestSyncMoveOfTwoVersions(t *testing.T) {
	onStrictModels(t, func(t *testing.T, tables []params.Table) {
		s := newStrict(t, tables, heavy)
		m := newHandMove(t, s.book, 0)
		if tables != nil {
			m.blocks = nil
		}
		s.mustStage(0, 0)
		s.mustStage(1, 0)
		if _, err := m.servers[0].CommitStep(within(t), &pb.CommitStepRequest{Version: 1, JobEpoch: 1, Contributors: contributors()}); err != nil {
			t.Fatal(err)
		}
		_, steps := m.steps()
		if err := steps[1](); err != nil {
			t.Fatal(err)
		}
		if err := steps[2](); err == nil || !strings.Contains(err.Error(), "comes from version 1") {
			t.Errorf("a server at version 0 takes what is of version 1: %v", err)
		}
	})
}

// A server that has no block is told of any version: it has nothing that an earlier one could be missing in.
func TestSyncServerWithoutBlocksSkipsVersions(t *testing.T) {
	s := newStrict(t, nil, heavy)
	m := newHandMove(t, s.book, 0)
	s.step(1)
	m.upTo(5)
	for version := range uint64(2) {
		s.mustStage(0, version+1)
		s.mustStage(1, version+1)
		if _, err := m.servers[1].CommitStep(within(t), &pb.CommitStepRequest{Version: version + 2, JobEpoch: 1, Contributors: contributors()}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.servers[0].CommitStep(within(t), &pb.CommitStepRequest{Version: 3, JobEpoch: 1, Contributors: contributors()}); err != nil {
		t.Errorf("a server without blocks at version 1 is told of version 3: %v", err)
	}
	m.from = 1
	m.upTo(5)
	if d, err := m.servers[0].Describe(within(t), &pb.DescribeRequest{}); err != nil || d.GetVersion() != 3 {
		t.Errorf("%v, %v: expected version 3", d, err)
	}
}

// A server that was started again follows the others to their version when it was told where its blocks are, and not before.
func TestSyncRestartedServerWaitsToBeTold(t *testing.T) {
	b, dir := newBook(2), t.TempDir()
	servers := []*server{startServer(t, b, 0, pserver.Config{CheckpointDir: dir}), startServer(t, b, 1, pserver.Config{CheckpointDir: dir})}
	mustInit(t, connect(t, b, params.Config{Mode: params.Sync, Optimizer: heavy}), small(random(1)))
	m := newHandMove(t, b, 0)
	servers[1].stop()
	if err := servers[1].wait(); err != nil {
		t.Fatal(err)
	}
	again := control(t, startServer(t, b, 1, pserver.Config{CheckpointDir: dir}).addr)
	if _, err := b.complete(within(t)); err != nil {
		t.Fatal(err)
	}
	want := func(version uint64) {
		t.Helper()
		if d, err := again.Describe(within(t), &pb.DescribeRequest{CommittedVersion: 9}); err != nil || d.GetVersion() != version {
			t.Errorf("%v, %v: expected version %d", d, err, version)
		}
	}
	want(0)
	if _, err := again.CommitStep(within(t), &pb.CommitStepRequest{Version: 9, JobEpoch: 1, Contributors: contributors()}); err == nil {
		t.Error("it makes a version before it was told where its blocks are")
	}
	if err := m.placer.Tell(within(t), 1, m.stored()); err != nil {
		t.Fatal(err)
	}
	want(9)
}

// A synchronous job goes back in the middle of a move: what was staged is gone, versions are made at once, of the set's parameters.
func TestSyncRewindInTheMiddleOfAMove(t *testing.T) {
	onStrictModels(t, func(t *testing.T, tables []params.Table) {
		want := unmoved(t, tables, heavy)
		names, _ := (&handMove{}).steps()
		for last, name := range names {
			t.Run(name, func(t *testing.T) {
				c := startCluster(t, t.TempDir(), 2, nil)
				s := newStrictOn(t, c.book, tables, heavy)
				s.step(1)
				set := c.mustTake(t)
				m := newHandMove(t, s.book, 0)
				s.mustStage(0, 1)
				m.upTo(last)
				if err := c.client.Rewind(within(t), 2, 2, set, m.stored()); err != nil {
					t.Fatal(err)
				}
				s.connect(100, 2)
				for version := uint64(1); version < strictSteps; version++ {
					s.mustStage(0, version)
					s.mustStage(1, version)
					for i, server := range m.servers {
						if _, err := server.CommitStep(within(t), &pb.CommitStepRequest{Version: version + 1, JobEpoch: 2, Contributors: []*pb.StepContributor{
							{Ordinal: 1, Incarnation: 102, Records: 17}, {Ordinal: 0, Incarnation: 101, Records: 10},
						}}); err != nil {
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
