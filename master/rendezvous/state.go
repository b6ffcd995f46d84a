package rendezvous

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"trainmaster/internal/jsonstate"
	"trainmaster/taskqueue"
)

// Key holds the encoded [Ring] of a job.
const Key = taskqueue.RingKey

const (
	// Format is the format of an encoded ring.
	Format = 1
	// MaxMembers is the maximum number of members: a generation is one value of etcd, which takes 1.5 MiB.
	MaxMembers = 1000
	// MaxPorts is the maximum number of ports of a member.
	MaxPorts = 16
	// MaxProcesses is the maximum number of processes of a member.
	MaxProcesses = 1024

	maxFormer   = 256
	maxID       = 200
	maxInstance = 64
	maxHost     = 253
	maxReason   = 256
	maxBytes    = 1200 << 10
)

// Errors of [Decode].
var (
	ErrNewer   = errors.New("ring of a newer format")
	ErrDamaged = errors.New("damaged ring")
)

// Member is a process that takes part.
type Member struct {
	ID        string `json:"id"`
	Instance  string `json:"instance"` // random text of its start
	Host      string `json:"host"`     // at which other members reach it
	Ports     []int  `json:"ports"`
	Processes int    `json:"processes"` // of the training program
	Completed bool   `json:"completed,omitempty"`
}

// MemberKey identifies a start of a member.
type MemberKey struct {
	ID       string `json:"id"`
	Instance string `json:"instance"`
}

// Key returns the identity of the member.
func (m Member) Key() MemberKey { return MemberKey{m.ID, m.Instance} }

// Validate returns an error with the first field that has no valid value.
func (m Member) Validate() error {
	switch {
	case !isName(m.ID, maxID):
		return fmt.Errorf("id: expected 1 to %d characters of ASCII without spaces, quotes, slashes, < > and &, found %q", maxID, Clip(m.ID))
	case !isName(m.Instance, maxInstance):
		return fmt.Errorf("instance: expected 1 to %d characters of ASCII without spaces, quotes, slashes, < > and &, found %q", maxInstance, Clip(m.Instance))
	case CheckHost(m.Host) != nil:
		return fmt.Errorf("host: %w, found %q", CheckHost(m.Host), Clip(m.Host))
	case len(m.Ports) == 0 || len(m.Ports) > MaxPorts:
		return fmt.Errorf("ports: expected 1 to %d, found %d", MaxPorts, len(m.Ports))
	case m.Processes < 1 || m.Processes > MaxProcesses:
		return fmt.Errorf("processes: expected 1 to %d, found %d", MaxProcesses, m.Processes)
	}
	for _, p := range m.Ports {
		if p < 1 || p > 65535 {
			return fmt.Errorf("ports: expected 1 to 65535, found %d", p)
		}
	}
	return nil
}

// CheckHost returns an error if text is not the address of a member: a host that a port can follow.
func CheckHost(text string) error {
	if !isName(text, maxHost) {
		return fmt.Errorf("expected an address or a name of at most %d characters", maxHost)
	}
	//guard:host-of-a-member
	if strings.ContainsAny(text, "[]:") {
		if _, err := netip.ParseAddr(text); err != nil {
			return errors.New("expected an address or a name without a port and brackets, such as 10.0.0.1 or fd00::1")
		}
	}
	return nil
}

// isName accepts what JSON does not escape, so that all members fit a value of etcd.
func isName(s string, most int) bool {
	//guard:names-fit-a-value
	return s != "" && len(s) <= most && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`/"\<>&`, r) })
}

// Clip returns text for people in valid UTF-8 of limited size.
func Clip(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) > maxReason {
		s = strings.ToValidUTF8(s[:maxReason-3], "") + "..."
	}
	return s
}

// Generation is one membership.
type Generation struct {
	Number  uint64   `json:"number,omitempty"`  // from 1; 0: there was none
	Members []Member `json:"members,omitempty"` // in rank order
	Reason  string   `json:"reason,omitempty"`  // why it was formed
	Failed  string   `json:"failed,omitempty"`  // member whose own failure was the reason
	Ended   string   `json:"ended,omitempty"`   // why it has ended without a next one; "": it has not
}

// Active reports whether members run the generation.
func (g Generation) Active() bool { return g.Number > 0 && g.Ended == "" }

// Has reports whether a member is in the generation.
func (g Generation) Has(k MemberKey) bool { return g.index(k) >= 0 }

func (g Generation) index(k MemberKey) int {
	return slices.IndexFunc(g.Members, func(m Member) bool { return m.Key() == k })
}

// Coordinator returns host:port of the first member; "": there is none.
func (g Generation) Coordinator() string {
	if len(g.Members) == 0 || len(g.Members[0].Ports) == 0 {
		return ""
	}
	m := g.Members[0]
	host := m.Host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":" + strconv.Itoa(m.Ports[g.Number%uint64(len(m.Ports))])
}

// Ring is what a leader must know. The zero value is the ring of a job that has formed none.
type Ring struct {
	Generation
	Closed string `json:"closed,omitempty"` // why no generation follows; "": it is open
	// Former are the members that were removed last, at most maxFormer. They take no place from another instance.
	Former []MemberKey `json:"former,omitempty"`
}

// remember adds a member that is removed to Former.
func (r *Ring) remember(k MemberKey) {
	r.Former = append(slices.DeleteFunc(slices.Clone(r.Former), func(f MemberKey) bool { return f == k }), k)
	r.Former = r.Former[max(0, len(r.Former)-maxFormer):]
}

var codec = jsonstate.Codec[Ring]{Format: Format, MaxBytes: maxBytes, Newer: ErrNewer, Damaged: ErrDamaged}

// Encode returns the ring as JSON. Equal rings have equal bytes.
func (r Ring) Encode() []byte { return codec.Encode(r) }

// Decode reads an encoded ring. It accepts only bytes that [Ring.Encode] writes.
func Decode(b []byte) (Ring, error) {
	r, err := codec.Decode(b)
	if err != nil {
		return Ring{}, err
	}
	return r, r.check()
}

func (r Ring) check() error {
	if n := len(r.Members); n > MaxMembers || (n == 0) != (r.Number == 0) {
		return fmt.Errorf("%w: generation %d: expected 1 to %d members, found %d", ErrDamaged, r.Number, MaxMembers, n)
	}
	seen := map[string]bool{}
	for _, m := range r.Members {
		if err := m.Validate(); err != nil {
			return fmt.Errorf("%w: member: %v", ErrDamaged, err)
		}
		if seen[m.ID] {
			return fmt.Errorf("%w: expected each member once, found %q twice", ErrDamaged, m.ID)
		}
		seen[m.ID] = true
	}
	if n := len(r.Former); n > maxFormer {
		return fmt.Errorf("%w: expected at most %d former members, found %d", ErrDamaged, maxFormer, n)
	}
	for _, k := range r.Former {
		if !isName(k.ID, maxID) || !isName(k.Instance, maxInstance) {
			return fmt.Errorf("%w: former member: expected an id and an instance, found %q and %q", ErrDamaged, Clip(k.ID), Clip(k.Instance))
		}
	}
	return nil
}

// Presence is a member that has called the leader, or is in the generation.
type Presence struct {
	Member
	Heard     time.Time // of its last join; without a join in this term: its begin
	Connected bool      // its stream is open
	Since     time.Time // of Connected

	Watched bool   // it was connected in this term
	Stored  bool   // the term began with it
	Gone    string // why it is removed immediately; "": it is not
}

// Failure is a report about the current generation.
type Failure struct {
	By     string
	Peer   string // that By cannot reach; "": the program of By has failed
	Reason string
	At     time.Time
}

// State is the ring, and the calls of members in this term.
type State struct {
	Ring
	Present   []Presence // in the order in which they joined
	Failures  []Failure
	Suspects  []Suspect
	Completed []MemberKey // that have reported it
	Close     string      // why the rendezvous is to be closed; "": it is not
}

// Begin returns the state of a leader before the first call of a member.
func Begin(r Ring, now time.Time) State {
	s := State{Ring: r}
	//guard:ring-continues
	for _, m := range r.Members {
		m.Completed = false
		s.Present = append(s.Present, Presence{Member: m, Heard: now, Since: now, Stored: true})
	}
	return s
}

// Find returns the index of a member in Present; -1: it is absent.
func (s *State) Find(k MemberKey) int {
	return slices.IndexFunc(s.Present, func(p Presence) bool { return p.Key() == k && p.Gone == "" })
}

// Replaced reports whether another instance has the id of a member that is not present. A member that was removed must not take its place back.
func (s *State) Replaced(k MemberKey) bool {
	isFormer := slices.Contains(s.Ring.Former, k) || slices.ContainsFunc(s.Present, func(p Presence) bool { return p.Key() == k && p.Gone != "" })
	return isFormer && s.Find(k) < 0 && slices.ContainsFunc(s.Present, func(p Presence) bool { return p.ID == k.ID && p.Gone == "" })
}

// Join adds a member, or notes that it is present. It replaces a member with its id.
func (s *State) Join(m Member, now time.Time) {
	m.Completed = false
	for i := range s.Present {
		p := &s.Present[i]
		switch {
		case p.ID != m.ID || p.Gone != "":
		case p.Instance == m.Instance:
			p.Member, p.Heard = m, now
			return
		default:
			p.Gone = "another process joined with its id"
		}
	}
	s.Present = append(s.Present, Presence{Member: m, Heard: now, Since: now})
}

// Remove notes that members have gone.
func (s *State) Remove(which func(Presence) bool, reason string) {
	for i := range s.Present {
		if p := &s.Present[i]; p.Gone == "" && which(*p) {
			p.Gone = reason
		}
	}
}

// Connect notes that the stream of a member is open or not.
func (s *State) Connect(k MemberKey, connected bool, now time.Time) {
	if i := s.Find(k); i >= 0 && s.Present[i].Connected != connected {
		p := &s.Present[i]
		p.Connected, p.Since, p.Watched = connected, now, true
		p.Heard = now
	}
}

// Adopt takes the ring that a decision has stored, and forgets the members that it has lost.
func (s *State) Adopt(d Decision) {
	if d.Ring.Number != s.Ring.Number || d.Ring.Ended != s.Ring.Ended {
		s.Failures, s.Completed = nil, nil
	}
	s.Ring, s.Suspects = d.Ring, d.Suspects
	s.Present = slices.DeleteFunc(s.Present, func(p Presence) bool {
		return slices.ContainsFunc(d.Lost, func(l Lost) bool { return l.MemberKey == p.Key() && l.gone == (p.Gone != "") })
	})
}

// Phase is the state of a member.
type Phase uint8

// The phases.
const (
	Unknown Phase = iota // it is not present
	Waiting              // for the next generation
	Running              // in the current generation
	Parked               // the ring is full
	Closed
)

// Of returns the phase of a member, and why it is in it.
func (s *State) Of(k MemberKey, c Config) (Phase, string) {
	switch {
	case s.Ring.Closed != "":
		return Closed, s.Ring.Closed
	case s.Find(k) < 0:
		return Unknown, ""
	case s.Ring.Active() && s.Ring.Has(k):
		return Running, s.Ring.Reason
	case s.Ring.Active() && s.excluded(k) != "":
		return Parked, s.excluded(k)
	case s.Ring.Active() && len(s.Ring.Members) >= c.Max:
		return Parked, fmt.Sprintf("the ring has %d members, its maximum", c.Max)
	case s.Ring.Active() && s.Ring.completing():
		return Parked, "members have completed"
	}
	return Waiting, ""
}

// excluded returns why a member is excluded; "": it is not.
func (s *State) excluded(k MemberKey) string {
	if i := slices.IndexFunc(s.Suspects, func(x Suspect) bool { return x.MemberKey == k }); i >= 0 {
		return s.Suspects[i].Why
	}
	return ""
}

func (g Generation) completing() bool {
	return slices.ContainsFunc(g.Members, func(m Member) bool { return m.Completed })
}

// Slot is the place of a process in a generation, as Horovod describes it. A cross rank is the rank among the processes with one local rank.
type Slot struct {
	Rank, Size           int
	LocalRank, LocalSize int
	CrossRank, CrossSize int
}

// Slot returns the place of a process of a member.
func (g Generation) Slot(id string, local int) (s Slot, ok bool) {
	for _, m := range g.Members {
		if m.ID == id && local >= 0 && local < m.Processes {
			s.Rank, s.LocalRank, s.LocalSize, s.CrossRank, ok = s.Size+local, local, m.Processes, s.CrossSize, true
		}
		s.Size += m.Processes
		if local < m.Processes {
			s.CrossSize++
		}
	}
	return s, ok
}

// CrossSize returns the number of members that have a process with a local rank.
func (g Generation) CrossSize(local int) (n int) {
	for _, m := range g.Members {
		if local < m.Processes {
			n++
		}
	}
	return n
}
