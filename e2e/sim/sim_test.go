package sim

import (
	"errors"
	"flag"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	histories = flag.Int("sim.n", 2000, "how many histories to run")
	first     = flag.Uint64("sim.first", 1, "seed of the first one")
	one       = flag.Uint64("sim.seed", 0, "run this seed alone, and print its last events")
	lines     = flag.Int("sim.lines", 80, "how many events to print")
)

// fewer histories than asked for are run; 0: as many.
var fewer int

// Of the instants of a cut, one of so many is tried.
var oneOf = 1

func TestHistories(t *testing.T) {
	if *one != 0 {
		result, err := Run(*one, true)
		for _, line := range result.Trace[max(0, len(result.Trace)-*lines):] {
			t.Log(line)
		}
		if err != nil {
			t.Fatalf("seed %d: %v", *one, err)
		}
		t.Logf("seed %d: %d commits in %d terms, %v", *one, result.Commits, result.Terms, result.Virtual)
		return
	}
	n := *histories
	if fewer > 0 {
		n = min(n, fewer)
	}
	var next, commits, terms, takeovers, sealed atomic.Uint64
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for !t.Failed() {
				i := next.Add(1)
				if i > uint64(n) {
					return
				}
				seed := *first + i - 1
				result, err := Run(seed, false)
				if err != nil {
					kind := "broken"
					if _, ok := errors.AsType[*Violation](err); ok {
						kind = "invariant"
					}
					t.Errorf("seed %d, history %d: %s: %v\n%s\nreplay: go test ./e2e/sim -run TestHistories -sim.seed=%d -v", seed, i, kind, err, Explain(seed, *lines), seed)
				}
				commits.Add(uint64(result.Commits))
				terms.Add(uint64(result.Terms))
				takeovers.Add(uint64(result.Takeovers))
				sealed.Add(result.Sealed)
			}
		})
	}
	workers.Wait()
	t.Logf("%d histories, %d commits, %d of them sealed, %d terms, %d forced take-overs", n, commits.Load(), sealed.Load(), terms.Load(), takeovers.Load())
	if n >= 100 && sealed.Load() == 0 && !t.Failed() {
		t.Error("no part of a ledger was sealed: these histories prove nothing about it")
	}
	if n >= 100 && takeovers.Load() == 0 && !t.Failed() {
		t.Error("no stand-by ever deposed a leader: these histories prove nothing about it")
	}
}

// Synchronous jobs alone, one history in stepsEvery of those above: servers that begin ahead of etcd, and leaders that die between
// the commit of a step and its last message.
func TestHistoriesOfSynchronousSteps(t *testing.T) {
	steps, adopted, resent := 0, 0, 0
	for seed := uint64(6); seed < 6+100*stepsEvery; seed += stepsEvery {
		w, err := newWorld(seed, false)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.run(); err != nil {
			t.Errorf("seed %d: %v\nreplay: go test ./e2e/sim -run TestHistories -sim.seed=%d -v", seed, err, seed)
		}
		for _, step := range w.check.stepBook.steps {
			if steps++; len(step.Contributors) == 0 {
				adopted++
			}
		}
		resent += w.check.stepBook.resent
	}
	t.Logf("%d steps, %d of them without contributors, %d sent by another leader than the one that committed them", steps, adopted, resent)
	if steps == 0 || adopted == 0 || resent == 0 {
		t.Error("these histories prove nothing about synchronous steps")
	}
}

// A seed is a history: what happened once happens again.
func TestSeedDecides(t *testing.T) {
	for seed := range uint64(20) {
		one, err := Run(seed, true)
		if err != nil {
			t.Fatal(err)
		}
		other, err := Run(seed, true)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(one.Trace, other.Trace) {
			t.Fatalf("seed %d made two histories, of %d and %d events", seed, len(one.Trace), len(other.Trace))
		}
	}
}

// Whoever takes part in a cut, or in a going back, dies between any two of its messages: in the same short history, once in each
// of these moments. Nothing else fails in it.
func TestSomebodyDiesBetweenAnyTwoMessagesOfACut(t *testing.T) {
	inEachInstant(t, func(*world) {})
}

// A server that died is back before the next message of the cut reaches it, with what its last checkpoint had.
func TestServerIsBackInTheMiddleOfACut(t *testing.T) {
	inEachInstant(t, func(w *world) { w.plan.away = [2]time.Duration{time.Microsecond, time.Millisecond} })
}

// The leader that follows one that died in the middle of a cut finds etcd full, and lets the trainers go once it is not.
func TestFullStoreAfterALeaderDiedInACut(t *testing.T) {
	refused := inEachInstant(t, func(w *world) {
		leaders := 0
		w.etcd.changed = append(w.etcd.changed, func(key string) {
			if key != addrKey || w.etcd.keys[key] == nil {
				return
			}
			if leaders++; leaders == 2 {
				w.etcd.full = true
				w.after(2*time.Second, func() { w.etcd.full = false })
			}
		})
	})
	if refused == 0 {
		t.Error("no leader followed one that had died: these histories prove nothing")
	}
}

// etcd is full for two minutes while outcomes of commits are unknown, some of transactions that crossed the quota: callers
// are answered, or the term ends, long before there is room.
func TestCallersAreAnsweredWhileEtcdIsFull(t *testing.T) {
	var refused, applied uint64
	for seed := uint64(1); seed <= 40; seed++ {
		w, err := newPlanned(seed, false, func(p *plan) {
			p.faults = faults{lostReply: 0.2, stop: 90 * time.Second}
			p.quiet = 150 * time.Second
			p.options.Passes = 50 // it goes on while etcd is full
			p.masters = 1         // no standby takes the lock of a leader that etcd refuses
		})
		if err != nil {
			t.Fatal(err)
		}
		w.after(w.between(time.Second, 10*time.Second), func() {
			w.etcd.filling = w.chance(0.5)
			w.etcd.full = !w.etcd.filling
		})
		w.after(130*time.Second, func() {
			if !w.etcd.filling && w.etcd.full {
				applied++
			}
			w.etcd.full, w.etcd.filling = false, false
			w.plan.quiet = w.now
		})
		for w.failed == nil && w.now < 140*time.Second && w.step() {
		}
		w.close()
		if w.failed != nil {
			t.Errorf("seed %d: %v", seed, w.failed)
		}
		refused += w.etcd.refused
	}
	if refused == 0 || applied == 0 {
		t.Errorf("%d commits were refused in %d histories: these prove nothing", refused, applied)
	}
}

// inEachInstant runs a short history once for each instant between two messages of its cuts, in which somebody dies. It returns
// how many commits a full etcd refused in all of them.
func inEachInstant(t *testing.T, prepare func(*world)) (refused uint64) {
	t.Helper()
	for _, seed := range []uint64{18, 26} {
		refused += inEachInstantOf(t, seed, prepare)
	}
	return refused
}

func inEachInstantOf(t *testing.T, seed uint64, prepare func(*world)) (refused uint64) {
	t.Helper()
	whole := newShortHistory(t, seed, 0)
	if err := whole.run(); err != nil || whole.check.step == 0 {
		t.Fatalf("seed %d: %v, %d cuts", seed, err, whole.check.step)
	}
	last := whole.instants
	var next atomic.Int64
	var full atomic.Uint64
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for strike := oneOf * int(next.Add(1)); strike <= last && !t.Failed(); strike = oneOf * int(next.Add(1)) {
				w := newShortHistory(t, seed, strike)
				prepare(w)
				if err := w.run(); err != nil {
					t.Errorf("somebody dies in instant %d of %d: %v", strike, last, err)
				}
				if w.instants < strike {
					t.Errorf("instant %d of %d never came", strike, last)
				}
				full.Add(w.etcd.refused)
			}
		})
	}
	workers.Wait()
	t.Logf("%d instants, %d cuts, %d commits refused", last, whole.check.step, full.Load())
	return full.Load()
}

// newShortHistory is one of cuts in which nothing fails, but for who is there in one instant between two messages.
func newShortHistory(t *testing.T, seed uint64, strike int) *world {
	t.Helper()
	w, err := newPlanned(seed, false, func(p *plan) {
		p.realCodec, p.faults, p.poison, p.habits = false, faults{}, nil, [trainers]habit{}
		for i := range p.habits {
			p.habits[i].task = [2]time.Duration{50 * time.Millisecond, 200 * time.Millisecond}
		}
		p.tasks, p.every, p.quiet, p.options.MaxFailures, p.options.Passes = 4, 100*time.Millisecond, 0, 3, 1
	})
	if err != nil {
		t.Error(err)
	}
	w.strike = strike
	return w
}
