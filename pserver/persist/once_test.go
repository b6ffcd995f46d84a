package persist

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/sirupsen/logrus"

	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/floats"
	"trainmaster/pserver/model"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
	core "trainmaster/pserver/shard"
	"trainmaster/pserver/staleness"
	"trainmaster/pserver/table"
)

// This simulation has no sockets. Frames of two trainers reach the production code of two shards in a random order, twice or not at
// all. Replies are lost. Trainers are replaced by new incarnations. Shards are killed, also during a checkpoint, and restart from
// the newest checkpoint. Blocks and slots of a table move between the shards (moving_sim_test.go). Each shard is compared with a
// literal model: the list of the updates of its parameters.

// update is one trainer's step.
type update struct{ incarnation, step uint64 }

// unit is a block by its number, or from unitSlots on a slot: the one of a row that every push to the slot is about.
type unit = uint64

const unitSlots unit = 100

var (
	slotRows  = []int64{0, 1, 2, 3, 4, 5} // in as many slots
	slotTable = table.Config{Name: "t", Dim: 2, Init: table.Zeros}
)

// slotOf is the slot of a unit that is one.
func slotOf(u unit) uint32 { return table.SlotOf(slotRows[u-unitSlots]) }

// unitsOf lists all units of a placement, slots in the order in which frames have them.
func unitsOf(t *placement.Table) (list []unit) {
	for id := range t.Owners {
		list = append(list, unit(id))
	}
	for i := range slotRows {
		list = append(list, unitSlots+unit(i))
	}
	slices.SortFunc(list[len(t.Owners):], func(a, b unit) int { return cmp.Compare(slotOf(a), slotOf(b)) })
	return list
}

// ownerOf is the shard of a unit.
func ownerOf(t *placement.Table, u unit) uint32 {
	if u >= unitSlots {
		return t.SlotOwners[0][slotOf(u)]
	}
	return t.Owners[u]
}

// literal is what a block has, and the sum of the gradients, each times its weight.
type literal struct {
	updates []update
	sum     float32
}

// literals is what a shard has.
type literals struct {
	has     map[unit]literal
	greeted map[uint32]uint64 // by trainer: the newest incarnation that said hello
	over    map[uint64]bool   // retired incarnations
}

func (l literals) clone() literals {
	return literals{maps.Clone(l.has), maps.Clone(l.greeted), maps.Clone(l.over)}
}

func noLiterals() literals {
	return literals{map[unit]literal{}, map[uint32]uint64{}, map[uint64]bool{}}
}

// forget takes incarnations for over.
func (l literals) forget(over map[uint64]bool) {
	maps.Copy(l.over, over)
	maps.DeleteFunc(l.greeted, func(_ uint32, incarnation uint64) bool { return l.over[incarnation] })
}

// node is a production shard with its literal model.
type node struct {
	*world
	index int
	dir   string
	life  int  // counts its starts
	told  bool // whether it has the retired incarnations since its start
	shard *core.Shard
	files *Checkpoints
	literals
	frozen  map[unit]bool
	pushes  map[unit]uint32   // updates of a slot since this start
	seenAt  map[update]uint32 // by incarnation and, as its step, slot: pushes after the incarnation's last push
	since   map[unit]uint32   // the placement with which one arrived: over an earlier one its old place answers
	stored  literals          // in the newest checkpoint
	cutting literals          // in the checkpoint in progress
	dying   int               // steps of the current checkpoint until it is killed
}

// line is a connection of a trainer's incarnation to one life of a shard.
type line struct {
	trainer *core.Trainer
	view    *core.View
	life    int
}

// request is a push of a trainer's step, based on a version.
type request struct {
	incarnation, step uint64
	version           uint32
	placement         uint32
	isRows            bool
}

// values are the parameters that a push returns.
type values []float32

func (v *values) Begin(core.Result, int) { *v = (*v)[:0] }

func (v *values) Put(_ int, params []float32) (isFinite bool) {
	*v = append(*v, params...)
	return floats.Finite(params)
}

// packet is a frame that may still be delivered.
type packet struct {
	from  *crewman
	to    *node
	by    *line
	units []unit // a block, or some slots
	head  request
	value []float32 // by unit, of each element of the gradient
}

// crewman is a trainer: it pushes a step to all units of both shards, then the next step.
type crewman struct {
	*world
	ordinal           uint32
	incarnation, step uint64
	known             *placement.Table
	lines             []*line
	lives             []int           // of the shards, when it said hello last
	at                map[unit]uint32 // the version that it computes with
	acked             map[unit]bool
}

type world struct {
	*testing.T
	random *rand.Rand
	bound  staleness.Bound
	table  *placement.Table // the first
	units  []unit
	move   move
	nodes  []*node
	crew   []*crewman // all incarnations
	flight []*packet
	reply  values // of the last push
	seen   map[string]int
}

func newWorld(t *testing.T, seed uint64, bound staleness.Bound, seen map[string]int) *world {
	table, err := placement.New([]placement.Tensor{{Name: "a", Shape: []int{3}}, {Name: "b", Shape: []int{2}}, {Name: "c", Shape: []int{2}}, {Name: "d"}}, 2, slotTable)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, random: rand.New(rand.NewPCG(seed, 0)), bound: bound, table: table, units: unitsOf(table), seen: seen}
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

// start makes the shard, from its newest checkpoint if there is one.
func (n *node) start() {
	n.life++
	n.told = false
	n.frozen, n.since = map[unit]bool{}, map[unit]uint32{}
	n.pushes, n.seenAt = map[unit]uint32{}, map[update]uint32{}
	log := logrus.New()
	log.SetOutput(io.Discard)
	job := JobState{Placement: n.move.committed}
	n.shard, n.files = openEmpty(n.T, checkpoint.Store{Place: checkpoint.Disk(n.dir), Points: n.wrote}, n.index, job, log)
	layout := n.move.layout
	if layout == nil || layout.Owns(n.index) {
		if _, err := loadPart(context.Background(), n.files, job); err != nil {
			n.Fatal(err)
		}
	}
	n.must(n.shard.CheckRestored(layout))
	if n.shard.Ready() {
		n.literals = n.stored.clone()
		n.restart()
		n.compareAll()
		return
	}
	n.literals = noLiterals()
	if n.move.layout != nil { // no block is here
		return
	}
	m, err := model.New(optimizer.Config{Kind: optimizer.SGD, LearningRate: 1}, false, n.table)
	if err == nil {
		m, err = m.WithStaleness(n.bound)
	}
	if err != nil {
		n.Fatal(err)
	}
	begin(n.T, n.shard, m)
	for _, u := range n.world.units {
		if ownerOf(n.table, u) == uint32(n.index) {
			n.has[u] = literal{}
		}
	}
}

// compare is the invariant: a unit has the updates of its literal one, and no others.
func (n *node) compare(u unit) {
	h, want := n.shard.View(), n.has[u]
	values, version := make([]float32, slotTable.Dim), uint64(len(want.updates)) // which rows have none of
	if u >= unitSlots {
		id := slotRows[u-unitSlots]
		if err := h.Tables()[0].Lookup(&table.Batch{Spans: []table.Span{{Slot: table.SlotOf(id), Rows: 1}}, IDs: []int64{id}}, nil, values); err != nil {
			n.Fatal(err)
		}
	} else {
		h.Block(u).Inspect(nil, func(params []float32, v, _ uint64) { values, version = slices.Clone(params), v })
	}
	for i, v := range values {
		if v != -want.sum || version != uint64(len(want.updates)) {
			n.Fatalf("shard %d, life %d, unit %d: element %d is %v at version %d; expected %v at %d, after %v",
				n.index, n.life, u, i, v, version, -want.sum, len(want.updates), want.updates)
		}
	}
}

func (n *node) compareAll() {
	for u := range n.has {
		n.compare(u)
	}
}

// checkpoint writes a checkpoint while frames are delivered, or until the shard is killed after some steps of it.
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
	if !n.shard.Ready() {
		return
	}
	if _, err := savePart(context.Background(), n.files); err != nil {
		n.Fatal(err)
	}
}

var errKilled = fmt.Errorf("killed")

// wrote is called after each step of a checkpoint.
func (n *node) wrote(what string) error {
	if what == "directory made" { // the cut follows immediately
		n.cutting = n.clone()
		return nil
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
	return nil
}

// join starts a trainer's next incarnation. The previous incarnation may not have ended.
func (w *world) join(ordinal uint32) {
	c := &crewman{world: w, ordinal: ordinal, incarnation: uint64(len(w.crew)) + 1, lines: make([]*line, len(w.nodes)), lives: make([]int, len(w.nodes)), known: w.table}
	c.acked, c.at = map[unit]bool{}, map[unit]uint32{}
	c.pull()
	c.next()
	w.crew = append(w.crew, c)
}

// pull brings all versions.
func (c *crewman) pull() {
	for _, n := range c.nodes {
		for u, l := range n.has {
			c.at[u] = uint32(len(l.updates))
		}
	}
}

// retire sends a shard the retired incarnations: all but the newest ones. Shards can receive different lists.
func (n *node) retire() {
	if !n.shard.Ready() {
		return
	}
	over := map[uint64]bool{}
	var spared []uint64
	for i, c := range n.crew {
		if i < len(n.crew)-3 {
			over[c.incarnation] = true
		} else {
			spared = append(spared, c.incarnation)
		}
	}
	term := uint64(0) // of the newest leader
	for n.shard.Follows(term) != nil {
		term++
	}
	n.must(n.shard.Retire(term, core.NewRetirement("6a6f62", uint64(len(n.crew))+1, spared), nil))
	n.told = true
	n.forget(over)
	if known := len(n.shard.Trainers()); known > 3 {
		n.Fatalf("shard %d has %d trainers after the retirement: expected at most 3", n.index, known)
	}
}

func (c *crewman) next() {
	c.step++
	clear(c.acked)
}

// act sends an unacknowledged frame, of a block or of some slots, over a connection to the current start of the shard.
func (c *crewman) act() {
	for i, u := range c.world.units {
		if c.acked[u] || c.random.IntN(2) == 0 {
			continue
		}
		shard := ownerOf(c.known, u)
		n := c.nodes[shard]
		if c.lines[shard] == nil || c.lines[shard].life != n.life {
			c.open(int(shard))
			return
		}
		l := c.lines[shard]
		p := &packet{from: c, to: n, by: l, head: request{c.incarnation, c.step, c.at[u], l.view.Model().Placement.Epoch, u >= unitSlots}}
		if u < unitSlots {
			p.add(u)
		} else {
			p.head.version = 0
			for _, u := range c.world.units[i:] {
				if ownerOf(c.known, u) == shard && (len(p.units) == 0 || c.random.IntN(4) > 0) { // acknowledged or not
					p.add(u)
				}
			}
		}
		c.flight = append(c.flight, p)
		return
	}
	if c.done() {
		c.next()
	}
}

func (c *crewman) done() bool {
	return !slices.ContainsFunc(c.world.units, func(u unit) bool { return !c.acked[u] })
}

func (p *packet) add(u unit) {
	p.units = append(p.units, u)
	p.value = append(p.value, float32(1+(p.from.incarnation*31+p.from.step*7+u*3)%11))
}

// push gives the frame to the shard.
func (p *packet) push(s *core.Shard, reply *values) (core.Result, *core.Refusal) {
	l, by := p.by, core.Update{Step: p.head.step, BasedOn: p.head.version, Scale: 1}
	if !p.head.isRows {
		b := l.view.Block(p.units[0])
		grad := make([]float32, b.Len)
		for i := range grad {
			grad[i] = p.value[0]
		}
		return s.Push(l.view, b, l.trainer, by, core.Values{Floats: grad}, reply)
	}
	var rows table.Batch
	for i, u := range p.units {
		rows.Spans = append(rows.Spans, table.Span{Slot: slotOf(u), Rows: 1})
		rows.IDs = append(rows.IDs, slotRows[u-unitSlots])
		rows.Values = append(rows.Values, p.value[i], p.value[i])
	}
	applied, refused := s.PushRows(l.view, l.trainer, 0, by, &rows)
	return core.Result{Duplicate: applied < len(p.units)}, refused
}

// open says hello. A killed shard may have lost acknowledged parts of this step, so they are sent again.
func (c *crewman) open(shard int) {
	n := c.nodes[shard]
	who, view, refused := n.shard.Join(c.ordinal, c.incarnation, c.known.Digest(), c.known.Epoch)
	l := &line{who, view, n.life}
	if c.elsewhere(n, refused) {
		return
	}
	replaced, retired := n.greeted[c.ordinal] > c.incarnation, n.over[c.incarnation]
	switch over := replaced || retired; {
	case over != (refused != nil), over && refused.Reason != core.Fenced && (replaced || n.told || refused.Reason != core.NotReady):
		c.Fatalf("hello of incarnation %d after one of %d, over: %v: %v", c.incarnation, n.greeted[c.ordinal], retired, refused)
	case retired:
		c.seen["hello of a retired one"]++
		return
	case over:
		c.seen["hello of an older one"]++
		return
	}
	n.greeted[c.ordinal] = c.incarnation
	c.lines[shard] = l
	if c.lives[shard] == n.life {
		return
	}
	c.lives[shard] = n.life
	for u := range c.acked {
		if ownerOf(c.known, u) == uint32(shard) {
			delete(c.acked, u)
		}
	}
}

// expect is what a frame should be answered, and which of its units it should change.
func (n *node) expect(p *packet) (outcome string, fresh []int) {
	if n.over[p.head.incarnation] {
		n.seen["push of a retired one"]++
		return "fenced", nil
	}
	if n.greeted[p.from.ordinal] > p.head.incarnation {
		return "fenced", nil
	}
	outcome = "applied"
	for i, u := range p.units {
		was, here := n.has[u]
		switch {
		case !here || p.head.placement < n.since[u]:
			return "moved", fresh
		case n.frozen[u]:
			return "wait", fresh
		case slices.Contains(was.updates, update{p.head.incarnation, p.head.step}):
			outcome = "duplicate"
		default:
			fresh = append(fresh, i)
		}
	}
	return outcome, fresh
}

// weight is the factor of the learning rate for a fresh update of a unit. It counts the update.
func (n *node) weight(p *packet, u unit) float32 {
	now := uint32(len(n.has[u].updates))
	seen := p.head.version
	what := "scaled blocks"
	if u >= unitSlots {
		by := update{p.head.incarnation, u}
		now, what = n.pushes[u], "scaled rows"
		var known bool
		if seen, known = n.seenAt[by]; !known {
			seen = now
		}
		n.pushes[u]++
		n.seenAt[by] = n.pushes[u]
	}
	weight := n.bound.Weight(uint64(now - min(seen, now)))
	if weight < 1 {
		n.seen[what]++
	}
	return weight
}

// deliver gives one frame in transit to its shard and the reply to its trainer, or loses either.
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
	want, fresh := n.expect(p)
	result, refused := p.push(n.shard, &w.reply)
	outcome := "applied"
	switch {
	case refused != nil:
		outcome = map[core.Reason]string{core.Fenced: "fenced", core.Moved: "moved", core.Frozen: "wait"}[refused.Reason]
	case result.Duplicate:
		outcome = "duplicate"
	}
	if outcome != want {
		w.Fatalf("shard %d, life %d: step %d of incarnation %d for units %d: %s (%v), expected %s", n.index, n.life, p.head.step, p.head.incarnation, p.units, outcome, refused, want)
	}
	w.seen[outcome]++
	if len(p.units) > 1 && len(fresh) > 0 && len(fresh) < len(p.units) {
		w.seen["some slots of a frame, "+outcome]++
	}
	for _, i := range fresh {
		was := n.has[p.units[i]]
		n.has[p.units[i]] = literal{append(slices.Clone(was.updates), update{p.head.incarnation, p.head.step}), was.sum + float32(n.weight(p, p.units[i])*p.value[i])}
	}
	for _, u := range p.units {
		if _, here := n.has[u]; here {
			n.compare(u)
		}
	}
	if block := n.has[p.units[0]]; refused == nil && !p.head.isRows && (w.reply[0] != -block.sum || result.Version != uint64(len(block.updates))) {
		w.Fatalf("the reply has %v of version %d, expected %v of %d", w.reply[0], result.Version, -block.sum, len(block.updates))
	}
	if w.random.IntN(4) == 0 {
		w.seen["reply lost"]++
		return
	}
	p.from.receive(p, outcome, uint32(result.Version))
}

// receive processes a reply, unless it belongs to an earlier step or connection.
func (c *crewman) receive(p *packet, outcome string, version uint32) {
	if p.head.step != c.step || p.by != c.lines[p.to.index] {
		return
	}
	switch outcome {
	case "applied", "duplicate":
		for _, u := range p.units {
			c.acked[u], c.at[u] = true, version
		}
	case "moved":
		c.learn()
	}
}

var (
	onceHistories = flag.Uint64("once.n", 24, "how many histories TestEachPushOnce runs")
	onceFirst     = flag.Uint64("once.first", 0, "seed of the first history")
)

// A push is applied once to each block and slot of its step, through losses, repetitions, kills and restores. After each delivery and
// restart the shards are compared with the literal models.
func TestEachPushOnce(t *testing.T) {
	seen := map[string]int{}
	steps := uint64(0)
	for seed := *onceFirst; seed < *onceFirst+*onceHistories; seed++ {
		moves := seed%3 > 0
		bound := staleness.Bound{}
		if seed%2 == 1 {
			bound = staleness.Bound{Policy: staleness.Scale, Limit: seed % 3}
		}
		w := newWorld(t, seed, bound, seen)
		for range 2000 {
			n, c := w.nodes[w.random.IntN(2)], w.crew[len(w.crew)-1-w.random.IntN(min(4, len(w.crew)))]
			switch at := w.random.IntN(300); {
			case at < 2:
				n.checkpoint(0)
			case at < 20:
				if moves {
					w.lead()
				}
			case at < 24 && w.move.needs(n): // a set of both shards is due
			case at < 22:
				n.checkpoint(1 + w.random.IntN(20))
			case at < 24:
				seen["killed"]++
				n.start()
			case at < 26:
				w.join(c.ordinal)
			case at < 28: // another one comes in its place
				w.join(uint32(len(w.crew)) + 2)
			case at < 32:
				n.retire()
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
	for _, what := range []string{"applied", "duplicate", "scaled blocks", "scaled rows", "fenced", "hello of an older one", "lost with its server", "reply lost", "killed", "killed in a checkpoint",
		"hello of a retired one", "push of a retired one", "moved", "wait", "blocks moved", "slots moved", "some slots of a frame, duplicate", "some slots of a frame, moved", "some slots of a frame, wait", "moves given up", "hello with an older placement", "hello with a newer placement", "source killed in a move", "destination killed in a move"} {
		if least := int(min(15, *onceHistories/2)); seen[what] < least {
			t.Errorf("%s: %d times only, expected %d", what, seen[what], least)
		}
	}
}
