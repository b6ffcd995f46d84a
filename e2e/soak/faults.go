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

// fault is a way for things to go wrong. begin lets it happen to one or more targets, which it claims, and returns how
// to undo it; it is passed over (nil) when a target is not there, or another fault has it.
type fault struct {
	name        string
	weight      int
	least, most time.Duration // how long it lasts
	begin       func(ctx context.Context, i *injector, which int) *broken
}

// broken is a fault that lasts.
type broken struct {
	what   string
	claims []*target
	undo   func(ctx context.Context) error
}

// faults are all of them.
var faults = []fault{
	{"kill the leader", 3, 0, 4 * time.Second, onMaster(theLeader, killed)},
	{"kill a master", 1, 0, 4 * time.Second, onMaster(one, killed)},
	{"stop the leader", 3, 500 * time.Millisecond, 8 * time.Second, onMaster(theLeader, stopped)},
	{"stop a master", 1, 500 * time.Millisecond, 8 * time.Second, onMaster(one, stopped)},
	{"the leader resigns", 2, 0, 2 * time.Second, onMaster(theLeader, left)},
	{"cut the leader off", 2, 0, 5 * time.Second, onDoor(cutOff)},
	{"lose the leader's answers", 2, 100 * time.Millisecond, 4 * time.Second, onDoor(unanswered)},

	{"kill trainers", 3, 0, 8 * time.Second, onTrainers(killed)},
	{"stop trainers", 3, time.Second, 15 * time.Second, onTrainers(stopped)},
	{"trainers leave", 2, 0, 3 * time.Second, onTrainers(left)},
	{"kill every trainer", 1, 0, 8 * time.Second, everyTrainer},

	{"kill etcd's leader", 2, 0, 5 * time.Second, onMember(theLeader, killed)},
	{"kill a member of etcd", 1, 0, 5 * time.Second, onMember(one, killed)},
	{"stop etcd's leader", 2, 500 * time.Millisecond, 6 * time.Second, onMember(theLeader, stopped)},
	{"stop a member of etcd", 1, 500 * time.Millisecond, 6 * time.Second, onMember(one, stopped)},
	{"cut etcd's peers off", 2, 500 * time.Millisecond, 6 * time.Second, onPeers},
	{"cut the store off", 1, 500 * time.Millisecond, 6 * time.Second, onStores(cutOff)},
	{"lose the store's answers", 2, 100 * time.Millisecond, 3 * time.Second, onStores(unanswered)},
	{"a slow store", 2, 2 * time.Second, 8 * time.Second, onStores(slowed)},
}

// draw is what the seed says of one fault: everything but whom it meets.
type draw struct {
	fault  *fault
	which  int
	length time.Duration
	pause  time.Duration // before the next one
}

const (
	leastPause = time.Second
	mostPause  = 5 * time.Second
)

// draws is the endless list of a seed.
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

// injector lets faults happen.
type injector struct {
	*cluster
	leader func() int // the number of the master that leads, -1 when none is known to
	say    func(format string, args ...any)
	made   map[string]int
	over   int // faults that were passed over

	wg   sync.WaitGroup
	mu   sync.Mutex
	errs []error // guarded by mu
}

// run lets things go wrong until ctx ends; then all is undone.
func (i *injector) run(ctx context.Context, seed uint64) error {
	list := newDraws(seed)
	for ctx.Err() == nil {
		d := list.next()
		if b := d.fault.begin(ctx, i, d.which); b == nil {
			i.over++
		} else {
			i.made[d.fault.name]++
			i.say("%s: %s for %v", d.fault.name, b.what, d.length.Round(time.Millisecond))
			i.wg.Go(func() { i.finish(ctx, b, d.length) })
		}
		rest(ctx, d.pause)
	}
	i.wg.Wait()
	i.mu.Lock()
	defer i.mu.Unlock()
	return errors.Join(i.errs...)
}

// finish undoes a fault when its time is over.
func (i *injector) finish(ctx context.Context, b *broken, length time.Duration) {
	rest(ctx, length)
	if err := b.undo(context.WithoutCancel(ctx)); err != nil {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.errs = append(i.errs, fmt.Errorf("undo %s: %w", b.what, err))
		return // nobody may have this target any more
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

// claim takes all of the targets, or none.
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

// chosen says which of several.
type chosen bool

const (
	one       chosen = false
	theLeader chosen = true
)

// hurt is what can be done to a process.
type hurt struct {
	ends bool // the process, which is not done to the survivors
	do   func(p *process) (undo func(ctx context.Context) error)
}

var (
	killed = hurt{true, func(p *process) func(context.Context) error {
		p.kill()
		return func(context.Context) error { return p.start() }
	}}
	left = hurt{true, func(p *process) func(context.Context) error {
		p.signal(syscall.SIGTERM, true)
		return func(ctx context.Context) error { // it may take as long as other things are broken
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

// strike does it to some processes, if no other fault has one of them.
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

// mayBe picks one of several, not the survivor if it would end.
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
	return strike(killed, "all of them", i.trainers[:]...)
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

// snag is what can be done to connections.
type snag func(g *gate) (undo func())

func cutOff(g *gate) func() {
	g.Refuse(true)
	g.Cut()
	return func() { g.Refuse(false) }
}

// unanswered lets requests through, and loses the answers.
func unanswered(g *gate) func() {
	g.HoldReplies(true)
	return func() {
		g.Cut()
		g.HoldReplies(false)
	}
}

const slowness = 300 * time.Millisecond // each way

func slowed(g *gate) func() {
	g.Delay(slowness, slowness)
	return func() { g.Delay(0, 0) }
}

// entangle does it to some gates, if no other fault has one of them.
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

func onDoor(s snag) func(context.Context, *injector, int) *broken {
	return func(_ context.Context, i *injector, _ int) *broken {
		n := i.leader()
		if n < 0 || i.doors[n] == nil {
			return nil
		}
		return entangle(s, i.doors[n].name, i.doors[n])
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
