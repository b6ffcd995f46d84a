package pserver

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/staleness"
	"trainmaster/pserver/wire"
)

// This simulation has no sockets: the frames of two trainers reach the production code of two shards in a random order,
// twice or not at all, replies are lost, trainers come back as other incarnations, and shards are killed, also in the
// middle of a checkpoint, and come back from the newest one. Blocks move between the shards (moving_sim_test.go). Beside
// each block stands a literal one: the list of the updates that its parameters have.

// update is one trainer's step.
type update struct{ incarnation, step uint64 }

// literal is what a block has, and the sum of the gradients.
type literal struct {
	updates []update
	sum     float32
}

// literals is what a shard has.
type literals struct {
	blocks  map[uint64]literal
	greeted map[uint32]uint64 // by trainer: the newest incarnation that said hello
}

func (l literals) clone() literals { return literals{maps.Clone(l.blocks), maps.Clone(l.greeted)} }

// node is a production shard and the literal blocks beside it.
type node struct {
	*world
	index int
	dir   string
	life  int // counts its starts
	shard *shard
	files *checkpoints
	literals
	frozen  map[uint64]bool
	since   map[uint64]uint32 // the placement with which a block arrived: over an earlier one its old place answers
	stored  literals          // in the newest checkpoint
	cutting literals          // in the one that is being written
	dying   int               // it is killed after so many steps of the checkpoint under way
}

// line is a connection of a trainer's incarnation to one life of a shard.
type line struct {
	*conn
	life int
}

// packet is a frame that may still be delivered.
type packet struct {
	from  *crewman
	to    *node
	by    *line
	block uint64
	head  wire.Header
	value float32 // of each element of the gradient
}

// crewman is a trainer: it pushes a step to all blocks of both shards, then the next one.
type crewman struct {
	*world
	ordinal           uint32
	incarnation, step uint64
	attempt           int // grows when the step is rejected
	known             *placement.Table
	lines             []*line
	lives             []int    // of the shards, when it said hello last
	at                []uint32 // by block: the version that it computes with
	acked             []bool
}

type world struct {
	*testing.T
	random *rand.Rand
	bound  staleness.Bound
	table  *placement.Table // the first
	move   move
	nodes  []*node
	crew   []*crewman // all incarnations
	flight []*packet
	buf    *buffer
	seen   map[string]int
}

func newWorld(t *testing.T, seed uint64, bound staleness.Bound, seen map[string]int) *world {
	table, err := placement.New([]placement.Tensor{{Name: "a", Shape: []int{3}}, {Name: "b", Shape: []int{2}}, {Name: "c", Shape: []int{2}}, {Name: "d"}}, 2)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, random: rand.New(rand.NewPCG(seed, 0)), bound: bound, table: table, buf: newBuffer(), seen: seen}
	for i := range 2 {
		n := &node{world: w, index: i, dir: t.TempDir()}
		w.nodes = append(w.nodes, n)
		n.start()
		n.checkpoint(0)
	}
	for i := range 2 {
		w.join(uint32(i))
	}
	return w
}

// seat is the claim to an index.
type seat struct {
	Claim
	node *node
}

func (s seat) Index() int    { return s.node.index }
func (s seat) Job() JobState { return JobState{Placement: s.node.move.committed} }

// start makes the shard, from its newest checkpoint if there is one.
func (n *node) start() {
	n.life++
	n.frozen, n.since = map[uint64]bool{}, map[uint64]uint32{}
	log := logrus.New()
	log.SetOutput(io.Discard)
	server := &Server{cfg: Config{Keep: 2, InitTimeout: time.Minute, Log: logrus.NewEntry(log)}, place: checkpoint.Disk(n.dir), step: n.wrote}
	var err error
	if n.shard, n.files, err = server.open(context.Background(), seat{node: n}); err != nil {
		n.Fatal(err)
	}
	if n.shard.ready.Load() {
		n.literals = n.stored.clone()
		n.restart()
		for id := range n.blocks {
			n.compare(id)
		}
		return
	}
	if n.move.layout != nil { // no block is here
		n.literals = literals{map[uint64]literal{}, map[uint32]uint64{}}
		return
	}
	m, err := newModel(optimizer.Config{Kind: optimizer.SGD, LearningRate: 1}, false, n.table)
	if err == nil {
		m, err = m.bounded(n.bound)
	}
	if err != nil {
		n.Fatal(err)
	}
	h := n.shard.newHolding(m)
	for _, b := range h.blocks {
		b.fill(make([]float32, b.Len), m.rule)
	}
	n.literals = literals{map[uint64]literal{}, map[uint32]uint64{}}
	for _, b := range h.blocks {
		n.blocks[b.ID] = literal{}
	}
	n.shard.holding.Store(h)
	n.shard.ready.Store(true)
}

// compare is the invariant: a block has the updates of its literal one, and no others.
func (n *node) compare(block uint64) {
	b, want := n.shard.holding.Load().byID[block], n.blocks[block]
	for i, v := range b.params {
		if v != -want.sum || b.version != uint64(len(want.updates)) {
			n.Fatalf("shard %d, life %d, block %d: element %d is %v at version %d; expected %v at %d, after %v",
				n.index, n.life, block, i, v, b.version, -want.sum, len(want.updates), want.updates)
		}
	}
}

// checkpoint writes one, while frames go on being delivered, or until the shard is killed after some steps of it.
func (n *node) checkpoint(dying int) {
	n.dying = dying
	defer func() {
		n.dying = 0
		if r := recover(); r == any(errKilled) {
			n.seen["killed in a checkpoint"]++
			n.start()
		} else if r != nil {
			panic(r)
		}
	}()
	if !n.shard.ready.Load() {
		return
	}
	if err := n.files.saveSelf(context.Background(), checkpoint.First); err != nil {
		n.Fatal(err)
	}
}

var errKilled = fmt.Errorf("killed")

// wrote is called after each step of a checkpoint.
func (n *node) wrote(what string) {
	if what == "folder made" { // the cut follows at once
		n.cutting = n.clone()
		return
	}
	if what == "manifest renamed" {
		n.stored = n.cutting
	}
	if n.dying--; n.dying == 0 {
		panic(errKilled)
	}
	for range n.random.IntN(3) {
		n.deliver()
	}
}

// join makes a trainer's next incarnation. The one before may not know that it is over.
func (w *world) join(ordinal uint32) {
	c := &crewman{world: w, ordinal: ordinal, incarnation: uint64(len(w.crew)) + 1, lines: make([]*line, len(w.nodes)), lives: make([]int, len(w.nodes)), known: w.table}
	c.acked, c.at = make([]bool, len(w.table.Owners)), make([]uint32, len(w.table.Owners))
	c.pull()
	c.next()
	w.crew = append(w.crew, c)
}

// pull brings all versions.
func (c *crewman) pull() {
	for _, n := range c.nodes {
		for id, b := range n.blocks {
			c.at[id] = uint32(len(b.updates))
		}
	}
}

func (c *crewman) next() {
	c.step++
	c.attempt = 0
	clear(c.acked)
}

// act sends the frame of a block that is not acknowledged, over a connection to the shard as it is now.
func (c *crewman) act() {
	for id, acked := range c.acked {
		if acked || c.random.IntN(2) == 0 {
			continue
		}
		i := c.known.Owners[id]
		n := c.nodes[i]
		if c.lines[i] == nil || c.lines[i].life != n.life {
			c.open(int(i))
			return
		}
		head := c.lines[i].head
		head.Op, head.Block, head.Step, head.DType = wire.PushPull, uint64(id), c.step, wire.Float32
		head.Version, head.Length = c.at[id], uint32(4*c.table.Blocks()[id].Len)
		value := float32(1 + (c.incarnation*31+c.step*7+uint64(id)*3+uint64(c.attempt))%11)
		c.flight = append(c.flight, &packet{c, n, c.lines[i], uint64(id), head, value})
		return
	}
	if !slices.Contains(c.acked, false) {
		c.next()
	}
}

// open says hello. What a life before has acknowledged of this step may be lost: it is sent again.
func (c *crewman) open(shard int) {
	n := c.nodes[shard]
	l := &line{&conn{shard: n.shard, log: n.shard.log, limits: &Config{PullWait: 1}}, n.life}
	digest := c.known.Digest()
	copy(c.buf.bytes, digest[:])
	l.head = wire.Header{Op: wire.Hello, Block: uint64(c.ordinal), Incarnation: c.incarnation, Argument: uint32(shard), Placement: c.known.Epoch, Length: uint32(len(digest))}
	r := answer(&l.head, n.shard.epoch)
	fault := l.handle(c.buf, true, &r)
	if c.elsewhere(n, fault) {
		return
	}
	over := n.greeted[c.ordinal] > c.incarnation
	if over != (fault != nil) || over && fault.Code != wire.Fenced {
		c.Fatalf("hello of incarnation %d after one of %d: %v", c.incarnation, n.greeted[c.ordinal], fault)
	}
	if over {
		c.seen["hello of an older one"]++
		return
	}
	n.greeted[c.ordinal] = c.incarnation
	l.head = wire.Header{Incarnation: c.incarnation, Placement: r.head.Placement, ShardEpoch: n.shard.epoch, JobEpoch: r.head.JobEpoch}
	c.lines[shard] = l
	if c.lives[shard] == n.life {
		return
	}
	c.lives[shard] = n.life
	for id, owner := range c.known.Owners {
		c.acked[id] = c.acked[id] && owner != uint32(shard)
	}
}

// deliver hands one of the frames on their way to its shard, and the reply to its trainer, or loses either.
func (w *world) deliver() {
	if len(w.flight) == 0 {
		return
	}
	i := w.random.IntN(len(w.flight))
	p := w.flight[i]
	if w.random.IntN(3) > 0 { // else it comes once more
		w.flight = slices.Delete(w.flight, i, i+1)
	}
	n := p.to
	if p.by.life != n.life {
		w.seen["lost with its server"]++
		return
	}
	was, here := n.blocks[p.block]
	here = here && p.head.Placement >= n.since[p.block]
	isNew := !slices.Contains(was.updates, update{p.head.Incarnation, p.head.Step})
	now := uint32(len(was.updates))
	isStale := w.bound.Weight(uint64(now-min(p.head.Version, now))) == 0
	size := int(p.head.Length) / 4
	for j := range size {
		w.buf.floats[j] = p.value
	}
	p.by.head = p.head
	r := answer(&p.head, n.shard.epoch)
	fault := p.by.handle(w.buf, true, &r)
	outcome := "applied"
	switch {
	case fault != nil:
		outcome = fault.Code.String()
	case r.head.Flags&wire.Duplicate != 0:
		outcome = "duplicate"
	}
	want := "applied"
	switch {
	case n.greeted[p.from.ordinal] > p.head.Incarnation:
		want = "fenced"
	case !here:
		want = "moved"
	case n.frozen[p.block]:
		want = "wait"
	case !isNew:
		want = "duplicate"
	case isStale:
		want = "stale"
	}
	if outcome != want {
		w.Fatalf("shard %d, life %d: step %d of incarnation %d for block %d, after %v: %s (%v), expected %s", n.index, n.life, p.head.Step, p.head.Incarnation, p.block, was.updates, outcome, fault, want)
	}
	w.seen[outcome]++
	if outcome == "applied" {
		was = literal{append(slices.Clone(was.updates), update{p.head.Incarnation, p.head.Step}), was.sum + p.value}
		n.blocks[p.block] = was
	}
	if here {
		n.compare(p.block)
	}
	if fault == nil && (w.buf.floats[0] != -was.sum || r.head.Version != uint32(len(was.updates))) {
		w.Fatalf("the reply has %v of version %d, expected %v of %d", w.buf.floats[0], r.head.Version, -was.sum, len(was.updates))
	}
	if w.random.IntN(4) == 0 {
		w.seen["reply lost"]++
		return
	}
	p.from.hear(p, outcome, r.head.Version)
}

// hear takes a reply, unless it is to an earlier step or came over an earlier connection.
func (c *crewman) hear(p *packet, outcome string, version uint32) {
	if p.head.Step != c.step || p.by != c.lines[p.to.index] {
		return
	}
	switch outcome {
	case "applied", "duplicate":
		c.acked[p.block], c.at[p.block] = true, version
	case "moved":
		c.learn()
	case "stale": // the same batch at newer parameters
		c.attempt++
		c.pull()
	}
}

// A push is applied once to each block of its step, whatever is lost, repeated, killed or restored: the literal blocks say so
// after each delivery and each restart.
func TestEachPushOnce(t *testing.T) {
	seen := map[string]int{}
	steps := uint64(0)
	for seed := range uint64(24) {
		bound := staleness.Bound{}
		if seed%2 == 1 {
			bound = staleness.Bound{Policy: staleness.Reject, Limit: seed % 3}
		}
		w := newWorld(t, seed, bound, seen)
		for range 1500 {
			n, c := w.nodes[w.random.IntN(2)], w.crew[len(w.crew)-1-w.random.IntN(min(3, len(w.crew)))]
			switch at := w.random.IntN(300); {
			case at < 2:
				n.checkpoint(0)
			case at < 20 && seed%3 > 0:
				w.lead()
			case at < 24 && w.move.needs(n): // a set of both shards is due
			case at < 22:
				n.checkpoint(1 + w.random.IntN(20))
			case at < 24:
				seen["killed"]++
				n.start()
			case at < 26:
				w.join(c.ordinal)
			case at < 150:
				c.act()
			default:
				w.deliver()
			}
		}
		for _, c := range w.crew {
			steps += c.step - 1
		}
	}
	t.Logf("%v, %d steps", seen, steps)
	for _, what := range []string{"applied", "duplicate", "stale", "fenced", "hello of an older one", "lost with its server", "reply lost", "killed", "killed in a checkpoint",
		"moved", "wait", "blocks moved", "moves given up", "hello with an older placement", "hello with a newer placement", "source killed in a move", "destination killed in a move"} {
		if seen[what] < 20 {
			t.Errorf("%s: %d times only", what, seen[what])
		}
	}
}
