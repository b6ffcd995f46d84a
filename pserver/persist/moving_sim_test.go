package persist

import (
	"maps"
	"time"

	"trainmaster/pserver/partition"
	"trainmaster/pserver/placement"
	core "trainmaster/pserver/shard"
)

// move is a migration by the leader of the simulation: a block or a slot moves from one shard to another, in the steps of moving.go. Any
// shard may be killed between any two of them, with one exception: a destination from the commit to the set of checkpoints after
// it, since this simulation has no sets to fall back on (TestDestinationLost has).
type move struct {
	committed []byte // the layout in the store, nil: none
	layout    *placement.Layout
	term      uint64

	phase     movePhase
	unit      unit
	from, to  *node
	lives     [2]int // of from and to, when it began
	arriving  literal
	greeted   map[uint32]uint64 // that the source knew
	over      map[uint64]bool
	told      []*node
	decidedTo bool
}

type movePhase int

const (
	idle movePhase = iota
	frozen
	taken
	decided
)

func (m *move) needs(n *node) bool { return m.phase == decided && m.decidedTo && n == m.to }

// lead takes the leader's next step.
func (w *world) lead() {
	m := &w.move
	switch m.phase {
	case idle:
		if m.layout == nil {
			m.term = 1
			first := placement.LayoutOf(w.table, 2)
			first.Epoch++
			w.commit(first)
		}
		for _, n := range w.nodes {
			n.tell()
		}
		m.unit = w.units[w.random.IntN(len(w.units))]
		m.from = w.nodes[*owner(m.layout, m.unit)]
		m.to = w.nodes[1-m.from.index]
		m.lives = [2]int{m.from.life, m.to.life}
		w.must(m.from.shard.Freeze(w.Context(), m.next(), m.what(), time.Now()))
		m.from.frozen[m.unit] = true
		m.phase = frozen
	case frozen:
		if !m.to.shard.Ready() { // killed, and had no block: it needs the placement first
			m.giveUp(w)
			return
		}
		w.must(m.to.shard.Take(w.Context(), m.next(), m.what(), func(add func(*core.Piece) error) error {
			return m.from.shard.Read(m.next(), m.what()[0], add)
		}))
		if m.to.life != m.lives[1] {
			w.seen["destination killed in a move"]++
		}
		m.lives[1] = m.to.life
		m.arriving, m.greeted, m.over = m.from.has[m.unit], maps.Clone(m.from.greeted), maps.Clone(m.from.over)
		m.phase = taken
	case taken:
		if m.from.life != m.lives[0] {
			w.seen["source killed in a move"]++
		}
		lost := m.to.life != m.lives[1]
		if lost {
			w.seen["destination killed in a move"]++
		}
		if m.decidedTo = !lost && w.random.IntN(4) > 0; m.decidedTo {
			next, err := placement.ParseLayout(m.committed)
			w.must(err)
			next.Epoch++
			*owner(next, m.unit) = uint32(m.to.index)
			w.commit(next)
			if m.unit < unitSlots {
				w.seen["blocks moved"]++
			} else {
				w.seen["slots moved"]++
			}
		} else {
			m.giveUp(w)
		}
		m.phase, m.told = decided, []*node{m.to, m.from}
	case decided:
		m.told[0].tell()
		if m.told = m.told[1:]; len(m.told) > 0 {
			return
		}
		m.phase = idle
		if m.decidedTo {
			m.to.checkpoint(0)
		}
	}
}

// next identifies the step of the migration.
func (m *move) next() core.Move { return core.Move{Term: m.term, Epoch: m.layout.Epoch + 1} }

// what is the block or the slot that moves.
func (m *move) what() []partition.ID {
	if m.unit >= unitSlots {
		return []partition.ID{partition.Slot(0, slotOf(m.unit))}
	}
	return []partition.ID{partition.Block(m.unit)}
}

// owner is the shard of a unit in a layout.
func owner(l *placement.Layout, u unit) *uint32 {
	if u >= unitSlots {
		return &l.Slots[0][slotOf(u)]
	}
	return &l.Owners[u]
}

// giveUp leaves the move to the next leader, who finds it undecided.
func (m *move) giveUp(w *world) {
	m.term++
	m.phase, m.told, m.decidedTo = decided, []*node{m.to, m.from}, false
	w.seen["moves given up"]++
}

func (w *world) must(err error) {
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) commit(l *placement.Layout) {
	text, err := l.Encode()
	w.must(err)
	w.move.committed, w.move.layout = text, l
}

// tell sends a shard the committed placement.
func (n *node) tell() {
	m := &n.move
	other := n.nodes[1-n.index]
	if n.shard.Ready() {
		other = n
	}
	_, err := n.files.Settle(m.term, m.layout, other.shard.View().Model(), time.Now())
	n.must(err)
	clear(n.frozen)
	if m.phase == decided && m.decidedTo && n == m.to {
		n.has[m.unit], n.since[m.unit] = m.arriving, m.layout.Epoch
		delete(n.pushes, m.unit)
		maps.DeleteFunc(n.seenAt, func(by update, _ uint32) bool { return by.step == m.unit })
		n.forget(m.over)
		for ordinal, incarnation := range m.greeted {
			if !n.over[incarnation] {
				n.greeted[ordinal] = max(n.greeted[ordinal], incarnation)
			}
		}
	}
	n.leave()
	n.compareAll()
}

// leave drops the literal units that are another shard's.
func (n *node) leave() {
	maps.DeleteFunc(n.has, func(u unit, _ literal) bool { return *owner(n.move.layout, u) != uint32(n.index) })
}

// restart: nothing is taken before the shard has the committed placement.
func (n *node) restart() {
	if n.move.layout == nil {
		return
	}
	n.leave()
	for u := range n.has {
		n.frozen[u] = true
	}
}

// learn takes the newest placement that a shard has.
func (c *crewman) learn() {
	for _, n := range c.nodes {
		if h := n.shard.View(); h != nil && h.Model().Placement.Epoch > c.known.Epoch {
			c.known = h.Model().Placement
			clear(c.lines)
		}
	}
}

// elsewhere takes the answer to a hello with another placement than the shard's.
func (c *crewman) elsewhere(n *node, refused *core.Refusal) bool {
	var at uint32
	if h := n.shard.View(); h != nil {
		at = h.Model().Placement.Epoch
	}
	if c.known.Epoch == at {
		return false
	}
	want, what := core.Moved, "hello with an older placement"
	if c.known.Epoch > at { // the leader tells it, or at 0 what the job is
		want, what = core.NotReady, "hello with a newer placement"
	}
	if refused == nil || refused.Reason != want {
		c.Fatalf("hello with placement epoch %d at shard %d of epoch %d: %v, expected %v", c.known.Epoch, n.index, at, refused, want)
	}
	c.seen[what]++
	if want == core.Moved {
		c.learn()
	}
	return true
}
