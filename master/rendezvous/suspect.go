package rendezvous

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// SuspectFor is the time in which a second generation must end for a member that most others cannot reach, before it is excluded. It is also the
	// time for which the member is excluded; the next time it is twice as long.
	SuspectFor = time.Minute
	// MaxExcluded is the longest exclusion.
	MaxExcluded = 16 * time.Minute
	// SuspectSilentAfter is SilentAfter for a suspect.
	SuspectSilentAfter = SilentAfter / 2
)

// Suspect is a member that more than half of the others of a generation could not reach. A term keeps it: the next leader counts again.
type Suspect struct {
	MemberKey
	At    time.Time     // when the last generation ended for it, or when it returned
	Until time.Time     // it is excluded before; zero: it is not
	For   time.Duration // of its last exclusion
	Why   string        // of the exclusion
}

// isForgotten reports whether the member is like any other one.
func (x Suspect) isForgotten(now time.Time) bool {
	since := x.At
	if x.Until.After(since) {
		since = x.Until
	}
	return now.Sub(since) > max(x.For, SuspectFor)
}

func (d *decider) suspect(k MemberKey) *Suspect {
	i := slices.IndexFunc(d.Suspects, func(x Suspect) bool { return x.MemberKey == k })
	if i < 0 {
		return nil
	}
	return &d.Suspects[i]
}

// waits reports whether a live member is excluded. It is not if too few others are live.
func (d *decider) waits(p Presence) bool {
	x := d.suspect(p.Key())
	//guard:excluded-member-fills-the-minimum
	if x == nil || !d.now.Before(x.Until) || d.others(p.Key()) < d.config.Min {
		return false
	}
	d.within(x.Until.Sub(d.now))
	return true
}

// others counts the live members that are not excluded, without k.
func (d *decider) others(k MemberKey) (n int) {
	for _, p := range d.live {
		if x := d.suspect(p.Key()); p.Key() != k && (x == nil || !d.now.Before(x.Until)) {
			n++
		}
	}
	return n
}

// unreachable returns the member that more than half of the others of the generation cannot reach, and their ids. Each member can be wrong: a member
// without a network reports one of the others.
func (d *decider) unreachable() (who *Member, by []string) {
	reports := map[string][]string{}
	for _, f := range d.state.Failures {
		if f.Peer != "" && !slices.Contains(reports[f.Peer], f.By) {
			reports[f.Peer] = append(reports[f.Peer], f.By)
		}
	}
	others := -1
	for _, m := range d.Ring.Members {
		if !m.Completed {
			others++
		}
	}
	for i, m := range d.Ring.Members {
		//guard:most-others-decide
		if list := reports[m.ID]; !m.Completed && 2*len(list) > others && len(list) >= len(by) { // of equals, the last rank
			who, by = &d.Ring.Members[i], list
		}
	}
	return who, by
}

// accuse notes that a generation ends for a member that others cannot reach. The second time, it excludes the member. It returns the reason of the end.
func (d *decider) accuse(m *Member, by []string, why string) string {
	text := strings.Join(by[:min(len(by), 3)], ", ")
	if n := len(by) - 3; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	x := d.suspect(m.Key())
	if x == nil {
		d.Suspects = append(d.Suspects, Suspect{MemberKey: m.Key(), At: d.now})
		return fmt.Sprintf("%s cannot reach member %s: %s", text, m.ID, why)
	}
	isSecond := d.now.Sub(x.At) <= SuspectFor
	x.At = d.now
	//guard:unreachable-member-excluded
	if isSecond && d.others(m.Key()) >= d.config.Min {
		x.For = min(max(2*x.For, SuspectFor), MaxExcluded)
		x.Until = d.now.Add(x.For)
		x.Why = Clip(fmt.Sprintf("%s cannot reach member %s, which is excluded for %v: %s", text, m.ID, x.For, why))
		return x.Why
	}
	return fmt.Sprintf("%s cannot reach member %s: %s", text, m.ID, why)
}

// returned notes that a suspect is in a generation again.
func (d *decider) returned(k MemberKey) {
	if x := d.suspect(k); x != nil && !x.Until.IsZero() {
		x.At, x.Until, x.Why = d.now, time.Time{}, ""
	}
}
