package sim

import (
	"testing"
	"time"
)

// A process dies between two messages of a cut or a rollback, and another one soon after it: for example the next leader before it has
// released the trainers, or a server that a rollback has just loaded.
func TestSecondCrashDuringACutOrRollback(t *testing.T) {
	for _, later := range []int{1, 5} {
		runEachCrashPoint(t, func(w *world) { w.again = w.strike + later })
	}
}

// etcd is full from the moment at which a process dies between two messages: a rollback is due, or a cut is open, and no commit succeeds.
func TestEtcdIsFullAfterACrashDuringACut(t *testing.T) {
	refused := runEachCrashPoint(t, func(w *world) {
		w.struck = func(_ *machine, die func()) {
			w.etcd.filling = w.strike%2 == 0 // the write that crosses the quota is applied
			w.etcd.full = !w.etcd.filling
			w.loop.after(w.between(time.Second, 8*time.Second), func() { w.etcd.full, w.etcd.filling = false, false })
			die()
		}
	})
	if refused == 0 {
		t.Error("expected refused commits, found none")
	}
}

// A process is paused between two messages for longer than the lease of the lock. If it is the leader, the next leader begins during the pause, and
// the messages of the paused leader arrive later.
func TestPauseBetweenMessagesOfACut(t *testing.T) {
	runEachCrashPoint(t, func(w *world) {
		w.struck = func(m *machine, die func()) {
			for _, n := range w.nodes {
				if n.machine == m {
					n.pauses(2 * leaseTTL)
					return
				}
			}
			m.paused = max(m.paused, w.now+2*leaseTTL)
		}
	})
}

// The leader loses its connection to etcd between two messages of a cut, and one of its servers dies. It still reaches the other processes
// until its lease ends.
func TestLeaderCutOffAndServerCrashDuringACut(t *testing.T) {
	runEachCrashPoint(t, func(w *world) {
		w.struck = func(_ *machine, _ func()) {
			if n := w.leader(); n != nil {
				n.cut = true
				n.excuse(2 * leaseTTL)
				w.loop.after(2*leaseTTL, func() {
					n.cut = false
					if n.up {
						n.after(w.watchDelay(), n.queueChanged)
					}
				})
			}
			w.servers[w.strike%servers].die()
		}
	})
}

// A process of a synchronous job dies between two messages of a cut, of a rollback or of a step, alone or followed by another one.
func TestCrashBetweenMessagesOfASynchronousJob(t *testing.T) {
	for _, later := range []int{0, 3} {
		runEachCrashPointOf(t, 6+2*stepsEvery, func(w *world) {
			if later > 0 {
				w.again = w.strike + later
			}
		})
	}
}
