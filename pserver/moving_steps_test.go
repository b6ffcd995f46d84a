package pserver_test

import (
	"fmt"
	"slices"
	"testing"

	"trainmaster/master/shards"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/placement"
	"trainmaster/trainer/params"
)

// handMove moves a block, and slots of tables, from one server to another a step at a time, so that a test may come in between.
type handMove struct {
	t      testing.TB
	book   *book
	placer *shards.Client
	term   uint64
	layout *placement.Layout // committed

	servers []pb.ParameterServerClient
	addrs   []string
	blocks  []uint64
	slots   []*pb.TableSlots
	from    int
}

// newHandMove commits and tells the first placement of a job with two servers, and chooses a block of a server, and every
// other slot that it has of each table.
func newHandMove(t testing.TB, b *book, from int) *handMove {
	t.Helper()
	m := &handMove{t: t, book: b, placer: newPlacer(t, b), term: 1, from: from}
	layout, err := placement.ParseLayout(resize(t, b, m.placer, 2))
	if err != nil {
		t.Fatal(err)
	}
	m.layout = layout
	if m.addrs, err = b.complete(within(t)); err != nil {
		t.Fatal(err)
	}
	for _, addr := range m.addrs {
		m.servers = append(m.servers, control(t, addr))
	}
	m.choose(func(slot int) bool { return slot/2%2 == 0 })
	return m
}

// choose has the last block move that the server has, and its slots that are wanted.
func (m *handMove) choose(wanted func(slot int) bool) {
	m.blocks, m.slots = nil, nil
	for id, owner := range m.layout.Owners {
		if int(owner) == m.from {
			m.blocks = []uint64{uint64(id)}
		}
	}
	for table, owners := range m.layout.Slots {
		chosen := &pb.TableSlots{Table: uint32(table)}
		for slot, owner := range owners {
			if int(owner) == m.from && wanted(slot) {
				chosen.Slots = append(chosen.Slots, uint32(slot))
			}
		}
		m.slots = append(m.slots, chosen)
	}
}

// steps are those of a leader, in their order; commit is the one between copies and word of them.
func (m *handMove) steps() (names []string, steps []func() error) {
	to := 1 - m.from
	return []string{"nothing", "frozen", "copied", "committed", "destination told", "source told"}, []func() error{
		func() error { return nil },
		func() error {
			_, err := m.servers[m.from].FreezeBlocks(within(m.t), &pb.FreezeBlocksRequest{Move: m.next(), Blocks: m.blocks, Slots: m.slots})
			return err
		},
		func() error {
			_, err := m.servers[to].TakeBlocks(within(m.t), &pb.TakeBlocksRequest{Move: m.next(), Blocks: m.blocks, Slots: m.slots, Source: m.addrs[m.from]})
			return err
		},
		func() error {
			m.layout.Epoch++
			for _, id := range m.blocks {
				m.layout.Owners[id] = uint32(to)
			}
			for _, t := range m.slots {
				for _, slot := range t.GetSlots() {
					m.layout.Slots[t.GetTable()][slot] = uint32(to)
				}
			}
			m.book.mu.Lock()
			defer m.book.mu.Unlock()
			m.book.job.Placement = m.stored()
			return nil
		},
		func() error { return m.tell(to) },
		func() error { return m.tell(m.from) },
	}
}

func (m *handMove) next() *pb.Move { return &pb.Move{Epoch: m.layout.Epoch + 1, Term: m.term} }

func (m *handMove) stored() []byte {
	text, err := m.layout.Encode()
	if err != nil {
		m.t.Fatal(err)
	}
	return text
}

// tell has one server hear what is committed.
func (m *handMove) tell(i int) error {
	d, err := m.servers[i].Describe(within(m.t), &pb.DescribeRequest{})
	if err != nil {
		return err
	}
	_, err = m.servers[i].SetPlacement(within(m.t), &pb.SetPlacementRequest{
		Move: &pb.Move{Epoch: m.layout.Epoch, Term: m.term}, Model: d.GetModel(),
		Placement: &pb.ParameterPlacement{Epoch: m.layout.Epoch, Shards: uint32(m.layout.Shards), Owners: m.layout.Owners, SlotOwners: slices.Concat(m.layout.Slots...)},
	})
	return err
}

// upTo takes the steps up to one.
func (m *handMove) upTo(last int) {
	m.t.Helper()
	names, steps := m.steps()
	for i, step := range steps[:last+1] {
		if err := step(); err != nil {
			m.t.Fatalf("%s: %v", names[i], err)
		}
	}
}

// Wherever a move is when the job goes back: it goes back to what the set has, with every block where the committed placement has
// it, which may be another one than that of the set, and without blocks that wait. The leader of the move is not heeded any more.
func TestRewindInTheMiddleOfAMove(t *testing.T) {
	names, _ := (&handMove{}).steps()
	for last, name := range names {
		for from := range 2 { // server 0 has one block, and none after the move
			t.Run(fmt.Sprintf("%s/%d", name, from), func(t *testing.T) {
				start, grads := small(random(1)), small(random(2))
				c, trainer := trainedCluster(t, t.TempDir(), start)
				mustPush(t, trainer, 1, grads)
				set := c.mustTake(t)
				m := newHandMove(t, c.book, from)
				mustPush(t, trainer, 2, grads)
				m.upTo(last)

				if err := c.client.Rewind(within(t), 2, 2, set, m.stored()); err != nil {
					t.Fatal(err)
				}
				for i, s := range m.servers {
					d, err := s.Describe(within(t), &pb.DescribeRequest{})
					if err != nil || d.GetPlacement().GetEpoch() != m.layout.Epoch || d.GetState() != pb.DescribeReply_STATE_READY {
						t.Errorf("server %d: %v, %v; expected placement %d", i, d, err, m.layout.Epoch)
					}
					if _, err := s.FreezeBlocks(within(t), &pb.FreezeBlocksRequest{Move: m.next(), Blocks: nil}); err == nil {
						t.Errorf("server %d heeds the leader before", i)
					}
				}
				again := connect(t, c.book, params.Config{Mode: params.Async, Optimizer: heavy, Ordinal: 7, Incarnation: 101, JobEpoch: 2})
				values := small(constant(0))
				mustInit(t, again, values)
				if err := differ(values, stepped(start, grads, 1)); err != nil {
					t.Errorf("after going back: %v", err)
				}
				if _, err := again.PushPull(within(t), 1, 1, grads, values); err != nil {
					t.Fatal(err)
				}
				if err := differ(values, stepped(start, grads, 2)); err != nil {
					t.Errorf("a step later: %v", err)
				}
				m.term = 2
				if err := m.placer.Tell(within(t), m.term, m.stored()); err != nil {
					t.Errorf("the new leader tells the placement: %v", err)
				}
				if err := m.placer.Tell(within(t), 3, m.stored()); err != nil {
					t.Errorf("a third leader tells the placement: %v", err)
				}
				if err := c.client.Rewind(within(t), 2, 3, set, m.stored()); err == nil {
					t.Error("the second leader is heard after the third one")
				}
			})
		}
	}
}
