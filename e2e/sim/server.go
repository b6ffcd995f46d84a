package sim

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"trainmaster/master/pscontrol"
	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/partition"
	"trainmaster/pserver/table"
	"trainmaster/taskqueue"
)

// Parameter servers in histories of cuts. The parameters are a table of counters: each record adds
// 1 to its own row. The rows, the steps of each trainer, cuts and restores are production code
// (pserver/table). The order of requests models pserver.

const servers = 2

var (
	countRule  = optimizer.Config{Kind: optimizer.SGD, LearningRate: 1}
	countTable = table.Config{Name: "records", Dim: 1, Init: table.Zeros, Admission: 1}
)

// folder is the checkpoint directory of all servers. It survives their crashes.
type folder struct {
	files map[string]*file
	sets  map[uint64][]byte
}

// file is the checkpoint of one server.
type file struct {
	set      uint64 // number of its checkpoint set
	part     checkpoint.Part
	epoch    uint32
	version  uint64
	roster   []pusher
	images   map[uint32]*table.Image
	contents map[sample]int
}

// pusher identifies a trainer at a server.
type pusher struct {
	ordinal     taskqueue.Ordinal
	incarnation uint64
}

// server is one parameter server.
type server struct {
	*machine
	world *world
	index int
	died  time.Duration // time of the last crash
	start uint64

	// state of the process
	table      *table.Table
	trainers   map[pusher]*partition.Trainer
	joined     int                          // number of trainers so far
	newest     map[taskqueue.Ordinal]uint64 // newest incarnations
	current    *table.Cut
	written    uint64 // number of files and cuts so far
	ready      bool
	version    uint64                // of a synchronous job
	staged     map[pusher]*gradients // of a synchronous job
	epoch      uint32                // of the job
	rolledBack uint32
	term       uint64
	lastCut    uint64
	open       *serverCut

	conns    []*dataConn
	requests []func(done func()) // one at a time, as under one lock
	busy     bool
	asked    map[*ask]bool // calls without an answer
}

// serverCut is a cut that a master began.
type serverCut struct {
	number, term uint64
	version      uint64
	cut          *table.Cut
	roster       []pusher
	part         checkpoint.Part // has a digest when the file is complete
}

func (w *world) held(index int) (slots []uint32) {
	for i := uint32(index); i < table.Slots; i += servers {
		slots = append(slots, i)
	}
	return slots
}

// boot starts the process from the set that etcd names, if any. Later updates are lost. The server takes the epoch of the
// set, because it does not know the current epoch of the job.
func (s *server) boot() {
	if s.up {
		return
	}
	s.start++
	s.written, s.rolledBack, s.term, s.lastCut, s.open, s.busy = 0, 0, 0, 0, nil, false
	s.conns, s.requests, s.asked = nil, nil, map[*ask]bool{}
	s.machine.start(func(*process) {})
	s.world.serversChanged()
	s.load(s.world.latestSet(), 1)
	for number := range s.world.folder.sets {
		s.lastCut = max(s.lastCut, number)
	}
	if set := s.world.latestSet(); set != nil {
		s.lastCut = max(s.lastCut, set.Number)
	}
}

// latestSet returns the set that etcd names, or nil.
func (w *world) latestSet() *checkpoint.Set {
	kv := w.etcd.keys[pscontrol.LatestSetKey]
	if kv == nil {
		return nil
	}
	set, err := checkpoint.ParseSet(kv.Value)
	if err != nil {
		w.breaks("latest names a complete set", "%v", err)
	}
	return set
}

// load loads the rows and the steps of a set, or clears them if set is nil.
func (s *server) load(set *checkpoint.Set, epoch uint32) {
	s.table = table.New(countTable, countRule, s.world.held(s.index), func() *table.Cut { return s.current })
	s.trainers, s.joined, s.newest, s.current, s.ready, s.epoch = map[pusher]*partition.Trainer{}, 0, map[taskqueue.Ordinal]uint64{}, nil, set != nil, epoch
	s.version, s.staged = 0, map[pusher]*gradients{}
	if set == nil {
		return
	}
	f := s.world.folder.files[set.Shards[s.index].SHA256]
	if f == nil {
		s.breaks("latest names a complete set", "set %d: missing file of server %d", set.Number, s.index)
		return
	}
	s.epoch, s.version = f.epoch, f.version
	trainers := make([]*partition.Trainer, len(f.roster))
	for i, p := range f.roster {
		trainers[i] = s.join(p)
	}
	for _, slot := range s.table.Held() {
		if err := s.table.Restore(slot, f.images[slot], trainers); err != nil {
			s.breaks("a written file can be read", "%v", err)
		}
	}
}

// die crashes the process. It restarts within the limits of plan.away.
func (s *server) die() {
	if !s.up {
		return
	}
	s.note("%s: dies", s.name)
	s.crash()
	s.died = s.now
	for _, c := range slices.Clone(s.conns) {
		c.close()
	}
	for a := range s.asked { // the order of the map does not matter
		a.failed = true
	}
	s.world.after(s.between(time.Millisecond, 5*time.Millisecond), s.world.wakeLeaders)
	s.world.after(s.between(s.world.plan.away[0], s.world.plan.away[1]), s.boot)
}

// registered reports whether the registration of the server exists. The lease expires 1 s after a crash.
func (s *server) registered() bool { return s.up || s.now < s.died+time.Second }

// control queues a request of a master. Requests run one at a time.
func (s *server) control(do func(done func())) {
	s.requests = append(s.requests, do)
	s.next()
}

func (s *server) next() {
	if s.busy || len(s.requests) == 0 {
		return
	}
	do := s.requests[0]
	s.requests = s.requests[1:]
	s.busy = true
	do(func() {
		s.busy = false
		s.next()
	})
}

var (
	errOldCut = errors.New("cut is closed")
	errNoCut  = errors.New("no such cut")
)

func (s *server) beginCut(number, term uint64, epoch uint32) error {
	if o := s.open; o != nil && o.number == number && o.term == term {
		return nil
	}
	if epoch < s.epoch || number <= s.lastCut || term < s.term {
		return fmt.Errorf("%w: cut %d of term %d in epoch %d, at %d, %d, %d", errOldCut, number, term, epoch, s.lastCut, s.term, s.epoch)
	}
	s.dropCut()
	s.written++
	o := &serverCut{number: number, term: term, version: s.version, cut: &table.Cut{Number: s.written}}
	o.roster = slices.SortedFunc(maps.Keys(s.trainers), func(a, b pusher) int { return int(a.ordinal) - int(b.ordinal) })
	for _, p := range o.roster {
		o.cut.Trainers = append(o.cut.Trainers, s.trainers[p])
	}
	s.lastCut, s.term, s.open, s.current = number, term, o, o.cut
	return nil
}

func (s *server) dropCut() {
	if s.open != nil && s.open.part.SHA256 == "" {
		s.current = nil
		s.table.EndCut()
	}
	s.open = nil
}

// writeCut writes the file of a cut in two halves of its slots. Updates continue in between.
func (s *server) writeCut(number, term uint64, done func(checkpoint.Part, error)) {
	o := s.open
	switch {
	case o == nil || o.number != number || o.term != term:
		done(checkpoint.Part{}, fmt.Errorf("%w: cut %d of term %d", errNoCut, number, term))
		return
	case o.part.SHA256 != "":
		done(o.part, nil)
		return
	}
	g := checkpoint.Generation{Start: s.start, Sequence: o.cut.Number}
	f := &file{set: number, epoch: s.epoch, version: o.version, roster: o.roster, images: map[uint32]*table.Image{}, contents: map[sample]int{}}
	f.part = checkpoint.Part{Shard: s.index, Generation: g, SHA256: fmt.Sprintf("%d of %v", s.index, g)}
	slots := s.table.Held()
	half := s.rng.IntN(len(slots))
	for _, slot := range slots[:half] {
		f.add(s, slot, s.table.Collect(slot, o.cut))
	}
	s.after(s.between(0, 200*time.Millisecond), func() {
		for _, slot := range slots[half:] {
			f.add(s, slot, s.table.Collect(slot, o.cut))
		}
		s.current = nil
		s.table.EndCut()
		o.part = f.part
		s.world.folder.files[f.part.SHA256] = f
		done(o.part, nil)
	})
}

func (f *file) add(s *server, slot uint32, m *table.Image) {
	f.images[slot] = m
	for i, id := range m.IDs {
		f.contents[s.world.sampleOf(id)] += int(m.Values[i])
	}
}

func (s *server) writeSet(number, term uint64, text []byte) error {
	if number != s.lastCut || term != s.term {
		return errOldCut
	}
	s.world.folder.sets[number] = text
	return nil
}

// pruneSets removes all but the newest sets, and the server's files that no remaining set names.
func (s *server) pruneSets(number, term uint64, keep int) error {
	if term < s.term {
		return errOldCut
	}
	needed := map[string]bool{}
	kept := 0
	for _, n := range slices.Backward(slices.Sorted(maps.Keys(s.world.folder.sets))) {
		if n <= number && kept >= keep {
			delete(s.world.folder.sets, n)
			continue
		}
		kept++
		set, err := checkpoint.ParseSet(s.world.folder.sets[n])
		if err != nil {
			return err
		}
		needed[set.Shards[s.index].SHA256] = true
	}
	for name, f := range s.world.folder.files {
		if f.part.Shard == s.index && !needed[name] {
			delete(s.world.folder.files, name)
		}
	}
	s.world.check.setComplete(s.world.latestSet())
	return nil
}

// discard removes sets and files that are newer than the latest set.
func (s *server) discard(latest, term uint64) error {
	if term < s.term {
		return errOldCut
	}
	s.term = term
	s.dropCut()
	maps.DeleteFunc(s.world.folder.sets, func(number uint64, _ []byte) bool { return number > latest })
	maps.DeleteFunc(s.world.folder.files, func(_ string, f *file) bool { return f.part.Shard == s.index && f.set > latest })
	s.world.check.setComplete(s.world.latestSet())
	return nil
}

// rewind loads a set in a new epoch and closes all connections.
func (s *server) rewind(term uint64, epoch uint32, text []byte) error {
	switch {
	case term < s.term:
		return errOldCut
	case epoch == s.rolledBack:
		s.term = term
		return nil
	case epoch < s.rolledBack || epoch < s.epoch:
		s.term = term
		return errOldCut
	}
	s.term = term
	s.dropCut()
	for _, c := range slices.Clone(s.conns) {
		c.close()
	}
	var set *checkpoint.Set
	if len(text) > 0 {
		var err error
		if set, err = checkpoint.ParseSet(text); err != nil {
			return err
		}
	}
	s.load(set, epoch)
	s.epoch, s.rolledBack = epoch, epoch
	s.note("%s: rolled back, epoch %d", s.name, epoch)
	s.world.check.rolledBack(s, epoch)
	return nil
}

// contents returns the counters of the server.
func (s *server) contents() map[sample]int {
	found := map[sample]int{}
	var rows table.Batch
	for from := (table.Place{}); from.Slot < table.Slots; {
		next, err := s.table.Scan(from, 1<<20, &rows)
		if err != nil {
			panic(err) // no slot migrates
		}
		for i, id := range rows.IDs {
			found[s.world.sampleOf(id)] = int(rows.Values[i])
		}
		from = next
	}
	return found
}

// sampleOf returns the record of a row. idOf is its inverse.
func (w *world) sampleOf(id int64) sample {
	task := id / recordsOfTask
	return sample{taskPosition{taskqueue.Pass(task / int64(w.plan.tasks)), int(task % int64(w.plan.tasks))}, id % recordsOfTask}
}

func (w *world) serverOf(s sample) int { return int(table.SlotOf(w.idOf(s)) % servers) }

func (w *world) idOf(s sample) int64 {
	return (int64(s.pass)*int64(w.plan.tasks)+int64(s.position))*recordsOfTask + s.record
}

// dataConn is a connection of a trainer to a server.
type dataConn struct {
	server *server
	life   int
	who    pusher
	closed bool // closed by the server
	broken bool // the trainer has noticed the end
	broke  func()
}

// close closes a connection. The trainer notices it after a network delay.
func (c *dataConn) close() {
	c.closed = true
	c.server.conns = slices.DeleteFunc(c.server.conns, func(o *dataConn) bool { return o == c })
	c.server.world.after(c.server.world.netDelay(), func() {
		c.broken = true
		if c.broke != nil {
			c.broke()
		}
	})
}

var (
	errRewound  = errors.New("job was rolled back")
	errNotYet   = errors.New("server has an older epoch")
	errFenced   = errors.New("fenced by a newer incarnation")
	errNotThere = errors.New("connection refused")
)

// hello binds a connection to a trainer. A newer incarnation fences the previous one.
func (s *server) hello(who pusher, epoch uint32) (*dataConn, error) {
	switch {
	case epoch < s.epoch:
		return nil, errRewound
	case epoch > s.epoch:
		return nil, errNotYet
	case who.incarnation < s.newest[who.ordinal]:
		return nil, errFenced
	}
	if s.trainers[who] == nil {
		if old := s.trainers[pusher{who.ordinal, s.newest[who.ordinal]}]; old != nil {
			old.End()
			delete(s.trainers, pusher{who.ordinal, s.newest[who.ordinal]})
		}
		s.join(who)
	}
	s.ready = true // the first trainer initializes the parameters; here to 0
	c := &dataConn{server: s, life: s.run, who: who}
	s.conns = append(s.conns, c)
	return c, nil
}

// join makes a trainer without steps.
func (s *server) join(who pusher) *partition.Trainer {
	t := partition.NewTrainer(s.joined, who.incarnation)
	s.joined++
	s.trainers[who], s.newest[who.ordinal] = t, who.incarnation
	return t
}

// push counts records in every slot that has not applied the step.
func (s *server) push(c *dataConn, step uint64, ids []int64) error {
	by := s.trainers[c.who]
	if by == nil {
		return errFenced
	}
	rows := rowsOf(ids)
	if err := s.table.Check(rows); err != nil {
		s.breaks("a push fits", "%v", err)
	}
	_, err := s.table.Update(rows, by, table.Step{Number: step, Scale: 1}, nil)
	return err
}

// rowsOf returns a gradient that counts records. The ids are sorted by slot.
func rowsOf(ids []int64) *table.Batch {
	rows := &table.Batch{IDs: ids}
	for _, id := range ids {
		slot := table.SlotOf(id)
		if n := len(rows.Spans); n == 0 || rows.Spans[n-1].Slot != slot {
			rows.Spans = append(rows.Spans, table.Span{Slot: slot})
		}
		rows.Spans[len(rows.Spans)-1].Rows++
		rows.Values = append(rows.Values, -1)
	}
	return rows
}
