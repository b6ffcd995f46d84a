package ring

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"trainmaster/master/committer"
	"trainmaster/master/rendezvous"
)

var errNotLeader = committer.ErrNotLeader

// Errors of calls.
var (
	ErrBad     = errors.New("invalid request of a member")
	ErrClosed  = errors.New("the ring is closed")
	ErrUnknown = errors.New("not a member of the ring: join first")

	ErrReplaced = errors.New("another process has joined with this id: give each member an id of its own")
	ErrOld      = errors.New("another generation is current")
	ErrFull     = errors.New("too many members")
)

// maxPresent is the maximum number of members with the parked ones.
const maxPresent = 2 * rendezvous.MaxMembers

// Join adds a member, or keeps it in the ring. It returns the id of the job.
func (r *Ring) Join(m rendezvous.Member) (job [16]byte, err error) {
	if err := m.Validate(); err != nil {
		return job, fmt.Errorf("%w: %w", ErrBad, err)
	}
	r.mu.Lock()
	if r.term != nil && r.state.Ring.Closed == "" && r.state.Find(m.Key()) >= 0 { // it is still there: nothing is to be decided
		r.state.Join(m, r.term.Clock().Now())
		defer r.mu.Unlock()
		return r.term.JobID(), nil
	}
	r.mu.Unlock()
	_, err = r.event(func(s *rendezvous.State, now time.Time) error {
		if s.Ring.Closed != "" {
			return fmt.Errorf("%w: %s", ErrClosed, s.Ring.Closed)
		}
		if s.Find(m.Key()) < 0 && len(s.Present) >= maxPresent {
			return fmt.Errorf("%w: expected at most %d", ErrFull, maxPresent)
		}
		//guard:replaced-member-stays-out
		if s.Replaced(m.Key()) {
			return ErrReplaced
		}
		isNew := s.Find(m.Key()) < 0
		if s.Join(m, now); isNew {
			r.broadcastLocked()
		}
		job = r.term.JobID()
		return nil
	})
	return job, err
}

// Outcome is how the work of a member goes.
type Outcome uint8

// The outcomes.
const (
	Failed Outcome = iota
	PeerFailed
	Completed
)

// Report notes an outcome of the current generation. It returns when the effect is stored: the generation has ended, or the member has
// completed it. A completion of a generation that has ended is refused with [ErrOld]: the next generation begins without it.
func (r *Ring) Report(ctx context.Context, k rendezvous.MemberKey, generation uint64, o Outcome, peer, reason string) error {
	_, err := r.event(func(s *rendezvous.State, now time.Time) error {
		if s.Ring.Closed != "" {
			return nil
		}
		if err := r.presentLocked(k); err != nil {
			return err
		}
		//guard:old-generation-refused
		if generation != s.Ring.Number {
			return fmt.Errorf("%w: expected %d, found %d", ErrOld, s.Ring.Number, generation)
		}
		switch {
		case s.Ring.Ended != "":
			return nil
		case !s.Ring.Has(k):
			return fmt.Errorf("%w: member %s is not in generation %d", ErrOld, k.ID, generation)
		case o == PeerFailed && !slices.ContainsFunc(s.Ring.Members, func(m rendezvous.Member) bool { return m.ID == peer && peer != k.ID }):
			return fmt.Errorf("%w: peer: expected another member of generation %d, found %q", ErrBad, generation, rendezvous.Clip(peer))
		case o == Completed:
			if !slices.Contains(s.Completed, k) {
				s.Completed = append(s.Completed, k)
			}
			return nil
		case slices.ContainsFunc(s.Failures, func(f rendezvous.Failure) bool { return f.By == k.ID && f.Peer == peer }):
			return nil
		}
		f := rendezvous.Failure{By: k.ID, Reason: rendezvous.Clip(reason), At: now}
		if o == PeerFailed {
			f.Peer = peer
		}
		s.Failures = append(s.Failures, f)
		return nil
	})
	if err != nil {
		return err
	}
	forgotten := false
	//guard:report-answered-when-stored
	if err := r.until(ctx, func(s rendezvous.State) bool {
		isOver := s.Ring.Number != generation || s.Ring.Ended != ""
		forgotten = isOver && s.Ring.Closed == ""
		return s.Ring.Closed != "" || isOver || o == Completed && slices.ContainsFunc(s.Ring.Members, func(m rendezvous.Member) bool { return m.Key() == k && m.Completed })
	}); err != nil {
		return err
	}
	//guard:completion-of-an-ended-generation
	if o == Completed && forgotten {
		return errEnded(generation)
	}
	return nil
}

func errEnded(generation uint64) error {
	return fmt.Errorf("%w: generation %d has ended: begin again in the next generation", ErrOld, generation)
}

// presentLocked returns an error if a member is not present.
func (r *Ring) presentLocked(k rendezvous.MemberKey) error {
	if r.state.Find(k) >= 0 {
		return nil
	}
	if slices.ContainsFunc(r.state.Present, func(p rendezvous.Presence) bool { return p.ID == k.ID && p.Gone == "" }) {
		return ErrReplaced
	}
	return ErrUnknown
}

// Leave removes a member. It returns when the next leader knows it. A member that is not present has left.
func (r *Ring) Leave(ctx context.Context, k rendezvous.MemberKey, reason string) error {
	why := "it left"
	if reason != "" {
		why += ": " + reason
	}
	if _, err := r.event(func(s *rendezvous.State, _ time.Time) error {
		s.Remove(func(p rendezvous.Presence) bool { return p.Key() == k }, rendezvous.Clip(why))
		return nil
	}); err != nil {
		return err
	}
	//guard:leave-answered-when-stored
	return r.until(ctx, func(s rendezvous.State) bool {
		return s.Ring.Closed != "" || !slices.ContainsFunc(s.Present, func(p rendezvous.Presence) bool { return p.Key() == k })
	})
}

// Ended notes that the process of a member has ended: its pod.
func (r *Ring) Ended(id, reason string) {
	_, _ = r.event(func(s *rendezvous.State, _ time.Time) error { // the next leader observes the pod too
		isIt := func(p rendezvous.Presence) bool { return p.ID == id && p.Gone == "" }
		if !slices.ContainsFunc(s.Present, isIt) {
			return ErrUnknown
		}
		//guard:pod-end-removes-member
		s.Remove(isIt, rendezvous.Clip("its pod ended: "+reason))
		return nil
	})
}

// Close ends the rendezvous. It returns when that is stored.
func (r *Ring) Close(ctx context.Context, reason string) error {
	if reason == "" {
		reason = "closed by request"
	}
	if _, err := r.event(func(s *rendezvous.State, _ time.Time) error {
		if s.Close == "" {
			s.Close = rendezvous.Clip(reason)
		}
		return nil
	}); err != nil {
		return err
	}
	return r.until(ctx, func(s rendezvous.State) bool { return s.Ring.Closed != "" })
}

// Watch is the stream of a member or an observer.
type Watch struct {
	ring   *Ring
	key    rendezvous.MemberKey
	closed bool // the end of the ring was sent
}

// Watch opens a stream. With the zero key, it observes.
func (r *Ring) Watch(k rendezvous.MemberKey) (*Watch, error) {
	w := &Watch{ring: r, key: k}
	_, err := r.event(func(s *rendezvous.State, now time.Time) error {
		if k.ID != "" && s.Ring.Closed == "" {
			if err := r.presentLocked(k); err != nil {
				return err
			}
			s.Connect(k, true, now)
		}
		r.open[w] = true
		return nil
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// End ends the stream.
func (w *Watch) End() {
	_, _ = w.ring.event(func(s *rendezvous.State, now time.Time) error {
		delete(w.ring.open, w)
		for other := range w.ring.open {
			if other.key == w.key {
				return nil
			}
		}
		if w.closed {
			s.Present = slices.DeleteFunc(s.Present, func(p rendezvous.Presence) bool { return p.Key() == w.key })
		}
		if w.key.ID != "" {
			s.Connect(w.key, false, now)
		}
		w.ring.broadcastLocked()
		return nil
	})
}

// Update is the state of the ring for a stream.
type Update struct {
	Phase   rendezvous.Phase // of the member
	Reason  string
	Ring    rendezvous.Ring
	Waiting []rendezvous.Member // not in the generation; only for observers
	Bounds  rendezvous.Config
}

// Horovod returns the address of the HTTP rendezvous of Horovod; "": there is none.
func (r *Ring) Horovod() string { return r.config.Horovod }

// Observe returns the state for an observer, and the channel that closes at the next change.
func (r *Ring) Observe() (u Update, changed <-chan struct{}, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.term == nil {
		return u, nil, errNotLeader
	}
	u = Update{Ring: r.state.Ring, Bounds: r.config.Rendezvous, Reason: r.waiting}
	for _, p := range r.state.Present {
		if p.Gone == "" && !(r.state.Ring.Active() && r.state.Ring.Has(p.Key())) {
			u.Waiting = append(u.Waiting, p.Member)
		}
	}
	return u, r.changed, nil
}

// Update returns the state, and the channel that closes at the next change.
func (w *Watch) Update() (u Update, changed <-chan struct{}, err error) {
	r := w.ring
	if w.key.ID == "" {
		return r.Observe()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.term == nil {
		return u, nil, errNotLeader
	}
	u = Update{Ring: r.state.Ring, Bounds: r.config.Rendezvous}
	u.Phase, u.Reason = r.state.Of(w.key, r.config.Rendezvous)
	w.closed = u.Phase == rendezvous.Closed
	switch u.Phase {
	case rendezvous.Unknown:
		return u, nil, r.presentLocked(w.key)
	case rendezvous.Waiting:
		if u.Reason = r.waiting; u.Reason == "" {
			u.Reason = "the next generation is formed within --ring-window"
		}
	}
	return u, r.changed, nil
}
