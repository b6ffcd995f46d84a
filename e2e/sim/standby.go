package sim

import (
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"trainmaster/etcdstore/fence"
	"trainmaster/master/election/detector"
	ports "trainmaster/master/store"
)

// synAgain is the pause before the retry of an unanswered dial.
const synAgain = time.Second

// listening is the connection of a standby to the master that it watches. detector.Redial decides
// when to dial again. A heartbeat arrives every BeatEvery.
type listening struct {
	of         ports.Candidate
	redial     detector.Redial
	heartbeats int  // number received over the open connection
	over       bool // the standby watches another master, or has ended
}

// leaseName formats a lease as in queue keys and heartbeats.
func leaseName(id int64) string { return fmt.Sprintf("%x", id) }

// follow watches the first candidate in the queue. n.bid is set while this master waits for the lock.
func (n *node) follow(next ports.Candidate) {
	if n.listening != nil {
		n.listening.over = true
		n.listening = nil
	}
	judged := n.watching.Follow(next, n.own)
	if n.bid == nil {
		return
	}
	n.act(judged)
	if next.Address != "" && next.Address != n.addr {
		n.listening = &listening{of: next}
		n.dial(n.listening)
	}
}

// dial connects to the watched master. A process accepts, a stopped process refuses, and a
// partitioned network does not answer. A paused machine accepts and sends nothing.
func (n *node) dial(l *listening) {
	n.after(n.world.netDelay(), func() {
		other := n.world.nodeAt(l.of.Address)
		switch {
		case l.over:
		case n.deaf || other.deaf:
			n.after(synAgain, func() { n.dial(l) })
		case !other.up:
			wait, gone := l.redial.NotConnected(true)
			if gone {
				n.act(n.watching.Gone(l.of.Key))
			}
			n.after(wait, func() { n.dial(l) })
		default:
			l.heartbeats = 0
			other.serveBeats(n, l)
			other.listeners = append(other.listeners, func() {
				n.after(n.world.netDelay(), func() {
					if !l.over {
						n.after(l.redial.Ended(l.heartbeats), func() { n.dial(l) })
					}
				})
			})
		}
	})
}

// serveBeats sends heartbeats until the process ends. It models the function election.ServeHeartbeats.
func (n *node) serveBeats(to *node, l *listening) {
	if l.over {
		return
	}
	if !n.deaf && !to.deaf {
		beat := detector.Heartbeat{Lease: n.own, AgeMs: (n.now - n.heard).Milliseconds()}
		if n.lock != nil {
			beat.Term = uint64(n.lock.term.Revision)
		}
		to.after(n.world.netDelay(), func() {
			if !l.over {
				l.heartbeats++
				to.act(to.watching.Receive(l.of.Key, beat, func() bool { return !to.cut && !to.world.etcd.down }))
			}
		})
	}
	n.after(detector.Interval, func() { n.serveBeats(to, l) })
}

// closeListeners closes the connections of standbys when the process ends.
func (n *node) closeListeners() {
	for _, ended := range n.listeners {
		ended()
	}
	n.listeners = nil
}

// judge judges the watched master every BeatEvery.
func (n *node) judge() {
	n.after(detector.Interval, n.judge)
	if !n.cut && !n.world.etcd.down { // a standby without other requests sends a small one
		n.after(n.link.etcdDelay(), func() { n.heard = n.now })
	}
	if n.bid != nil {
		n.act(n.watching.Look(n.version, n.own))
	}
}

// act acts on a verdict.
func (n *node) act(v detector.Verdict) {
	if v == detector.Alive || n.bid == nil {
		return
	}
	n.takeOver(n.watching.Candidate(), v)
	n.watching.Forget()
}

// takeOver revokes the lease of the watched master, unless the holddown of the previous takeover exists. The backoff from
// silent leaders is not modelled, so that takeovers are frequent.
func (n *node) takeOver(s ports.Candidate, found detector.Verdict) {
	e := n.world.etcd
	exempt := n.version < s.Revision
	n.world.check.takeover(n, s, found)
	n.loop.after(n.between(time.Millisecond, 5*time.Millisecond), func() {
		if n.cut || e.down || string(e.first(lockPrefix).GetKey()) != s.Key || !exempt && e.keys[holdKey] != nil {
			return
		}
		n.note("%s: revokes the lease of %s in term %d: %v", n.name, s.Address, s.Revision, found)
		lease := e.keys[s.Key].Lease
		if !exempt {
			if _, err := e.txn(&pb.TxnRequest{Success: []*pb.RequestOp{fence.Put(holdKey, nil, e.grant(10*time.Second))}}); err != nil {
				return
			}
		}
		n.world.takeovers++
		e.revoke(lease)
	})
}

func (w *world) nodeAt(addr string) *node {
	for _, n := range w.nodes {
		if n.addr == addr {
			return n
		}
	}
	return nil
}

// excusedFor is the time after a fault during which a takeover is no violation: five intervals of
// heartbeats and the retry of a dial.
const excusedFor = synAgain + 5*detector.Interval

// excuse records that a master is paused or partitioned for d.
func (n *node) excuse(d time.Duration) { n.excused = max(n.excused, n.now+d+excusedFor) }

// takeover checks that a standby does not replace a running master that etcd and the standby can reach.
func (c *check) takeover(n *node, s ports.Candidate, found detector.Verdict) {
	w, other := c.world, c.world.nodeAt(s.Address)
	f := &w.plan.faults
	switch {
	case !other.up || other.own != s.Lease: // another process uses its address
	case w.now < w.plan.quiet+5*time.Second && (f.lag > 0 || f.slow > 0):
	case w.now < max(n.excused, other.excused, w.etcdExcused):
	default:
		c.breaks("a healthy master is not replaced", "%s judges %s to be %v in term %d", n.name, other.name, found, s.Revision)
	}
}
