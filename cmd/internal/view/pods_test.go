package view

import (
	"strings"
	"testing"

	pb "trainmaster/proto/trainmaster/v1"
)

func TestPodsTable(t *testing.T) {
	var out strings.Builder
	PodsTable(&out, NewPods(&pb.ListPodsReply{Problem: "the API does not answer", Pods: []*pb.PodEntry{
		{Name: "j-worker-0-1", Role: "worker", Attempt: 1, Phase: "Running", Charged: 1, Memory: 120 << 20, Reason: "exceeded\nits memory"},
		{Name: "j-worker-1-0", Role: "worker", Index: 1, Phase: "Waiting", Reason: "quota"},
	}}))
	want := "POD\tPHASE\tCHARGED\tMEMORY\tREASON\nj-worker-0-1\tRunning\t1\t120 MiB\texceeded; its memory\nj-worker-1-0\tWaiting\t0\t-\tquota\n\nThe pods are not observed now: the API does not answer\n"
	if out.String() != want {
		t.Errorf("expected %q, found %q", want, out.String())
	}
}
