package view

import (
	"fmt"
	"io"

	pb "trainmaster/proto/trainmaster/v1"
)

// Pods is what `master pods` says.
type Pods struct {
	Pods      []Pod  `json:"pods"`
	Problem   string `json:"problem,omitempty"`    // why they are not observed now
	RingWaits string `json:"ring_waits,omitempty"` // as in Status
}

// Pod is a pod of the newest attempt of an index.
type Pod struct {
	Name    string `json:"name"`
	Role    string `json:"role"`
	Index   uint32 `json:"index"`
	Attempt uint32 `json:"attempt"`
	Rank    uint32 `json:"rank"`
	Phase   string `json:"phase"`
	Charged uint32 `json:"charged"`
	Memory  int64  `json:"memory,omitempty"` // bytes
	Reason  string `json:"reason,omitempty"`
}

// podGroup describes the pods of a role.
type podGroup struct {
	Role      string `json:"role"`
	Goal      uint32 `json:"goal"`
	Min       uint32 `json:"min"` // limits of the goal
	Max       uint32 `json:"max"`
	Size      uint32 `json:"group_size"` // pods of an index
	Running   uint32 `json:"running"`
	Pending   uint32 `json:"pending"`
	Completed uint32 `json:"completed"`
	GivenUp   uint32 `json:"given_up"`
	Leaving   uint32 `json:"leaving"`
	Reason    string `json:"reason"`
}

func newPodGroups(list []*pb.PodGroup) []podGroup {
	groups := []podGroup{}
	for _, g := range list {
		groups = append(groups, newPodGroup(g))
	}
	return groups
}

func newPodGroup(g *pb.PodGroup) podGroup {
	return podGroup{
		Role: g.GetRole(), Goal: g.GetGoal(), Min: g.GetMin(), Max: g.GetMax(), Size: g.GetGroupSize(), Running: g.GetRunning(), Pending: g.GetPending(),
		Completed: g.GetCompleted(), GivenUp: g.GetGivenUp(), Leaving: g.GetLeaving(), Reason: g.GetReason(),
	}
}

// PodGroup describes in one line how far the pods of a role are from their goal.
func PodGroup(g *pb.PodGroup) string { return newPodGroup(g).String() }

func (g podGroup) String() string {
	text := fmt.Sprintf("%d of %d running", g.Running, g.Goal)
	if g.Size > 1 {
		text = fmt.Sprintf("%d of %d groups of %d running", g.Running, g.Goal, g.Size)
	}
	for _, part := range []struct {
		count uint32
		state string
	}{{g.Pending, "pending"}, {g.Completed, "completed"}, {g.GivenUp, "given up"}, {g.Leaving, "leaving"}} {
		if part.count > 0 {
			text += fmt.Sprintf(", %d %s", part.count, part.state)
		}
	}
	if g.Reason != "" {
		text += "; " + oneLine(g.Reason)
	}
	return text
}

// NewPods returns the pods of a reply of the leader.
func NewPods(r *pb.ListPodsReply) Pods {
	v := Pods{Pods: []Pod{}, Problem: r.GetProblem(), RingWaits: r.GetRingWaits()}
	for _, p := range r.GetPods() {
		v.Pods = append(v.Pods, Pod{
			Name: p.GetName(), Role: p.GetRole(), Index: p.GetIndex(), Attempt: p.GetAttempt(), Rank: p.GetRank(), Phase: p.GetPhase(), Charged: p.GetCharged(), Memory: p.GetMemory(), Reason: p.GetReason(),
		})
	}
	return v
}

// PodsTable writes pods.
func PodsTable(w io.Writer, v Pods) {
	fmt.Fprintln(w, "POD\tPHASE\tCHARGED\tMEMORY\tREASON")
	for _, p := range v.Pods {
		memory := "-"
		if p.Memory > 0 {
			memory = fmt.Sprintf("%d MiB", p.Memory>>20)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\n", p.Name, p.Phase, p.Charged, memory, oneLine(p.Reason))
	}
	if v.RingWaits != "" {
		fmt.Fprintf(w, "\nThe ring waits: %s\n", oneLine(v.RingWaits))
	}
	if v.Problem != "" {
		fmt.Fprintf(w, "\nThe pods are not observed now: %s\n", v.Problem)
	}
}
