package view

import (
	"fmt"
	"io"

	pb "trainmaster/proto/trainmaster/v1"
)

// Ring is what `master ring` says.
type Ring struct {
	State       string       `json:"state"` // RingStates
	Reason      string       `json:"reason,omitempty"`
	Generation  uint64       `json:"generation"`
	Coordinator string       `json:"coordinator,omitempty"`
	Formed      string       `json:"formed,omitempty"` // why the generation was formed
	Failed      string       `json:"failed,omitempty"`
	Min         uint32       `json:"min"`
	Max         uint32       `json:"max"`
	Members     []RingMember `json:"members"` // of the generation
	Waiting     []RingMember `json:"waiting"` // not in a generation that runs
}

// RingMember is a member of the ring.
type RingMember struct {
	ID        string   `json:"id"`
	Rank      int      `json:"rank"` // of its first process; -1: none
	Host      string   `json:"host"`
	Ports     []uint32 `json:"ports"`
	Processes uint32   `json:"processes"`
	Completed bool     `json:"completed"`
}

// The states of a ring.
const (
	RingRuns   = "running"
	RingWaits  = "waiting"
	RingClosed = "closed"
)

// NewRing returns the ring of an update of the leader.
func NewRing(u *pb.RingUpdate) Ring {
	g := u.GetGeneration()
	v := Ring{
		State: RingRuns, Reason: u.GetReason(), Generation: g.GetNumber(), Coordinator: g.GetCoordinator(), Formed: g.GetReason(), Failed: g.GetFailed(),
		Min: u.GetMin(), Max: u.GetMax(), Members: []RingMember{}, Waiting: []RingMember{},
	}
	switch {
	case u.GetClosed():
		v.State = RingClosed
	case g == nil || g.GetEnded():
		v.State, v.Coordinator = RingWaits, ""
	}
	rank := 0
	if v.State != RingWaits {
		for _, m := range g.GetMembers() {
			v.Members = append(v.Members, ringMember(m, rank))
			rank += int(m.GetProcesses())
		}
	}
	for _, m := range u.GetWaiting() {
		v.Waiting = append(v.Waiting, ringMember(m, -1))
	}
	return v
}

func ringMember(m *pb.RingMember, rank int) RingMember {
	return RingMember{ID: m.GetId(), Rank: rank, Host: m.GetHost(), Ports: append([]uint32{}, m.GetPorts()...), Processes: m.GetProcesses(), Completed: m.GetCompleted()}
}

// RingTable writes a ring.
func RingTable(w io.Writer, v Ring) {
	fmt.Fprintf(w, "generation %d, %s, %d members of %d to %d", v.Generation, v.State, len(v.Members), v.Min, v.Max)
	if v.Coordinator != "" {
		fmt.Fprintf(w, ", coordinator %s", v.Coordinator)
	}
	fmt.Fprintln(w)
	for _, reason := range []string{v.Reason, v.Formed} {
		if reason != "" {
			fmt.Fprintln(w, oneLine(reason))
		}
	}
	if len(v.Members)+len(v.Waiting) == 0 {
		return
	}
	fmt.Fprintln(w, "\nMEMBER\tRANK\tPROCESSES\tHOST\tSTATE")
	for _, m := range v.Members {
		state := RingRuns
		if m.Completed {
			state = "completed"
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\n", m.ID, m.Rank, m.Processes, m.Host, state)
	}
	for _, m := range v.Waiting {
		fmt.Fprintf(w, "%s\t-\t%d\t%s\t%s\n", m.ID, m.Processes, m.Host, RingWaits)
	}
}
