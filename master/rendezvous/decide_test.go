package rendezvous

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// clockZero is the time at which tests begin.
var clockZero = time.Unix(1_000_000, 0)

// bench drives Decide as master/ring does.
type bench struct {
	config Config
	state  State
	now    time.Time
	stored []byte
	last   Decision
	after  func() // called after each change; nil: nothing is
}

func newBench(low, high int, window time.Duration) *bench {
	b := &bench{config: Config{Min: low, Max: high, Window: window}, now: clockZero}
	b.state = Begin(Ring{}, b.now)
	return b
}

func member(id string) Member {
	name, instance, ok := strings.Cut(id, "#")
	if !ok {
		instance = "1"
	}
	return Member{ID: name, Instance: instance, Host: "10.0.0.1", Ports: []int{1000, 1001}, Processes: 1}
}

// decide decides until nothing changes.
func (b *bench) decide() {
	for {
		d := Decide(b.now, b.state, b.config)
		b.last = d
		next := d.Ring.Encode()
		changed := string(next) != string(b.stored) || len(d.Lost) > 0
		b.stored = next
		b.state.Adopt(d)
		if !changed {
			return
		}
		if b.after != nil {
			b.after()
		}
	}
}

func (b *bench) join(ids ...string) {
	for _, id := range ids {
		b.state.Join(member(id), b.now)
		b.state.Connect(member(id).Key(), true, b.now)
		b.decide()
	}
}

func (b *bench) cut(id string) {
	b.state.Connect(member(id).Key(), false, b.now)
	b.decide()
}

func (b *bench) fail(id, peer string) {
	b.state.Failures = append(b.state.Failures, Failure{By: id, Peer: peer, Reason: "exit status 1", At: b.now})
	b.decide()
}

// unreachable ends a generation with reports of members about another one.
func (b *bench) unreachable(peer string, by ...string) {
	for _, id := range by {
		b.fail(id, peer)
	}
	b.pass(Settle)
}

func (b *bench) leave(id string) {
	b.state.Remove(func(p Presence) bool { return p.ID == id }, "it left")
	b.decide()
}

func (b *bench) complete(ids ...string) {
	for _, id := range ids {
		b.state.Completed = append(b.state.Completed, member(id).Key())
		b.decide()
	}
}

// pass lets time pass, in which connected members join again.
func (b *bench) pass(d time.Duration) {
	for end := b.now.Add(d); b.now.Before(end); {
		step := 5 * time.Second // the period of joins
		if b.last.Rest > 0 {
			step = min(step, b.last.Rest)
		}
		b.now = b.now.Add(min(step, end.Sub(b.now)))
		for i := range b.state.Present {
			if p := &b.state.Present[i]; p.Connected {
				p.Heard = b.now
			}
		}
		b.decide()
	}
}

// next is another leader, which has only the stored ring.
func (b *bench) next(t *testing.T) {
	t.Helper()
	var r Ring
	if b.stored != nil {
		var err error
		if r, err = Decode(b.stored); err != nil {
			t.Fatal(err)
		}
	}
	b.state = Begin(r, b.now)
}

func (b *bench) reconnect(ids ...string) {
	for _, id := range ids {
		b.state.Join(member(id), b.now)
		b.state.Connect(member(id).Key(), true, b.now)
		b.decide()
	}
}

// String describes the ring in one line.
func (b *bench) String() string {
	var ids []string
	for _, m := range b.state.Ring.Members {
		id := m.ID
		if m.Completed {
			id += "+"
		}
		ids = append(ids, id)
	}
	text := fmt.Sprintf("%d [%s]", b.state.Ring.Number, strings.Join(ids, " "))
	if b.state.Ring.Ended != "" {
		text += " ended"
	}
	if b.state.Ring.Failed != "" {
		text += " failed=" + b.state.Ring.Failed
	}
	if b.state.Ring.Closed != "" {
		text += " closed"
	}
	return text
}

func TestDecisions(t *testing.T) {
	const window = 5 * time.Second
	tests := []struct {
		name      string
		low, high int
		do        func(t *testing.T, b *bench)
		want      string
	}{
		{"below the minimum, nothing is formed", 2, 4, func(_ *testing.T, b *bench) { b.join("a"); b.pass(time.Minute) }, "0 []"},
		{"the first generation waits for more members", 2, 4, func(_ *testing.T, b *bench) { b.join("a", "b"); b.pass(window - time.Second) }, "0 []"},
		{"it is formed after the window", 2, 4, func(_ *testing.T, b *bench) { b.join("a", "b"); b.pass(time.Second); b.join("c"); b.pass(window) }, "1 [a b c]"},
		{"it is formed immediately at the maximum", 2, 3, func(_ *testing.T, b *bench) { b.join("a", "b", "c") }, "1 [a b c]"},
		{"a surplus member is parked", 2, 3, func(_ *testing.T, b *bench) { b.join("a", "b", "c", "d"); b.pass(time.Minute) }, "1 [a b c]"},
		{"a parked member takes a free place", 2, 3, func(_ *testing.T, b *bench) { b.join("a", "b", "c", "d"); b.leave("b") }, "2 [a c d]"},
		{"survivors form the next generation immediately", 2, 4, func(_ *testing.T, b *bench) {
			b.join("a", "b", "c", "d")
			b.cut("b")
			b.fail("a", "")
		}, "2 [a c d]"},
		{"a lost connection without a report has a grace", 2, 4, func(_ *testing.T, b *bench) {
			b.join("a", "b", "c", "d")
			b.cut("b")
			b.pass(LostAfter - 100*time.Millisecond)
		}, "1 [a b c d]"},
		{"which ends", 2, 4, func(_ *testing.T, b *bench) { b.join("a", "b", "c", "d"); b.cut("b"); b.pass(LostAfter) }, "2 [a c d]"},
		{"a member that returns in time stays", 2, 4, func(_ *testing.T, b *bench) {
			b.join("a", "b", "c", "d")
			b.cut("b")
			b.pass(time.Second)
			b.reconnect("b")
			b.pass(time.Minute)
		}, "1 [a b c d]"},
		{"a silent member is lost", 2, 4, func(_ *testing.T, b *bench) {
			b.join("a", "b", "c", "d")
			b.now = b.now.Add(SilentAfter)
			for i := range b.state.Present {
				if b.state.Present[i].ID != "c" {
					b.state.Present[i].Heard = b.now
				}
			}
			b.decide()
		}, "2 [a b d]"},
		{"newcomers come in together", 2, 4, func(_ *testing.T, b *bench) {
			b.join("a", "b")
			b.pass(window)
			b.join("c")
			b.pass(window - time.Second)
			b.join("d")
		}, "2 [a b c d]"},
		{"a newcomer waits for the window", 2, 4, func(_ *testing.T, b *bench) {
			b.join("a", "b")
			b.pass(window)
			b.join("c")
			b.pass(window - 100*time.Millisecond)
		}, "1 [a b]"},
		{"and comes in then", 2, 4, func(_ *testing.T, b *bench) { b.join("a", "b"); b.pass(window); b.join("c"); b.pass(window) }, "2 [a b c]"},
		{"a failure restarts all members, after the settling", 2, 3, func(_ *testing.T, b *bench) { b.join("a", "b", "c"); b.fail("b", ""); b.pass(Settle) }, "2 [a b c] failed=b"},
		{"a loss that is the cause of a failure is found first", 2, 3, func(_ *testing.T, b *bench) {
			b.join("a", "b", "c")
			b.fail("b", "")
			b.pass(Settle / 2)
			b.cut("c")
		}, "2 [a b]"},
		{"a peer that cannot be reached but is connected stays", 2, 3, func(_ *testing.T, b *bench) { b.join("a", "b", "c"); b.fail("b", "c"); b.pass(LostAfter) }, "2 [a b c]"},
		{"after the time for the reports of others", 2, 3, func(_ *testing.T, b *bench) {
			b.join("a", "b", "c")
			b.fail("b", "c")
			b.pass(LostAfter - 100*time.Millisecond)
		}, "1 [a b c]"},
		{"a member that most others cannot reach stays once", 2, 4, func(_ *testing.T, b *bench) {
			b.join("a", "b", "c", "d")
			b.unreachable("d", "a", "c")
		}, "2 [a b c d]"},
		{"and is excluded the second time", 2, 4, func(_ *testing.T, b *bench) {
			b.join("a", "b", "c", "d")
			b.unreachable("d", "a", "c")
			b.pass(10 * time.Second)
			b.unreachable("d", "b", "c")
			b.pass(SuspectFor - time.Second)
		}, "3 [a b c]"},
		{"although it reports another one first", 2, 4, func(_ *testing.T, b *bench) {
			b.join("a", "b", "c", "d")
			for range 2 {
				b.fail("d", "a")
				b.pass(time.Second)
				b.unreachable("d", "a", "b", "c")
			}
		}, "3 [a b c]"},
		{"not if the second time is more than a minute later", 2, 4, func(_ *testing.T, b *bench) {
			b.join("a", "b", "c", "d")
			b.unreachable("d", "a", "c")
			b.pass(SuspectFor)
			b.unreachable("d", "a", "c")
		}, "3 [a b c d]"},
		{"not by a minority", 2, 4, func(_ *testing.T, b *bench) {
			b.join("a", "b", "c", "d")
			for range 3 {
				b.fail("d", "a")
				b.pass(LostAfter)
			}
		}, "4 [a b c d]"},
		{"of two members that cannot reach each other, the last is excluded", 1, 2, func(_ *testing.T, b *bench) {
			b.join("a", "b")
			for range 2 {
				b.fail("b", "a")
				b.unreachable("b", "a")
			}
		}, "3 [a]"},
		{"not if too few others are left", 3, 3, func(_ *testing.T, b *bench) {
			b.join("a", "b", "c")
			for range 3 {
				b.unreachable("c", "a", "b")
			}
		}, "4 [a b c]"},
		{"an excluded member takes part if too few others are left", 3, 4, func(_ *testing.T, b *bench) {
			b.join("a", "b", "c", "d")
			b.unreachable("d", "a", "b", "c")
			b.unreachable("d", "a", "b", "c")
			b.leave("c")
			b.join("e")
		}, "5 [a b d e]"},
		{"a parked member takes its place", 2, 3, func(_ *testing.T, b *bench) {
			b.join("a", "b", "c", "d")
			b.unreachable("b", "a", "c")
			b.unreachable("b", "a", "c")
		}, "3 [a c d]"},
		{"it returns after a time", 2, 4, func(_ *testing.T, b *bench) {
			b.join("a", "b", "c", "d")
			b.unreachable("d", "a", "b", "c")
			b.unreachable("d", "a", "b", "c")
			b.pass(SuspectFor)
		}, "4 [a b c d]"},
		{"and is excluded for longer then", 2, 4, func(_ *testing.T, b *bench) {
			b.join("a", "b", "c", "d")
			b.unreachable("d", "a", "b", "c")
			b.unreachable("d", "a", "b", "c")
			b.pass(SuspectFor)
			b.unreachable("d", "a", "b", "c")
			b.pass(2*SuspectFor - time.Second)
		}, "5 [a b c]"},
		{"at most twice as long", 2, 4, func(_ *testing.T, b *bench) {
			b.join("a", "b", "c", "d")
			b.unreachable("d", "a", "b", "c")
			b.unreachable("d", "a", "b", "c")
			b.pass(SuspectFor)
			b.unreachable("d", "a", "b", "c")
			b.pass(2 * SuspectFor)
		}, "6 [a b c d]"},
		{"another start of it may join", 2, 4, func(_ *testing.T, b *bench) {
			b.join("a", "b", "c", "d")
			b.unreachable("d", "a", "b", "c")
			b.unreachable("d", "a", "b", "c")
			b.join("d#2")
		}, "4 [a b c d]"},
		{"a member that others cannot reach is lost earlier if it is silent", 2, 4, func(_ *testing.T, b *bench) {
			b.join("a", "b", "c", "d")
			b.unreachable("d", "a", "b", "c")
			b.now = b.now.Add(SuspectSilentAfter)
			for i := range b.state.Present {
				if b.state.Present[i].ID != "d" {
					b.state.Present[i].Heard = b.now
				}
			}
			b.decide()
		}, "3 [a b c]"},
		{"below the minimum, the generation ends", 3, 4, func(_ *testing.T, b *bench) { b.join("a", "b", "c"); b.pass(window); b.leave("a"); b.pass(time.Minute) }, "1 [a b c] ended"},
		{"the next generation is formed when a member comes", 3, 4, func(_ *testing.T, b *bench) {
			b.join("a", "b", "c")
			b.pass(window)
			b.leave("a")
			b.pass(time.Minute)
			b.join("e")
		}, "2 [b c e]"},
		{"another start of a member replaces it", 2, 3, func(_ *testing.T, b *bench) { b.join("a", "b", "c"); b.join("b#2") }, "2 [a c b]"},
		{"a member that leaves and joins again starts over", 2, 3, func(_ *testing.T, b *bench) {
			b.join("a", "b", "c")
			b.state.Remove(func(p Presence) bool { return p.ID == "b" }, "it left")
			b.reconnect("b")
		}, "2 [a b c]"},
		{"all completed: closed", 2, 3, func(_ *testing.T, b *bench) { b.join("a", "b", "c"); b.complete("a", "b", "c") }, "1 [a+ b+ c+] closed"},
		{"a completed member may go", 2, 3, func(_ *testing.T, b *bench) {
			b.join("a", "b", "c")
			b.complete("a")
			b.leave("a")
			b.pass(time.Minute)
		}, "1 [a+ b c]"},
		{"no newcomer comes in when members have completed", 2, 4, func(_ *testing.T, b *bench) {
			b.join("a", "b", "c")
			b.pass(window)
			b.complete("a")
			b.join("d")
			b.pass(time.Minute)
		}, "1 [a+ b c]"},
		{"a failure after a completion restarts the completed member too", 2, 3, func(_ *testing.T, b *bench) {
			b.join("a", "b", "c")
			b.complete("a")
			b.fail("b", "")
			b.pass(Settle)
		}, "2 [a b c] failed=b"},
		{"a request closes the ring", 2, 3, func(_ *testing.T, b *bench) { b.join("a", "b", "c"); b.state.Close = "by request"; b.decide() }, "1 [a b c] closed"},
		{"a closed ring stays closed", 2, 3, func(_ *testing.T, b *bench) {
			b.join("a", "b", "c")
			b.state.Close = "by request"
			b.decide()
			b.join("d")
			b.leave("a")
			b.pass(time.Minute)
		}, "1 [a b c] closed"},
		{"also at the next leader", 2, 3, func(t *testing.T, b *bench) {
			b.join("a", "b", "c")
			b.state.Close = "by request"
			b.decide()
			b.next(t)
			b.reconnect("a", "b")
			b.pass(time.Minute)
		}, "1 [a b c] closed"},
		{"the next leader continues the generation", 2, 4, func(t *testing.T, b *bench) {
			b.join("a", "b", "c", "d")
			b.next(t)
			b.pass(5 * time.Second)
			b.reconnect("d", "c", "b", "a")
			b.pass(time.Minute)
		}, "1 [a b c d]"},
		{"without a member that does not return", 2, 4, func(t *testing.T, b *bench) {
			b.join("a", "b", "c", "d")
			b.next(t)
			b.reconnect("d", "c", "b")
			b.pass(ReturnWithin)
		}, "2 [b c d]"},
		{"and does not forget the completed members", 2, 3, func(t *testing.T, b *bench) {
			b.join("a", "b", "c")
			b.complete("a", "b")
			b.next(t)
			b.reconnect("c")
			b.complete("c")
		}, "1 [a+ b+ c+] closed"},
		{"and does not revive a generation that has ended", 3, 3, func(t *testing.T, b *bench) {
			b.join("a", "b", "c")
			b.leave("a")
			b.next(t)
			b.reconnect("a", "b", "c")
		}, "2 [a b c]"},
		{"survivors wait for a member that connects again", 2, 4, func(_ *testing.T, b *bench) {
			b.join("a", "b", "c", "d")
			b.cut("c")
			b.leave("a")
		}, "1 [a b c d] ended"},
		{"until it has", 2, 4, func(_ *testing.T, b *bench) {
			b.join("a", "b", "c", "d")
			b.cut("c")
			b.leave("a")
			b.reconnect("c")
		}, "2 [b c d]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(tt.low, tt.high, window)
			tt.do(t, b)
			if got := b.String(); got != tt.want {
				t.Errorf("found %s (%s; waiting: %s), expected %s", got, b.last.Reason, b.last.Waiting, tt.want)
			}
		})
	}
}

// history is a random history of members and leaders.
type history struct {
	*bench
	rng    *rand.Rand
	alive  map[string]int // instance of each running member
	formed map[uint64]string
	before Generation
	number int
	broken string // the first invariant that did not hold
}

func (h *history) ids() []string {
	var list []string
	for id := range h.alive {
		list = append(list, id)
	}
	slices.Sort(list)
	return list
}

func (h *history) key(id string) string { return fmt.Sprintf("%s#%d", id, h.alive[id]) }

// step makes one random event, and returns its description.
func (h *history) step(t *testing.T) string {
	ids := h.ids()
	some := ""
	if len(ids) > 0 {
		some = ids[h.rng.IntN(len(ids))]
	}
	kind := h.rng.IntN(12)
	switch {
	case kind < 3 && len(ids) < 8:
		id := string(rune('a' + h.rng.IntN(10)))
		h.number++
		h.alive[id] = h.number
		h.join(h.key(id))
		return "join " + h.key(id)
	case kind == 3 && some != "":
		h.cut(h.key(some))
		delete(h.alive, some)
		return "crash " + some
	case kind == 4 && some != "":
		h.leave(some)
		delete(h.alive, some)
		return "leave " + some
	case kind == 5 && some != "":
		h.cut(h.key(some))
		return "cut " + some
	case kind == 6:
		for _, id := range ids {
			h.reconnect(h.key(id))
		}
		return "reconnect all"
	case kind == 7 && some != "" && h.state.Ring.Active() && h.state.Ring.Has(member(h.key(some)).Key()):
		peer := ""
		if other := h.state.Ring.Members[h.rng.IntN(len(h.state.Ring.Members))]; other.ID != some {
			peer = other.ID
		}
		h.fail(some, peer)
		return "fail " + some + " for " + peer
	case kind == 8:
		h.next(t)
		h.decide()
		return "next leader"
	case kind == 9 && some != "" && h.rng.IntN(8) == 0 && h.state.Ring.Active():
		h.complete(h.key(some))
		return "complete " + some
	}
	d := time.Duration(h.rng.IntN(6000)) * time.Millisecond
	h.pass(d)
	return "pass " + d.String()
}

// check returns the invariant that does not hold; "": all do.
func (h *history) check() string {
	g := h.state.Ring.Generation
	if g.Number < h.before.Number {
		return fmt.Sprintf("the number falls from %d to %d", h.before.Number, g.Number)
	}
	if g.Number == 0 {
		return ""
	}
	var keys []string
	for _, m := range g.Members {
		keys = append(keys, m.ID+"#"+m.Instance)
	}
	members := strings.Join(keys, " ")
	if was, ok := h.formed[g.Number]; ok && was != members {
		return fmt.Sprintf("generation %d had the members %s, and has %s", g.Number, was, members)
	}
	h.formed[g.Number] = members
	if n := len(g.Members); n < h.config.Min || n > h.config.Max {
		return fmt.Sprintf("generation %d has %d members, expected %d to %d", g.Number, n, h.config.Min, h.config.Max)
	}
	if sorted := slices.Compact(slices.Sorted(slices.Values(keys))); len(sorted) != len(keys) {
		return "a member is listed twice: " + members
	}
	if g.Number != h.before.Number {
		var kept []MemberKey
		for _, m := range h.before.Members {
			if g.Has(m.Key()) {
				kept = append(kept, m.Key())
			}
		}
		var now []MemberKey
		for _, m := range g.Members {
			if h.before.Has(m.Key()) {
				now = append(now, m.Key())
			}
		}
		if !slices.Equal(kept, now) {
			return fmt.Sprintf("members that stay change their order: %v, then %v", kept, now)
		}
	}
	h.before = g
	if _, err := Decode(h.stored); err != nil {
		return err.Error()
	}
	return ""
}

func TestRandomHistories(t *testing.T) {
	count := 3000
	if testing.Short() {
		count = 300
	}
	formed := 0
	for seed := range uint64(count) {
		rng := rand.New(rand.NewPCG(seed, 7))
		low := 1 + rng.IntN(4)
		h := &history{bench: newBench(low, low+rng.IntN(4), time.Duration(rng.IntN(3))*time.Second), rng: rng, alive: map[string]int{}, formed: map[uint64]string{}}
		h.after = func() { h.broken = cmp.Or(h.broken, h.check()) }
		var events []string
		for range 60 {
			events = append(events, h.step(t))
			if h.broken != "" {
				t.Fatalf("seed %d: %s\n%s", seed, h.broken, strings.Join(events, "\n"))
			}
		}
		// Without further faults, enough live members form a ring.
		if h.state.Ring.Closed != "" {
			continue
		}
		for range 3 {
			for _, id := range h.ids() {
				h.reconnect(h.key(id))
			}
			h.pass(20 * time.Second)
		}
		active := h.state.Ring.Active()
		if len(h.alive) >= low && !active {
			t.Fatalf("seed %d: %d members are live, expected a generation, found %v (waiting: %s)\n%s", seed, len(h.alive), h, h.last.Waiting, strings.Join(events, "\n"))
		}
		for _, m := range h.state.Ring.Members {
			if active && !m.Completed && h.alive[m.ID] == 0 {
				t.Fatalf("seed %d: member %s is in generation %v, and does not run", seed, m.ID, h)
			}
		}
		formed += len(h.formed)
	}
	if formed < count {
		t.Errorf("the histories formed %d generations, expected at least %d", formed, count)
	}
}

func TestCoordinatorChangesWithTheGeneration(t *testing.T) {
	g := Generation{Number: 1, Members: []Member{{Host: "fd00::1", Ports: []int{1000, 1001}}}}
	if got := g.Coordinator(); got != "[fd00::1]:1001" {
		t.Errorf("found %s", got)
	}
	g.Number, g.Members[0].Host = 2, "10.0.0.1"
	if got := g.Coordinator(); got != "10.0.0.1:1000" {
		t.Errorf("found %s", got)
	}
}

func TestDecodeRefusesOtherBytes(t *testing.T) {
	r := Ring{Generation: Generation{Number: 3, Members: []Member{member("a"), member("b")}, Reason: "joined: a, b"}}
	good := string(r.Encode())
	if got, err := Decode([]byte(good)); err != nil || got.String() != r.String() {
		t.Fatalf("found %v, %v", got, err)
	}
	for _, bad := range []string{
		"", "{}", good + " ", strings.Replace(good, `"format":1`, `"format":2`, 1), strings.Replace(good, `"id":"b"`, `"id":"a"`, 1),
		strings.Replace(good, `"number":3`, `"number":0`, 1), strings.Replace(good, `1000`, `0`, 1), strings.Replace(good, `"processes":1`, `"processes":0`, 1),
	} {
		if _, err := Decode([]byte(bad)); err == nil {
			t.Errorf("accepted %s", bad)
		}
	}
}

// F353: the term in which a member was lost does not matter.
func TestMemberThatWasRemovedDoesNotReplaceAnotherInstance(t *testing.T) {
	for name, removed := range map[string]func(b *bench){
		"replaced":    func(b *bench) { b.join("b#2") },
		"lost before": func(b *bench) { b.cut("b"); b.pass(LostAfter); b.join("b#2") },
		"lost, and its replacement is in the ring of the next leader": func(b *bench) { b.cut("b"); b.pass(LostAfter); b.join("b#2"); b.next(t) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(2, 3, 0)
			b.join("a", "b", "c")
			removed(b)
			if !b.state.Replaced(member("b").Key()) {
				t.Error("expected the first instance of b to be refused")
			}
			for _, other := range []string{"b#2", "b#3", "d"} {
				if b.state.Replaced(member(other).Key()) {
					t.Errorf("expected %s to be admitted", other)
				}
			}
			b.leave("b")
			if b.state.Replaced(member("b").Key()) {
				t.Error("expected the first instance of b to be admitted when no other instance is present")
			}
		})
	}
}

// F354: a host that gives no coordinator host:port would end all members.
func TestHostOfAMemberGivesACoordinator(t *testing.T) {
	for host, ok := range map[string]bool{
		"10.0.0.1": true, "node-1.example": true, "::1": true, "fe80::1%eth0": true,
		"[::1]": false, "10.0.0.1:80": false, "a]": false, "node:80": false, "": false, "a b": false,
	} {
		m := member("a")
		m.Host = host
		if err := m.Validate(); (err == nil) != ok {
			t.Errorf("%s: expected accepted %v, found %v", host, ok, err)
		}
	}
}

func (r Ring) String() string { return string(r.Encode()) }

func TestLargestRingFitsAValue(t *testing.T) {
	r := Ring{Generation: Generation{Number: 1 << 60, Reason: strings.Repeat("r", maxReason), Ended: strings.Repeat("e", maxReason)}}
	for i := range MaxMembers {
		m := Member{ID: fmt.Sprintf("%0200d", i), Instance: strings.Repeat("i", maxInstance), Host: strings.Repeat("h", maxHost), Processes: MaxProcesses}
		for p := range MaxPorts {
			m.Ports = append(m.Ports, 60000+p)
		}
		r.Members = append(r.Members, m)
	}
	for i := range 2 * maxFormer {
		r.remember(MemberKey{fmt.Sprintf("%0200d", i), strings.Repeat("i", maxInstance)})
	}
	if n := len(r.Encode()); n > maxBytes {
		t.Errorf("%d bytes, expected at most %d", n, maxBytes)
	}
	if _, err := Decode(r.Encode()); err != nil {
		t.Error(err)
	}
	m := r.Members[0]
	if m.ID = strings.Repeat("<", maxID); m.Validate() == nil { // six bytes of JSON each
		t.Error("accepted an id that JSON escapes")
	}
}
