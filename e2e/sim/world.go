package sim

import (
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/ledger"
	"trainmaster/master"
	"trainmaster/master/committer"
	"trainmaster/master/evaluation"
	"trainmaster/master/netrpc/wire"
	"trainmaster/master/strategy"
	"trainmaster/taskqueue"
)

const (
	exactEvery = 4 // seed%exactEvery == 0: explicit commits
	cutsEvery  = 8 // seed%cutsEvery == 2: cuts
	stepsEvery = 8 // seed%stepsEvery == 6: synchronous steps, and cuts

	windowsEvery = 16 // seed%windowsEvery == 15: trainers with windows
	heldEvery    = 8  // seed%heldEvery == 5, evaluation rounds
	growsEvery   = 8  // seed%growsEvery == 3, an online dataset
	ownsEvery    = 8  // seed%ownsEvery == 1, a population
	masters      = 3
	trainers     = 8
)

// poison is the effect of a task on its trainer.
type poison uint8

const (
	poisonFail  poison = 1
	poisonCrash poison = 2
)

// faults holds probabilities per message, and mean times between events (0: never).
type faults struct {
	notSent, lostRequest, lostReply, late, slow float64 // between masters and etcd
	breaks, stale, lag                          float64 // between trainers and masters

	crash, pause, cut, deaf, jump, stop time.Duration // of a master
	down, full, election                time.Duration // of etcd
	die                                 time.Duration // of a trainer
	retry                               time.Duration // of set-aside tasks, by an operator
	serverCrash                         time.Duration // of a parameter server
	between                             float64       // probability that a process dies between two messages of a cut
	forge                               time.Duration // forged finishes
}

// plan holds the settings of a history, which its seed decides.
type plan struct {
	masters   int
	tasks     int
	options   taskqueue.Options
	shuffle   bool
	realCodec bool
	tick      time.Duration
	heartbeat time.Duration
	quiet     time.Duration // end of the faults
	patience  time.Duration // time from quiet until the job must have ended
	faults    faults
	poison    map[int]poison
	habits    [trainers]habit
	exact     bool // explicit commits
	cuts      bool // the leader takes cuts
	every     time.Duration
	sync      bool // synchronous steps
	backups   int
	heldOut   int              // evaluation tasks; 0: the job is not evaluated
	sealing   ledger.Config    // Every is 0: the ledger is not kept
	away      [2]time.Duration // minimum and maximum downtime of a server

	segments      []segment // of the online dataset; nil: the dataset is not online
	evaluateEvery evaluation.Every
	strategy      *strategy.Strategy   // nil: the job has none
	population    *strategy.Population // nil: the job has none
}

func newPlan(rng *rand.Rand) plan {
	// Each history has only some kinds of faults, and some of these often: a mixture of all kinds hides
	// bugs that need many faults of one kind.
	chance := func(p, most float64) float64 {
		if rng.Float64() > p {
			return 0
		}
		return most * rng.Float64() * rng.Float64()
	}
	every := func(p float64, least, most time.Duration) time.Duration {
		if rng.Float64() > p {
			return 0
		}
		return least + time.Duration(rng.Int64N(int64(most-least)))
	}
	pick := func(of ...time.Duration) time.Duration { return of[rng.IntN(len(of))] }
	p := plan{
		masters: masters, tasks: 1 + rng.IntN(40), shuffle: rng.IntN(2) == 0, realCodec: rng.IntN(16) == 0,
		tick: committer.TickEvery * time.Duration(1+rng.IntN(3)), heartbeat: pick(time.Second, 3*time.Second),
		quiet: 10*time.Second + time.Duration(rng.Int64N(int64(30*time.Second))), patience: 10 * time.Minute,
		poison: map[int]poison{}, away: [2]time.Duration{100 * time.Millisecond, 6 * time.Second},
	}
	p.options = taskqueue.Options{
		Passes: 1 + rng.IntN(3), MaxFailures: 1 + rng.IntN(3), Rolling: rng.IntN(2) == 0, Speculate: rng.IntN(2) == 0,
		TimeoutMin: pick(3*time.Second, 8*time.Second), TimeoutMax: 30 * time.Second, FirstTimeout: 10 * time.Second,
		SessionTTL: pick(6*time.Second, 15*time.Second), Grace: pick(2*time.Second, 5*time.Second),
	}
	p.faults = faults{
		notSent: chance(0.3, 0.1), lostRequest: chance(0.4, 0.15), lostReply: chance(0.4, 0.2), late: chance(0.4, 0.1), slow: chance(0.3, 0.2),
		breaks: chance(0.6, 0.2), stale: chance(0.5, 0.3), lag: chance(0.5, 0.3),
		crash: every(0.5, 2*time.Second, 20*time.Second), pause: every(0.4, 2*time.Second, 20*time.Second),
		cut: every(0.3, 3*time.Second, 20*time.Second), deaf: every(0.3, 3*time.Second, 20*time.Second),
		jump: every(0.15, 3*time.Second, 20*time.Second), stop: every(0.3, 3*time.Second, 20*time.Second),
		down: every(0.25, 5*time.Second, 20*time.Second), full: every(0.25, 3*time.Second, 15*time.Second), election: every(0.2, 3*time.Second, 15*time.Second),
		die: every(0.5, time.Second, 8*time.Second), retry: every(0.5, time.Second, 8*time.Second), forge: every(0.5, 200*time.Millisecond, 3*time.Second),
	}
	if rng.IntN(2) == 0 {
		for range 1 + rng.IntN(3) {
			p.poison[rng.IntN(p.tasks)] = poison(1 + rng.IntN(2))
		}
	}
	slow := pick(100*time.Millisecond, 500*time.Millisecond, 2*time.Second)
	failing := chance(0.4, 0.3)
	leaving := chance(0.3, 0.2)
	for i := range p.habits {
		h := habit{task: [2]time.Duration{slow / 4, slow}, fails: failing, leaves: leaving}
		if i >= 3 { // the first three trainers are reliable
			switch rng.IntN(8) {
			case 0:
				h.hangsAfter, h.moving = 1+rng.IntN(6), rng.IntN(2) == 0
			case 1:
				h.silent = true
			case 2:
				h.task[1] *= 12
			}
		}
		p.habits[i] = h
	}
	p.plainConnections(rng)
	if rng.IntN(3) == 0 {
		p.sealing = ledger.Config{Every: 3 + rng.Uint64N(30), Keep: ledger.Keep{All: true}}
		if rng.IntN(4) == 0 {
			p.sealing.Keep = ledger.Keep{Bytes: 2000}
		}
	}
	return p
}

// plainConnections gives some trainers plain connections, in half of the histories.
func (p *plan) plainConnections(rng *rand.Rand) {
	if rng.IntN(2) == 0 {
		return
	}
	reuses := rng.IntN(4) == 0
	for i := range 1 + rng.IntN(trainers) {
		h := &p.habits[trainers-1-i]
		h.plain, h.reuses = true, reuses && rng.IntN(2) == 0
		h.byID = !h.reuses && i%2 == 0
	}
}

// windows gives trainers windows. Some tasks are short, so that many are finished at the same time.
func (p *plan) windows(rng *rand.Rand) {
	if rng.IntN(2) == 0 {
		p.tasks = 40 + rng.IntN(160)
	}
	for i := range p.habits {
		h := &p.habits[i]
		if h.plain = false; rng.IntN(4) > 0 {
			h.window = []int{3, 8, 20, 64}[rng.IntN(4)]
		}
		if p.tasks >= 40 {
			h.task = [2]time.Duration{time.Millisecond, 100 * time.Millisecond}
		}
	}
}

// explicit selects explicit commits.
func (p *plan) explicit(rng *rand.Rand) {
	p.exact = true
	for i := range p.habits {
		p.habits[i].plain = false // a plain connection receives no tasks of such a job
	}
	p.options.ExplicitCommit, p.options.Speculate = true, false
	p.options.MaxUncommitted = []int{4, 8, 20_000}[rng.IntN(3)]
}

// takeCuts selects cuts.
func (p *plan) takeCuts(rng *rand.Rand) {
	p.explicit(rng)
	p.cuts, p.options.Cuts = true, true
	p.patience *= 3 // a lost task rolls back the work of all trainers
	p.tasks = min(p.tasks, 1+rng.IntN(16))
	for i := range p.habits {
		p.habits[i].task[1] = min(p.habits[i].task[1], 2*time.Second)
		p.habits[i].fails /= 4
	}
	p.every = []time.Duration{300 * time.Millisecond, 2 * time.Second, 8 * time.Second}[rng.IntN(3)]
	if rng.IntN(2) == 0 {
		p.faults.between = 0.05 * rng.Float64() * rng.Float64()
	}
	if rng.IntN(2) == 0 {
		p.faults.serverCrash = 2*time.Second + time.Duration(rng.Int64N(int64(15*time.Second)))
	}
}

// world is one history: the modelled etcd, masters, trainers and the network between them.
type world struct {
	*loop
	plan        plan
	etcd        *etcd
	nodes       []*node
	trainers    []*trainer
	check       *check
	codec       codec
	config      master.Config
	log         *logrus.Entry
	report      *taskqueue.Report
	table       *taskqueue.Table   // of all tasks
	tables      []*taskqueue.Table // of an online dataset after each segment
	part        []byte
	heldOut     *taskqueue.Report // nil: the job is not evaluated
	heldOutPart []byte
	models      uint64              // number of models that trainers have stored
	stored      map[string]ownModel // models of a population by their paths
	jobID       [16]byte
	takeovers   int
	etcdExcused time.Duration // until then, a takeover after an outage of etcd is no violation
	plainConns  int           // number of plain connections so far
	orders      [][]int       // task indices by pass and position
	rings       *rings
	servers     []*server // in histories of cuts
	folder      folder
	instants    int                          // number of crash points so far
	strike      int                          // the crash point at which a process dies; 0: none
	again       int                          // another one
	struck      func(m *machine, die func()) // what happens at strike to the process of m, instead of its death; nil: it dies
}

func newWorld(seed uint64, trace bool) (*world, error) {
	return newPlanned(seed, trace, func(*plan) {})
}

// newPlanned returns the history of a seed with a changed plan.
func newPlanned(seed uint64, trace bool, change func(*plan)) (*world, error) {
	l := &loop{rng: rand.New(rand.NewPCG(seed, 0x7472_6169_6e)), trace: trace}
	w := &world{loop: l, plan: newPlan(l.rng), stored: map[string]ownModel{}, rings: newRings(), folder: folder{map[string]*file{}, map[uint64][]byte{}}}
	switch {
	case seed%exactEvery == 0:
		w.plan.explicit(l.rng)
	case seed%cutsEvery == 2:
		w.plan.takeCuts(l.rng)
	case seed%stepsEvery == 6:
		w.plan.synchronous(l.rng)
	case seed%heldEvery == 5:
		w.plan.evaluate(l.rng)
	case seed%growsEvery == 3:
		w.plan.online(l.rng)
	case seed%ownsEvery == 1:
		w.plan.own(l.rng)
	case seed%windowsEvery == 15:
		w.plan.windows(l.rng)
	}
	if seed/heldEvery%2 == 1 {
		w.plan.follow()
	}
	change(&w.plan)
	w.codec.real = w.plan.realCodec
	w.etcd = newEtcd(l)
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	quiet.SetLevel(logrus.PanicLevel)
	w.log = logrus.NewEntry(quiet)
	w.config = master.Config{Queue: w.plan.options, Shuffle: w.plan.shuffle, Seed: seed, Sync: w.plan.sync, Backups: w.plan.backups}
	if err := w.makeTable(); err != nil {
		return nil, err
	}
	if w.plan.heldOut > 0 {
		if err := w.makeHeldOut(); err != nil {
			return nil, err
		}
	}
	w.check = newCheck(w)
	w.etcd.wrote, w.etcd.ledger = w.check.wrote, w.plan.sealing.Every > 0
	for i := range w.plan.masters {
		n := &node{machine: &machine{loop: l, name: fmt.Sprintf("m%d", i)}, world: w, addr: fmt.Sprintf("m%d:1", i)}
		w.nodes = append(w.nodes, n)
		n.boot()
	}
	if w.plan.cuts {
		for i := range servers {
			s := &server{machine: &machine{loop: l, name: fmt.Sprintf("s%d", i)}, world: w, index: i}
			w.servers = append(w.servers, s)
			s.boot()
		}
	}
	for i := range trainers {
		t := &trainer{machine: &machine{loop: l, name: trainerName(i)}, world: w, id: trainerName(i), habit: w.plan.habits[i]}
		w.trainers = append(w.trainers, t)
		l.after(l.between(0, 2*time.Second), t.boot)
	}
	w.schedule()
	return w, nil
}

func (w *world) makeTable() error {
	if w.plan.segments != nil {
		return w.makeOnline()
	}
	chunks, size := chunksOf(w.plan.tasks)
	w.table = taskqueue.NewTable(len(chunks))
	if err := w.table.Add(taskqueue.File{Path: segmentPath(0), Size: size}, chunks); err != nil {
		return err
	}
	w.table.Group(1)
	var err error
	if w.part, err = w.codec.encode(w.table.Part(0, len(chunks))); err != nil {
		return err
	}
	w.report = &taskqueue.Report{
		Digest: sha256.Sum256([]byte("digest")), ReportID: "r", Parts: 1, PartsDigest: sha256.Sum256(w.part),
		Table: w.table, SetSpec: taskqueue.SetSpec{Shuffle: w.plan.shuffle, Seed: w.config.Seed},
	}
	return nil
}

func (w *world) netDelay() time.Duration {
	if w.now < w.plan.quiet && w.chance(w.plan.faults.lag) {
		return w.between(time.Millisecond, 3*time.Second)
	}
	return w.between(100*time.Microsecond, 2*time.Millisecond)
}

func (w *world) watchDelay() time.Duration {
	if w.now < w.plan.quiet && w.chance(w.plan.faults.lag) {
		return w.between(time.Millisecond, 2*time.Second)
	}
	return w.between(time.Millisecond, 10*time.Millisecond)
}

// send carries a request over its connection, and the reply back. Faults of the network: the
// connection breaks before or after the request arrives, or a copy of the request arrives up to
// 15 s later.
func (w *world) send(c *call) {
	f := &w.plan.faults
	conn, request, life := c.conn, c.request, c.t.run
	faulty := w.now < w.plan.quiet
	if faulty && w.chance(f.stale) {
		w.after(w.between(0, 15*time.Second), func() { w.arriveLate(request) })
	}
	if faulty && w.chance(f.breaks) {
		w.after(w.netDelay(), conn.breaks)
		if w.chance(0.5) {
			return
		}
	}
	conn.node.after(w.netDelay(), func() {
		if conn.node.run != conn.life {
			conn.breaks()
			return
		}
		conn.node.serve(conn, request, func(reply any, err error) {
			c.t.after(w.netDelay(), func() {
				switch {
				case conn.broken || c.done || c.t.run != life || c.conn != conn:
				case err != nil:
					c.fails(err)
				default:
					c.finish(reply, nil)
				}
			})
		})
	})
}

// arriveLate delivers a delayed copy of a request to the current leader.
func (w *world) arriveLate(request any) {
	if _, join := request.(wire.JoinRequest); join {
		return // a join begins a connection, and a copy would need its own
	}
	for _, n := range w.nodes {
		if n.driven != nil && n.awake() {
			n.serve(&conn{node: n, life: n.run, ctx: &connContext{Context: w.check.ctx}}, request, func(any, error) {})
		}
	}
}

// ended reports whether the job has ended and every running trainer has received that answer.
func (w *world) ended() bool {
	if !w.check.over() {
		return false
	}
	for _, t := range w.trainers {
		if t.up && !t.jobEnded && !t.hung {
			return false
		}
	}
	return true
}

// Result summarizes a history.
type Result struct {
	Seed      uint64
	Virtual   time.Duration
	Commits   int
	Terms     int
	Takeovers int    // forced by a standby
	Sealed    uint64 // number of sealed commits
	Trace     []string
}

// Run runs the history of a seed. The error is a *Violation, or a failure of the simulator
// itself.
func Run(seed uint64, trace bool) (result Result, err error) {
	w, err := newWorld(seed, trace)
	if err != nil {
		return Result{Seed: seed}, err
	}
	err = w.run()
	return Result{Seed: seed, Virtual: w.now, Commits: w.check.commits, Terms: len(w.check.terms), Takeovers: w.takeovers, Sealed: w.check.sealed, Trace: w.lines}, err
}

// run runs the history until the job ends or an invariant is violated.
func (w *world) run() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic at %v: %v", w.now, r)
		}
		w.close()
	}()
	for w.failed == nil && !w.ended() {
		if w.now > w.plan.quiet+w.plan.patience {
			w.breaks("the job ends", "still running %v after the last fault: %s", w.plan.patience, w.check.describe())
			break
		}
		if !w.step() {
			w.breaks("the job ends", "no events left at %v: %s", w.now, w.check.describe())
		}
	}
	if w.failed == nil {
		w.check.final()
	}
	return w.failed
}

// close ends every process.
func (w *world) close() {
	for _, n := range w.nodes {
		if n.stop != nil {
			n.stop()
		}
	}
	for _, t := range w.trainers {
		if t.stop != nil {
			t.stop()
		}
	}
}

// Explain runs a seed again and returns its last events.
func Explain(seed uint64, lines int) string {
	result, _ := Run(seed, true)
	return strings.Join(result.Trace[max(0, len(result.Trace)-lines):], "\n")
}
