package sim

import (
	"time"

	"trainmaster/taskqueue"
)

// schedule schedules the faults that are independent of messages.
func (w *world) schedule() {
	f := &w.plan.faults
	w.often(f.crash, func() {
		n := w.anyNode()
		n.dies()
	})
	w.often(f.stop, func() {
		n := w.anyNode()
		if n.up && !n.stopping {
			w.note("%s: is stopped gracefully", n.name)
			n.stopping = true
			n.stopTerm()
			if n.wake != nil {
				n.wake()
			}
			asked := n.waiting()
			var again func()
			again = func() {
				switch {
				case !n.stopping: // it crashed and was restarted
				case n.up:
					if waited := n.waited(asked); waited > answerWithin {
						w.breaks("a stopped master ends", "%s still runs after %v", n.name, waited)
					}
					w.after(time.Second, again)
				default:
					n.boot()
				}
			}
			w.after(time.Second, again)
		}
	})
	w.often(f.pause, func() {
		n := w.anyNode()
		d := w.between(100*time.Millisecond, 12*time.Second)
		w.note("%s: pauses for %v", n.name, d)
		n.pauses(d)
	})
	w.often(f.jump, func() {
		n := w.anyNode()
		d := w.between(time.Second, time.Hour)
		w.note("%s: its clock jumps by %v", n.name, d)
		n.jump += d
	})
	w.often(f.cut, func() {
		n := w.anyNode()
		w.note("%s: partitioned from etcd", n.name)
		n.cut = true
		d := w.between(100*time.Millisecond, 12*time.Second)
		n.excuse(d)
		w.after(d, func() {
			n.cut = false
			if n.up {
				n.after(w.watchDelay(), n.queueChanged) // its watches reconnect
			}
		})
	})
	w.often(f.deaf, func() {
		n := w.anyNode()
		w.note("%s: partitioned from other masters", n.name)
		n.deaf = true
		d := w.between(100*time.Millisecond, 5*time.Second)
		n.excuse(d)
		w.after(d, func() { n.deaf = false })
	})
	w.often(f.down, func() {
		w.note("etcd: unreachable")
		w.etcd.down = true
		d := w.between(100*time.Millisecond, 20*time.Second)
		w.etcdExcused = max(w.etcdExcused, w.now+d+excusedFor)
		w.after(d, func() { w.etcd.down = false; w.etcd.lead() })
	})
	w.often(f.full, func() {
		w.etcd.filling = w.chance(0.5)
		w.etcd.full = !w.etcd.filling
		w.note("etcd: full: %v, otherwise with the next write", w.etcd.full)
		w.after(w.between(100*time.Millisecond, 12*time.Second), func() { w.etcd.full, w.etcd.filling = false, false })
	})
	w.often(f.election, w.etcd.lead)
	w.often(f.die, func() { w.trainers[w.rng.IntN(len(w.trainers))].die() })
	w.often(f.serverCrash, func() { w.servers[w.rng.IntN(servers)].die() })
	w.often(f.retry, w.retryAside)
	w.often(f.forge, w.forge)
	w.after(w.plan.quiet, func() {
		w.note("no more faults")
		w.etcd.down, w.etcd.full, w.etcd.filling = false, false, false
		for _, n := range w.nodes {
			n.cut, n.deaf, n.paused = false, false, w.now
		}
	})
}

// dies crashes the process of a master. It restarts within 10 s.
func (n *node) dies() {
	if !n.up {
		return
	}
	n.note("%s: crashes", n.name)
	n.crash()
	for _, c := range n.conns {
		c.breaks()
	}
	n.closeListeners()
	n.loop.after(n.between(50*time.Millisecond, 10*time.Second), n.boot)
}

// often calls do at random times, on average once per interval, until the faults end.
func (w *world) often(every time.Duration, do func()) {
	if every == 0 {
		return
	}
	w.after(time.Duration(float64(every)*(0.1+1.8*w.rng.Float64())), func() {
		if w.now < w.plan.quiet {
			do()
			w.often(every, do)
		}
	})
}

func (w *world) anyNode() *node {
	if w.chance(0.6) {
		for _, n := range w.nodes {
			if n.driven != nil {
				return n
			}
		}
	}
	return w.nodes[w.rng.IntN(len(w.nodes))]
}

func (w *world) leader() *node {
	for _, n := range w.nodes {
		if n.driven != nil && n.awake() {
			return n
		}
	}
	return nil
}

// retryAside retries a set-aside task, as an operator does.
func (w *world) retryAside() {
	if n := w.leader(); n != nil && len(w.check.state.aside) > 0 {
		n.put(nil, &taskqueue.RetryAside{Index: w.check.state.aside[w.rng.IntN(len(w.check.state.aside))].index}, nil)
	}
}

// forge sends a finish with a token that is old or was never dispatched.
func (w *world) forge() {
	n := w.leader()
	if n == nil {
		return
	}
	tok := w.check.anyToken(w.rng)
	r := &taskqueue.Request{Trainer: taskqueue.Ordinal(w.rng.IntN(20)), Finished: []taskqueue.Result{{Token: tok}}}
	if w.plan.exact {
		r.Finished[0].Step = 1 + uint64(w.rng.IntN(100))
	}
	n.put(nil, r, nil)
}
