package sim

import (
	"errors"
	"flag"
	"math/bits"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	histories = flag.Int("sim.n", 600, "`number` of histories")
	first     = flag.Uint64("sim.first", 1, "`seed` of the first history")
	one       = flag.Uint64("sim.seed", 0, "`seed` of a single history to run and print")
	lines     = flag.Int("sim.lines", 80, "maximum `number` of events to print")
)

// oneOf is the stride of the tested histories and crash points: 1 tests each of them.
var oneOf = 1

// A history allocates much and keeps little, so fewer garbage collections take a fifth less processor time.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}

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
	n := *histories / oneOf
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
					kind := "simulator failed"
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
	t.Logf("%d histories, %d commits, %d of them sealed, %d terms, %d forced takeovers", n, commits.Load(), sealed.Load(), terms.Load(), takeovers.Load())
	if n >= 100 && sealed.Load() == 0 && !t.Failed() {
		t.Error("expected sealed ledger entries, found none")
	}
	if n >= 100 && takeovers.Load() == 0 && !t.Failed() {
		t.Error("expected forced takeovers, found none")
	}
}

// The histories include leaders that die between the commit of a step and its last message, and rollbacks that discard steps.
func TestHistoriesOfSynchronousSteps(t *testing.T) {
	steps, resent, rollbacks := 0, 0, 0
	for seed := uint64(6); seed < 6+100*stepsEvery; seed += stepsEvery * uint64(oneOf) {
		w, err := newWorld(seed, false)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.run(); err != nil {
			t.Errorf("seed %d: %v\nreplay: go test ./e2e/sim -run TestHistories -sim.seed=%d -v", seed, err, seed)
		}
		steps += len(w.check.stepBook.steps)
		resent += w.check.stepBook.resent
		rollbacks += w.check.stepBook.rollbacks
	}
	t.Logf("%d steps, %d of them sent by a later leader, %d rollbacks of steps", steps, resent, rollbacks)
	if oneOf == 1 && (steps == 0 || resent == 0 || rollbacks == 0) {
		t.Errorf("expected steps, resent steps and rollbacks, found %d, %d and %d", steps, resent, rollbacks)
	}
}

// The histories include rounds that continue after a failover.
func TestHistoriesOfEvaluation(t *testing.T) {
	begun, results, continued := uint64(0), 0, 0
	for seed := uint64(5); seed < 5+100*heldEvery; seed += heldEvery * uint64(oneOf) {
		w, err := newWorld(seed, false)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.run(); err != nil {
			t.Errorf("seed %d: %v\nreplay: go test ./e2e/sim -run TestHistories -sim.seed=%d -v", seed, err, seed)
		}
		begun += w.check.rounds.last
		for _, counted := range w.check.rounds.counted {
			results += bits.OnesCount64(counted)
		}
		continued += w.check.rounds.continued
	}
	t.Logf("%d rounds with %d results, %d of them in a later term than the first result of the round", begun, results, continued)
	if oneOf == 1 && (begun == 0 || results == 0 || continued == 0) {
		t.Errorf("expected rounds, results and results after a failover, found %d, %d and %d", begun, results, continued)
	}
}

// F250: the histories include segments whose leader dies between the part and the commit, and segments that the next leader appends.
func TestHistoriesOfAnOnlineDataset(t *testing.T) {
	appended, continued := 0, 0
	for seed := uint64(3); seed < 3+100*growsEvery; seed += growsEvery * uint64(oneOf) {
		w, err := newWorld(seed, false)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.run(); err != nil {
			t.Errorf("seed %d: %v\nreplay: go test ./e2e/sim -run TestHistories -sim.seed=%d -v", seed, err, seed)
		}
		appended += w.check.segments.appended
		continued += w.check.segments.continued
	}
	t.Logf("%d segments, %d of them in a later term than the segment before", appended, continued)
	if oneOf == 1 && (appended == 0 || continued == 0) {
		t.Errorf("expected segments, and segments of a later term, found %d and %d", appended, continued)
	}
}

// F219, F220, F221: the histories include decisions of a strategy by what an earlier leader has committed.
func TestHistoriesOfStrategy(t *testing.T) {
	decisions, inherited := 0, 0
	for n := uint64(0); n < 60; n += uint64(oneOf) {
		seed := 8 + 5 + n%2 + 16*(n/2) // rounds and steps by turns
		w, err := newWorld(seed, false)
		if err != nil {
			t.Fatal(err)
		}
		if w.plan.strategy == nil {
			t.Fatalf("seed %d: expected a strategy", seed)
		}
		if err := w.run(); err != nil {
			t.Errorf("seed %d: %v\nreplay: go test ./e2e/sim -run TestHistories -sim.seed=%d -v", seed, err, seed)
		}
		decisions += w.check.strategies.decisions
		inherited += w.check.strategies.inherited
	}
	t.Logf("%d decisions, %d of them in the first commit of a term", decisions, inherited)
	if oneOf == 1 && (decisions < 100 || inherited == 0) {
		t.Errorf("expected 100 decisions and some by the commits of an earlier term, found %d and %d", decisions, inherited)
	}
}

func TestSameSeedGivesTheSameHistory(t *testing.T) {
	for seed := uint64(0); seed < 20; seed += min(10, uint64(oneOf)) {
		one, err := Run(seed, true)
		if err != nil {
			t.Fatal(err)
		}
		other, err := Run(seed, true)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(one.Trace, other.Trace) {
			t.Fatalf("seed %d: expected equal histories, found different ones of %d and %d events", seed, len(one.Trace), len(other.Trace))
		}
	}
}

// A process that takes part in a cut or a rollback dies between two of its messages. The same short history runs once for
// each of these crash points, without other faults.
func TestCrashBetweenMessagesOfACut(t *testing.T) {
	runEachCrashPoint(t, func(*world) {})
}

// A crashed server restarts from its last checkpoint before the next message of the cut reaches it.
func TestServerRestartDuringACut(t *testing.T) {
	runEachCrashPoint(t, func(w *world) { w.plan.away = [2]time.Duration{time.Microsecond, time.Millisecond} })
}

// A leader dies during a cut. Its successor finds etcd full, and releases the trainers when etcd has space again.
func TestReleaseWhileEtcdIsFullAfterACrashDuringACut(t *testing.T) {
	refused := runEachCrashPoint(t, func(w *world) {
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
	if oneOf == 1 && refused == 0 {
		t.Error("expected refused commits of a second leader, found none")
	}
}

// etcd is full for two minutes while outcomes of commits are unknown. Some of these transactions cross the quota. Callers
// are answered, or the term ends, before etcd has space again.
func TestCallersAreAnsweredWhileEtcdIsFull(t *testing.T) {
	var refused, applied uint64
	for seed := uint64(1); seed <= 40; seed++ {
		w, err := newPlanned(seed, false, func(p *plan) {
			p.faults = faults{lostReply: 0.2, stop: 90 * time.Second}
			p.quiet = 150 * time.Second
			p.options.Passes = 50 // the job is still running when etcd is full
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
		t.Errorf("expected refused commits and writes that cross the quota, found %d and %d", refused, applied)
	}
}

// runEachCrashPoint runs short histories once for each crash point. It returns the total number of commits that a full etcd
// refused.
func runEachCrashPoint(t *testing.T, prepare func(*world)) (refused uint64) {
	t.Helper()
	for _, seed := range []uint64{18, 26} {
		refused += runEachCrashPointOf(t, seed, prepare)
	}
	return refused
}

func runEachCrashPointOf(t *testing.T, seed uint64, prepare func(*world)) (refused uint64) {
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
					t.Errorf("crash point %d of %d: %v", strike, last, err)
				}
				if w.instants < strike {
					t.Errorf("crash point %d of %d: expected to be reached", strike, last)
				}
				full.Add(w.etcd.refused)
			}
		})
	}
	workers.Wait()
	t.Logf("%d crash points, %d cuts, %d commits refused", last, whole.check.step, full.Load())
	return full.Load()
}

// newShortHistory returns a history of cuts whose only fault is a crash at the given crash point; 0: none.
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

// F253, F254: the histories include models of decisions of an earlier leader, trainers that keep their models, and figures that are not finite.
func TestHistoriesOfAPopulation(t *testing.T) {
	generations, decisions, received, kept, continued := uint64(0), 0, 0, 0, 0
	for seed := uint64(1); seed < 1+100*ownsEvery; seed += ownsEvery * uint64(oneOf) {
		w, err := newWorld(seed, false)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.run(); err != nil {
			t.Errorf("seed %d: %v\nreplay: go test ./e2e/sim -run TestHistories -sim.seed=%d -v", seed, err, seed)
		}
		b := w.check.population
		generations += b.state.Number
		decisions, received, kept, continued = decisions+b.decisions, received+b.received, kept+b.kept, continued+b.continued
	}
	t.Logf("%d generations, %d decisions, %d models received, of them %d not used, %d dispatched in a later term than their decision", generations, decisions, received, kept, continued)
	if oneOf == 1 && (decisions == 0 || received == 0 || kept == 0 || continued == 0) {
		t.Errorf("expected decisions, received models, kept models and models of a later term, found %d, %d, %d and %d", decisions, received, kept, continued)
	}
}
