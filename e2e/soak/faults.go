package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"
)

// fault is a kind of fault. begin claims one or more targets and injects the fault. It returns nil, and the fault is
// skipped, if a target does not exist or another fault has claimed it.
type fault struct {
	name        string
	weight      int
	least, most time.Duration // limits of its duration
	begin       func(ctx context.Context, i *injector, which int) *broken
}

// broken is a fault in progress.
type broken struct {
	what   string
	claims []*target
	undo   func(ctx context.Context) error
}

// faults lists all kinds of faults.
var faults = []fault{
	{"kill the leader", 3, 0, 4 * time.Second, onMaster(theLeader, killed)},
	{"kill a master", 1, 0, 4 * time.Second, onMaster(one, killed)},
	{"pause the leader", 3, 500 * time.Millisecond, 8 * time.Second, onMaster(theLeader, stopped)},
	{"pause a master", 1, 500 * time.Millisecond, 8 * time.Second, onMaster(one, stopped)},
	{"stop the leader gracefully", 2, 0, 2 * time.Second, onMaster(theLeader, left)},
	{"partition the leader", 2, 0, 5 * time.Second, onPort(cutOff)},
	{"hold back the leader's answers", 2, 100 * time.Millisecond, 4 * time.Second, onPort(unanswered)},

	{"kill trainers", 3, 0, 8 * time.Second, onTrainers(killed)},
	{"pause trainers", 3, time.Second, 15 * time.Second, onTrainers(stopped)},
	{"stop trainers gracefully", 2, 0, 3 * time.Second, onTrainers(left)},
	{"kill every trainer", 1, 0, 8 * time.Second, everyTrainer},

	{"kill etcd's leader", 2, 0, 5 * time.Second, onMember(theLeader, killed)},
	{"kill a member of etcd", 1, 0, 5 * time.Second, onMember(one, killed)},
	{"pause etcd's leader", 2, 500 * time.Millisecond, 6 * time.Second, onMember(theLeader, stopped)},
	{"pause a member of etcd", 1, 500 * time.Millisecond, 6 * time.Second, onMember(one, stopped)},
	{"partition a member of etcd", 2, 500 * time.Millisecond, 6 * time.Second, onPeers},
	{"partition the store", 1, 500 * time.Millisecond, 6 * time.Second, onStores(cutOff)},
	{"hold back the store's answers", 2, 100 * time.Millisecond, 3 * time.Second, onStores(unanswered)},
	{"a slow store", 2, 2 * time.Second, 8 * time.Second, onStores(slowed)},
}

// draw is one fault as the seed decides it: its kind, duration and a number that selects the target.
type draw struct {
	fault  *fault
	which  int
	length time.Duration
	pause  time.Duration // pause before the next fault
}

const (
	leastPause = time.Second
	mostPause  = 5 * time.Second
)

// draws is the infinite sequence of faults of a seed.
type draws struct {
	random *rand.Rand
	total  int
}

func newDraws(seed uint64) *draws {
	d := &draws{random: rand.New(rand.NewPCG(seed, 0x50a1))}
	for _, f := range faults {
		d.total += f.weight
	}
	return d
}

func (d *draws) next() draw {
	n := d.random.IntN(d.total)
	i := 0
	for ; n >= faults[i].weight; i++ {
		n -= faults[i].weight
	}
	f := &faults[i]
	return draw{
		fault:  f,
		which:  d.random.IntN(1 << 20),
		length: f.least + time.Duration(d.random.Int64N(int64(f.most-f.least))),
		pause:  leastPause + time.Duration(d.random.Int64N(int64(mostPause-leastPause))),
	}
}

// injector injects faults.
type injector struct {
	*cluster
	leader  func() int // index of the leader, or -1 if unknown
	logf    func(format string, args ...any)
	made    map[string]int
	skipped int // number of skipped faults

	wg   sync.WaitGroup
	mu   sync.Mutex
	errs []error // guarded by mu
}

// run injects faults until ctx ends, and then undoes all of them.
func (i *injector) run(ctx context.Context, seed uint64) error {
	list := newDraws(seed)
	for ctx.Err() == nil {
		d := list.next()
		if b := d.fault.begin(ctx, i, d.which); b == nil {
			i.skipped++
		} else {
			i.made[d.fault.name]++
			i.logf("%s: %s for %v", d.fault.name, b.what, d.length.Round(time.Millisecond))
			i.wg.Go(func() { i.finish(ctx, b, d.length) })
		}
		rest(ctx, d.pause)
	}
	i.wg.Wait()
	i.mu.Lock()
	defer i.mu.Unlock()
	return errors.Join(i.errs...)
}

// finish undoes a fault after its duration.
func (i *injector) finish(ctx context.Context, b *broken, length time.Duration) {
	rest(ctx, length)
	if err := b.undo(context.WithoutCancel(ctx)); err != nil {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.errs = append(i.errs, fmt.Errorf("undo %s: %w", b.what, err))
		return // the target remains claimed
	}
	for _, t := range b.claims {
		t.busy.Unlock()
	}
}

func rest(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// claim claims all targets or none.
func claim(targets ...*target) bool {
	for n, t := range targets {
		if !t.busy.TryLock() {
			for _, t := range targets[:n] {
				t.busy.Unlock()
			}
			return false
		}
	}
	return true
}

// chosen selects the target among several processes.
type chosen bool

const (
	one       chosen = false
	theLeader chosen = true
)

// hurt is a fault of a process.
type hurt struct {
	ends bool // ends the process; the survivors are exempt
	do   func(p *process) (undo func(ctx context.Context) error)
}

var (
	killed = hurt{true, func(p *process) func(context.Context) error {
		p.kill()
		return func(context.Context) error { return p.start() }
	}}
	left = hurt{true, func(p *process) func(context.Context) error {
		p.signal(syscall.SIGTERM, true)
		return func(ctx context.Context) error { // other faults may delay the end
			if err := p.awaitEnd(ctx, leavePatience); err != nil {
				return err
			}
			return p.start()
		}
	}}
	stopped = hurt{false, func(p *process) func(context.Context) error {
		p.signal(syscall.SIGSTOP, false)
		return func(context.Context) error {
			p.signal(syscall.SIGCONT, false)
			return nil
		}
	}}
)

// strike injects a fault into processes. It returns nil if another fault has claimed one of them.
func strike(h hurt, what string, victims ...*process) *broken {
	b := &broken{what: what}
	for _, p := range victims {
		b.claims = append(b.claims, &p.target)
	}
	if !claim(b.claims...) {
		return nil
	}
	undos := make([]func(context.Context) error, len(victims))
	for n, p := range victims {
		undos[n] = h.do(p)
	}
	b.undo = func(ctx context.Context) error {
		var errs []error
		for _, undo := range undos {
			errs = append(errs, undo(ctx))
		}
		return errors.Join(errs...)
	}
	return b
}

func onMaster(who chosen, h hurt) func(context.Context, *injector, int) *broken {
	return func(_ context.Context, i *injector, which int) *broken {
		n := mayBe(h, which, masters)
		if who == theLeader {
			n = i.leader()
		}
		if n < 0 || h.ends && n == survivor {
			return nil
		}
		return strike(h, i.masters[n].name, i.masters[n])
	}
}

// mayBe selects a process. A fault that ends processes does not select the survivor.
func mayBe(h hurt, which, several int) int {
	if h.ends {
		return (survivor + 1 + which%(several-1)) % several
	}
	return which % several
}

func onTrainers(h hurt) func(context.Context, *injector, int) *broken {
	return func(_ context.Context, i *injector, which int) *broken {
		p := i.trainers[mayBe(h, which, trainerProcesses)]
		return strike(h, p.name, p)
	}
}

func everyTrainer(_ context.Context, i *injector, _ int) *broken {
	return strike(killed, "all trainer processes", i.trainers[:]...)
}

func onMember(who chosen, h hurt) func(context.Context, *injector, int) *broken {
	return func(ctx context.Context, i *injector, which int) *broken {
		n := which % etcdMembers
		if who == theLeader {
			n = i.etcdLeader(ctx)
		}
		if n < 0 {
			return nil
		}
		return strike(h, i.members[n].name, i.members[n])
	}
}

// snag is a fault of connections.
type snag func(g *gate) (undo func())

func cutOff(g *gate) func() {
	g.Refuse(true)
	g.Cut()
	return func() { g.Refuse(false) }
}

// unanswered forwards requests and holds back the answers.
func unanswered(g *gate) func() {
	g.HoldReplies(true)
	return func() {
		g.Cut()
		g.HoldReplies(false)
	}
}

const slowness = 300 * time.Millisecond // in each direction

func slowed(g *gate) func() {
	g.Delay(slowness, slowness)
	return func() { g.Delay(0, 0) }
}

// entangle injects a fault into proxies. It returns nil if another fault has claimed one of them.
func entangle(s snag, what string, gates ...*gate) *broken {
	b := &broken{what: what}
	for _, g := range gates {
		b.claims = append(b.claims, &g.target)
	}
	if !claim(b.claims...) {
		return nil
	}
	undos := make([]func(), len(gates))
	for n, g := range gates {
		undos[n] = s(g)
	}
	b.undo = func(context.Context) error {
		for _, undo := range undos {
			undo()
		}
		return nil
	}
	return b
}

func onPort(s snag) func(context.Context, *injector, int) *broken {
	return func(_ context.Context, i *injector, _ int) *broken {
		n := i.leader()
		if n < 0 || i.ports[n] == nil {
			return nil
		}
		return entangle(s, i.ports[n].name, i.ports[n])
	}
}

func onPeers(_ context.Context, i *injector, which int) *broken {
	g := i.peers[which%etcdMembers]
	return entangle(cutOff, g.name, g)
}

func onStores(s snag) func(context.Context, *injector, int) *broken {
	return func(_ context.Context, i *injector, _ int) *broken {
		return entangle(s, "all members", i.stores[:]...)
	}
}
