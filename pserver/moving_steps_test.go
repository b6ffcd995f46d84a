package pserver_test

import (
	"testing"

	"trainmaster/master/psclient"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/migrate"
	"trainmaster/pserver/placement"
)

// handMove moves a block, and slots of tables, from one server to another a step at a time, so that a test may come in between.
type handMove struct {
	t      testing.TB
	book   *book
	placer *psclient.Client
	term   uint64
	layout *placement.Layout // committed

	servers []pb.ParameterServerClient
	addrs   []string
	moving  []*pb.Partitions
	from    int
}

// newHandMove chooses a block of a server, and every other slot that it has of each table.
func newHandMove(t testing.TB, b *book, from int) *handMove {
	t.Helper()
	m := &handMove{t: t, book: b, placer: newPlacer(t, b), term: 1, from: from}
	stored, err := m.placer.Resize(within(t), nil, 2)
	if err != nil {
		t.Fatal(err)
	}
	if m.layout, err = placement.ParseLayout(stored); err != nil {
		t.Fatal(err)
	}
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
	m.moving = nil
	for id, owner := range m.layout.Owners {
		if int(owner) == m.from {
			m.moving = []*pb.Partitions{{Numbers: []uint64{uint64(id)}}}
		}
	}
	for table, owners := range m.layout.Slots {
		chosen := &pb.Partitions{Table: uint32(table) + 1}
		for slot, owner := range owners {
			if int(owner) == m.from && wanted(slot) {
				chosen.Numbers = append(chosen.Numbers, uint64(slot))
			}
		}
		m.moving = append(m.moving, chosen)
	}
}

// steps are those of a leader, in their order; commit is the one between copies and word of them.
func (m *handMove) steps() (names []string, steps []func() error) {
	to := 1 - m.from
	return []string{"nothing", "frozen", "copied", "committed", "destination told", "source told"}, []func() error{
		func() error { return nil },
		func() error {
			_, err := m.servers[m.from].Freeze(within(m.t), &pb.FreezeRequest{Move: m.next(), Partitions: m.moving})
			return err
		},
		func() error {
			_, err := m.servers[to].Take(within(m.t), &pb.TakeRequest{Move: m.next(), Partitions: m.moving, Source: m.addrs[m.from]})
			return err
		},
		m.commit,
		func() error { return m.tell(to) },
		func() error { return m.tell(m.from) },
	}
}

// commit stores the placement after the move.
func (m *handMove) commit() error {
	m.layout.Epoch++
	for _, id := range migrate.Partitions(m.moving) {
		*m.layout.Owner(id) = uint32(1 - m.from)
	}
	m.book.mu.Lock()
	defer m.book.mu.Unlock()
	m.book.job.Placement = m.stored()
	return nil
}

func (m *handMove) next() *pb.Move { return &pb.Move{Epoch: m.layout.Epoch + 1, Term: m.term} }

func (m *handMove) stored() []byte {
	text, err := m.layout.Encode()
	if err != nil {
		m.t.Fatal(err)
	}
	return text
}

// tell sends one server the committed placement.
func (m *handMove) tell(i int) error {
	d, err := m.servers[i].Describe(within(m.t), &pb.DescribeRequest{})
	if err != nil {
		return err
	}
	_, err = m.servers[i].SetPlacement(within(m.t), &pb.SetPlacementRequest{Term: m.term, Placement: m.stored(), Model: d.GetModel()})
	return err
}
