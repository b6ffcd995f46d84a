package rendezvous

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Config has the settings of a ring.
type Config struct {
	Min    int           // members of a generation
	Max    int           //
	Window time.Duration // for which a generation waits for more members
}

// Validate names the first field with a value that makes no sense.
func (c Config) Validate() error {
	switch {
	case c.Min < 1 || c.Max > MaxMembers || c.Min > c.Max:
		return fmt.Errorf("ring: expected N or MIN:MAX with numbers from 1 to %d, found %d:%d", MaxMembers, c.Min, c.Max)
	case c.Window < 0:
		return fmt.Errorf("ring-window: expected 0 or more, found %v", c.Window)
	}
	return nil
}

const (
	// LostAfter is the time after the end of the stream of a member.
	LostAfter = 2 * time.Second
	// SilentAfter is the time after the last join of a member.
	SilentAfter = 15 * time.Second
	// ReturnWithin is the time in which a member opens its stream, after it joined or after the begin of a term.
	ReturnWithin = 10 * time.Second
	// Settle is the time after the first report of a failure, in which its cause is found: the end of a process breaks the connections
	// of the others.
	Settle = 250 * time.Millisecond
)

// Decision is the result of [Decide].
type Decision struct {
	Ring     Ring      // to store, if it differs from the ring of the state
	Lost     []Lost    // members to remove from the state
	Suspects []Suspect // to keep in the state

	Rest   time.Duration // until the next decision by time; negative: none is due by time
	Reason string        // of the change

	Waiting string // why no generation is formed; "": one is active, or the ring is closed
}

// Lost is a member that is removed.
type Lost struct {
	MemberKey
	Reason string
	gone   bool // it was marked
}

// lost returns why a member is removed; "": it is not before the time rest has passed.
func (p Presence) lost(now time.Time, failing, isSuspect bool) (reason string, rest time.Duration) {
	after := func(since time.Time, limit time.Duration, why string) (string, time.Duration) {
		if rest := limit - now.Sub(since); rest > 0 {
			return "", rest
		}
		return why, 0
	}
	switch {
	case p.Gone != "":
		return p.Gone, 0
	//guard:silent-suspect-lost
	case p.Connected && isSuspect:
		return after(p.Heard, SuspectSilentAfter, fmt.Sprintf("others cannot reach it, and no message for %v", SuspectSilentAfter))
	case p.Connected:
		//guard:silent-member-lost
		return after(p.Heard, SilentAfter, fmt.Sprintf("no message for %v", SilentAfter))
	//guard:reported-failure-skips-grace
	case p.Watched && failing:
		return "its connection has ended", 0
	case p.Watched:
		return after(p.Since, LostAfter, "its connection has ended")
	}
	//guard:member-returns-to-next-leader
	return after(p.Since, ReturnWithin, fmt.Sprintf("no connection within %v", ReturnWithin))
}

type decider struct {
	Decision
	state  State
	config Config
	now    time.Time
	live   []Presence
}

// Decide decides which generation is current. The caller must store Decision.Ring, if it has changed, before it applies the decision.
func Decide(now time.Time, s State, c Config) Decision {
	d := &decider{state: s, config: c, now: now}
	d.Ring, d.Rest = s.Ring, -1
	d.Ring.Members = slices.Clone(s.Ring.Members)
	switch {
	//guard:closed-ring-stays-closed
	case s.Ring.Closed != "":
		return d.Decision
	case s.Close != "":
		d.close(s.Close)
		return d.Decision
	}
	for _, x := range s.Suspects {
		if !x.isForgotten(now) {
			d.Suspects = append(d.Suspects, x)
		}
	}
	failing := s.Ring.Active() && len(s.Failures) > 0
	for _, p := range s.Present {
		reason, rest := p.lost(now, failing && s.Ring.Has(p.Key()), d.suspect(p.Key()) != nil)
		if reason != "" {
			d.Lost = append(d.Lost, Lost{p.Key(), reason, p.Gone != ""})
			//guard:former-members-stored
			d.Ring.remember(p.Key())
			continue
		}
		d.live = append(d.live, p)
		d.within(rest)
	}
	if s.Ring.Active() {
		d.run()
	} else {
		d.form("")
	}
	return d.Decision
}

// within asks for another decision after rest.
func (d *decider) within(rest time.Duration) {
	if d.Rest < 0 || rest < d.Rest {
		d.Rest = rest
	}
}

func (d *decider) close(reason string) {
	d.Ring.Closed, d.Reason, d.Rest = reason, reason, -1
}

func (d *decider) isLive(k MemberKey) (Presence, bool) {
	i := slices.IndexFunc(d.live, func(p Presence) bool { return p.Key() == k })
	if i < 0 {
		return Presence{}, false
	}
	return d.live[i], true
}

// run decides whether the active generation ends.
func (d *decider) run() {
	g := &d.Ring.Generation
	open := 0
	for i := range g.Members {
		m := &g.Members[i]
		if slices.Contains(d.state.Completed, m.Key()) && !m.Completed {
			m.Completed, d.Reason = true, fmt.Sprintf("member %s completed", m.ID)
		}
		if !m.Completed {
			open++
		}
	}
	//guard:ring-closes-when-all-completed
	if open == 0 {
		d.close("all members have completed")
		return
	}
	if why, failed := d.broken(); why != "" {
		d.end(why, failed)
		return
	}
	d.grow()
}

// broken returns why the active generation cannot continue; "": it can. failed is the member whose own failure is the reason.
func (d *decider) broken() (why, failed string) {
	for _, m := range d.Ring.Members {
		//guard:completed-member-may-go
		if m.Completed {
			continue
		}
		why := ""
		if i := slices.IndexFunc(d.Lost, func(l Lost) bool { return l.MemberKey == m.Key() }); i >= 0 {
			why = d.Lost[i].Reason
		} else if _, ok := d.isLive(m.Key()); !ok {
			why = "it is not present"
		}
		if why == "" {
			continue
		}
		return fmt.Sprintf("member %s: %s", m.ID, why), ""
	}
	if len(d.state.Failures) == 0 {
		return "", ""
	}
	f := d.state.Failures[0]
	settle := Settle
	peer, by := d.unreachable()
	//guard:reports-of-others-awaited
	if f.Peer != "" && peer == nil {
		settle = LostAfter
	}
	//guard:failure-settles
	if rest := settle - d.now.Sub(f.At); rest > 0 {
		d.within(rest)
		return "", ""
	}
	switch {
	case f.Peer == "":
		return Clip(fmt.Sprintf("member %s failed: %s", f.By, f.Reason)), f.By
	case peer != nil:
		return Clip(d.accuse(peer, by, f.Reason)), ""
	}
	return Clip(fmt.Sprintf("member %s cannot reach member %s: %s", f.By, f.Peer, f.Reason)), ""
}

// end ends the active generation, and forms the next generation if that is possible immediately.
func (d *decider) end(why, failed string) {
	d.Ring.Ended, d.Ring.Failed = why, failed
	d.Reason = why
	d.form(why)
}

// survivors returns the members of the last generation that are live, in rank order.
func (d *decider) survivors() (list []Presence, missing string) {
	for _, m := range d.Ring.Members {
		p, ok := d.isLive(m.Key())
		if !ok || !p.Connected && !p.Watched && !p.Stored { // it left and has joined again
			continue
		}
		if d.waits(p) {
			continue
		}
		list = append(list, p)
		if !p.Connected {
			missing = p.ID
		}
	}
	return list, missing
}

// newcomers returns the connected members that are not in the last generation, in the order in which they joined.
func (d *decider) newcomers() (list []Presence) {
	for _, p := range d.live {
		if p.Connected && !d.Ring.Has(p.Key()) && !d.waits(p) {
			list = append(list, p)
		}
	}
	return list
}

// form forms a generation when there is none.
func (d *decider) form(why string) {
	old, missing := d.survivors()
	all := append(slices.Clone(old), d.newcomers()...)
	c := d.config
	last := len(d.Ring.Members)
	switch {
	case missing != "":
		d.Waiting = fmt.Sprintf("member %s is to connect again", missing)
	//guard:never-below-min
	case len(all) < c.Min:
		d.Waiting = fmt.Sprintf("expected at least %d members, found %d", c.Min, len(all))
	case len(all) >= c.Max, last > 0 && len(old) >= c.Min, last > 0 && len(all) >= last:
		d.next(all, why)
	default:
		byTime := slices.SortedFunc(slices.Values(all), func(a, b Presence) int { return a.Since.Compare(b.Since) })
		d.window(byTime[min(c.Min, len(all))-1].Since, all, why)
	}
}

// window forms a generation when the window since a time has passed.
func (d *decider) window(since time.Time, all []Presence, why string) {
	if rest := d.config.Window - d.now.Sub(since); rest > 0 {
		d.Waiting = fmt.Sprintf("%d members; waiting up to %v for more, at most %d", len(all), d.config.Window, d.config.Max)
		d.within(rest)
		return
	}
	d.next(all, why)
}

// grow adds newcomers to an active generation with room.
func (d *decider) grow() {
	old, missing := d.survivors()
	added := d.newcomers()
	switch {
	//guard:no-growth-after-completion
	case len(added) == 0, len(d.Ring.Members) >= d.config.Max, d.Ring.completing(), missing != "":
		return
	}
	first := slices.MinFunc(added, func(a, b Presence) int { return a.Since.Compare(b.Since) }).Since
	all := append(old, added...)
	if len(all) >= d.config.Max {
		d.next(all, "")
		return
	}
	d.window(first, all, "")
	d.Waiting = ""
}

// next makes the next generation of the first members of a list.
func (d *decider) next(all []Presence, why string) {
	//guard:never-above-max
	all = all[:min(len(all), d.config.Max)]
	g := Generation{Number: d.Ring.Number + 1, Failed: d.Ring.Failed}
	var joined []string
	for _, p := range all {
		if !d.Ring.Has(p.Key()) {
			joined = append(joined, p.ID)
		}
		p.Completed = false
		g.Members = append(g.Members, p.Member)
		d.returned(p.Key())
	}
	if why == "" {
		why = d.Ring.Ended
	}
	if d.Ring.Active() {
		g.Failed = ""
	}
	g.Reason = why
	if len(joined) > 0 {
		text := "joined: " + strings.Join(joined[:min(len(joined), 8)], ", ")
		if n := len(joined) - 8; n > 0 {
			text += fmt.Sprintf(" and %d more", n)
		}
		if g.Reason != "" {
			text = g.Reason + "; " + text
		}
		g.Reason = text
	}
	g.Reason = Clip(g.Reason)
	d.Ring.Generation, d.Reason, d.Waiting = g, g.Reason, ""
}
