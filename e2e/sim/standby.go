package sim

import (
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"trainmaster/etcdstore/fence"
	"trainmaster/master/decide"
	ports "trainmaster/master/store"
)

// synAgain is the pause before a connection that nothing answered is tried again.
const synAgain = time.Second

// listening is the connection of a standby to the master that it watches: dialed, and dialed
// again by decide.Redial, with a heartbeat every BeatEvery.
type listening struct {
	of         ports.Candidate
	redial     decide.Redial
	heartbeats int  // on the connection that is open
	over       bool // another suspect, or another life
}

// lease names a lease as the queue and heartbeats do.
func leaseName(id int64) string { return fmt.Sprintf("%x", id) }

// follow takes the first in the queue; n.bid is set while this master waits.
func (n *node) follow(next ports.Candidate) {
	if n.listening != nil {
		n.listening.over = true
		n.listening = nil
	}
	judged := n.watching.Follow(next, n.own)
	if n.bid == nil {
		return
	}
	n.judges(judged)
	if next.Address != "" && next.Address != n.addr {
		n.listening = &listening{of: next}
		n.dial(n.listening)
	}
}

// dial connects to the suspect: a process refuses or accepts, and a network that is cut does
// neither. A machine that is paused accepts and sends nothing.
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
				n.judges(n.watching.Gone(l.of.Key))
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

// serveBeats sends heartbeats, as master.ServeBeats does, until this life ends.
func (n *node) serveBeats(to *node, l *listening) {
	if l.over {
		return
	}
	if !n.deaf && !to.deaf {
		beat := decide.Beat{Lease: n.own, AgeMs: (n.now - n.heard).Milliseconds()}
		if n.lock != nil {
			beat.Term = uint64(n.lock.term.Revision)
		}
		to.after(n.world.netDelay(), func() {
			if !l.over {
				l.heartbeats++
				to.judges(to.watching.Heard(l.of.Key, beat, func() bool { return !to.cut && !to.world.etcd.down }))
			}
		})
	}
	n.after(decide.BeatEvery, func() { n.serveBeats(to, l) })
}

// hangsUp ends the connections of standbys, with the process.
func (n *node) hangsUp() {
	for _, ended := range n.listeners {
		ended()
	}
	n.listeners = nil
}

// look judges the first in the queue, every BeatEvery.
func (n *node) look() {
	n.after(decide.BeatEvery, n.look)
	if !n.cut && !n.world.etcd.down { // it asks etcd something small when nothing else did
		n.after(n.link.etcdDelay(), func() { n.heard = n.now })
	}
	if n.bid != nil {
		n.judges(n.watching.Look(n.version, n.own))
	}
}

// judges acts on a verdict.
func (n *node) judges(v decide.Verdict) {
	if v == decide.Alive || n.bid == nil {
		return
	}
	n.depose(n.watching.Suspect(), v)
	n.watching.Forget()
}

// depose revokes the lease of a suspect, unless a take-over was forced a short while ago. Real ones back off from silent
// leaders; these do not, so that there are more of them.
func (n *node) depose(s ports.Candidate, found decide.Verdict) {
	e := n.world.etcd
	exempt := n.version < s.Revision
	n.world.check.deposes(n, s, found)
	n.loop.after(n.between(time.Millisecond, 5*time.Millisecond), func() {
		if n.cut || e.down || string(e.first(lockPrefix).GetKey()) != s.Key || !exempt && e.keys[holdKey] != nil {
			return
		}
		n.note("%s: deposes %s in term %d: %v", n.name, s.Address, s.Revision, found)
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

// excusedFor is how long after a fault a standby may still judge by it: three heartbeats, and a
// connection that is tried again.
const excusedFor = synAgain + 5*decide.BeatEvery

// excuse notes that a master is paused or cut off for d.
func (n *node) excuse(d time.Duration) { n.excused = max(n.excused, n.now+d+excusedFor) }

// deposes: a master that runs, and that etcd and its standby can reach, is not deposed.
func (c *check) deposes(n *node, s ports.Candidate, found decide.Verdict) {
	w, other := c.world, c.world.nodeAt(s.Address)
	f := &w.plan.faults
	switch {
	case !other.up || other.own != s.Lease: // another process has its port
	case w.now < w.plan.quiet+5*time.Second && (f.lag > 0 || f.slow > 0):
	case w.now < max(n.excused, other.excused, w.etcdExcused):
	default:
		c.breaks("a healthy master is not deposed", "%s judges %s to be %v in term %d", n.name, other.name, found, s.Revision)
	}
}
