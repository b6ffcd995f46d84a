package pserver_test

import (
	"fmt"
	"strings"
	"testing"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver"
	"trainmaster/trainer/params"
)

// strict is a synchronous job on two servers with two trainers, whose gradients are functions of trainer and version.
type strict struct {
	*testing.T
	book     *book
	master   *master
	trainers []*params.Client
	values   []params.Tensor
}

func newStrict(t *testing.T, o params.Optimizer) *strict {
	t.Helper()
	return newStrictOn(t, startServers(t, 2, pserver.Config{}), o)
}

func newStrictOn(t *testing.T, b *book, o params.Optimizer) *strict {
	t.Helper()
	s := &strict{T: t, book: b, values: small(random(1))}
	s.master = newMaster(t, s.book)
	for ordinal := range uint32(2) {
		c := connect(t, s.book, params.Config{Mode: params.Sync, Optimizer: o, Ordinal: ordinal})
		mustInit(t, c, s.values)
		s.trainers = append(s.trainers, c)
	}
	return s
}

func (s *strict) stage(trainer int, version uint64) error {
	return s.trainers[trainer].Stage(within(s), version, small(random(100*uint64(trainer)+version)), 10+7*trainer)
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

// unmoved is what the steps give where no block ever moves.
func unmoved(t *testing.T, o params.Optimizer) []params.Tensor {
	t.Helper()
	s := newStrict(t, o)
	for version := range uint64(strictSteps) {
		s.step(version + 1)
	}
	return s.values
}

func (s *strict) wantEqual(want []params.Tensor) {
	s.Helper()
	if err := differ(s.values, want); err != nil {
		s.Errorf("after a move %v", err)
	}
}

// Blocks move between two steps, with what is staged and while it is being staged, there and back: replaying the steps gives the
// same bits as on servers that kept their blocks.
func TestSyncMovesReplayBitByBit(t *testing.T) {
	for _, o := range []params.Optimizer{heavy, {Kind: "adam", LearningRate: 0.01, ClipNorm: 5}} {
		want := unmoved(t, o)
		s := newStrict(t, o)
		m := newHandMove(t, s.book, 0)
		all, _ := m.steps()
		s.step(1)
		s.mustStage(0, 1) // staged before
		m.upTo(1)
		staged := make(chan error, 1)
		go func() { staged <- s.stage(1, 1) }() // staged while it is frozen, and after it has left
		if addrs, err := s.book.complete(within(t)); err != nil {
			t.Fatal(err)
		} else { // until it waits, or has staged the rest
			for d, err := control(t, addrs[1]).Describe(within(t), &pb.DescribeRequest{}); d.GetCounters().GetBlocksStaged() < 8; d, err = control(t, addrs[1]).Describe(within(t), &pb.DescribeRequest{}) {
				if err != nil {
					t.Fatal(err)
				}
			}
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
		m.upTo(len(all) - 1)
		s.commit(4)
		s.step(5)
		s.wantEqual(want)
	}
}

// The leader dies between any two steps of a move, or in a step, with everything staged. Before the next one has told all servers
// what is committed, which ends the move, it tells them of a version: who has one of two copies of a block does not make it.
func TestSyncMoveIsLeftToAnotherLeader(t *testing.T) {
	want := unmoved(t, heavy)
	names, _ := (&handMove{}).steps()
	for last, name := range names {
		for from := range 2 {
			t.Run(fmt.Sprintf("%s/%d", name, from), func(t *testing.T) {
				s := newStrict(t, heavy)
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
				if err := m.placer.Tell(within(t), 2, m.stored(), 0); err != nil {
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
}

// A block goes only between servers at one version: a server that was not told of a step yet, or lost it, is told first.
func TestSyncMoveOfTwoVersions(t *testing.T) {
	s := newStrict(t, heavy)
	m := newHandMove(t, s.book, 0)
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
		t.Errorf("a server at version 0 takes a block of version 1: %v", err)
	}
}

// A server that has no block is told of any version: it has nothing that an earlier one could be missing in.
func TestSyncServerWithoutBlocksSkipsVersions(t *testing.T) {
	s := newStrict(t, heavy)
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
	if err := m.placer.Tell(within(t), 1, m.stored(), 0); err != nil {
		t.Fatal(err)
	}
	want(9)
}

// A synchronous job goes back in the middle of a move: what was staged is gone, versions are made at once, of the set's parameters.
func TestSyncRewindInTheMiddleOfAMove(t *testing.T) {
	want := unmoved(t, heavy)
	names, _ := (&handMove{}).steps()
	for last, name := range names {
		t.Run(name, func(t *testing.T) {
			c := startCluster(t, t.TempDir(), 2, nil)
			s := newStrictOn(t, c.book, heavy)
			s.step(1)
			set := c.mustTake(t)
			m := newHandMove(t, s.book, 0)
			s.mustStage(0, 1)
			m.upTo(last)
			if err := c.client.Rewind(within(t), 2, 2, set, m.stored()); err != nil {
				t.Fatal(err)
			}
			for i := range s.trainers {
				s.trainers[i] = connect(t, s.book, params.Config{Mode: params.Sync, Optimizer: heavy, Ordinal: uint32(i), Incarnation: uint64(i) + 101, JobEpoch: 2})
				mustInit(t, s.trainers[i], s.values)
			}
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
}
