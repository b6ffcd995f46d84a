package view

import (
	"fmt"
	"io"

	pb "trainmaster/proto/trainmaster/v1"
)

// Pods is what `master pods` says.
type Pods struct {
	Pods    []Pod  `json:"pods"`
	Problem string `json:"problem,omitempty"` // why they are not observed now
}

// Pod is the newest attempt of an index.
type Pod struct {
	Name    string `json:"name"`
	Role    string `json:"role"`
	Index   uint32 `json:"index"`
	Attempt uint32 `json:"attempt"`
	Phase   string `json:"phase"`
	Charged uint32 `json:"charged"`
	Memory  int64  `json:"memory,omitempty"` // bytes
	Reason  string `json:"reason,omitempty"`
}

// NewPods returns the pods of a reply of the leader.
func NewPods(r *pb.ListPodsReply) Pods {
	v := Pods{Pods: []Pod{}, Problem: r.GetProblem()}
	for _, p := range r.GetPods() {
		v.Pods = append(v.Pods, Pod{
			Name: p.GetName(), Role: p.GetRole(), Index: p.GetIndex(), Attempt: p.GetAttempt(), Phase: p.GetPhase(), Charged: p.GetCharged(), Memory: p.GetMemory(), Reason: p.GetReason(),
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
	if v.Problem != "" {
		fmt.Fprintf(w, "\nThe pods are not observed now: %s\n", v.Problem)
	}
}
