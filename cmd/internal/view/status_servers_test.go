package view

import (
	"bytes"
	"strings"
	"testing"

	"trainmaster/cmd/internal/cli"
	pb "trainmaster/proto/trainmaster/v1"
)

func TestLineOfParameterServers(t *testing.T) {
	tests := map[string]struct {
		servers *pb.ParameterServers
		want    string
	}{
		"all present": {&pb.ParameterServers{Wanted: 2, Present: 2, PlacementEpoch: 6}, "2"},
		"one is missing": {&pb.ParameterServers{Wanted: 3, Present: 2, Missing: []uint32{2}, Waiting: "it is missing"},
			"2 of 3, index 2 is missing: start one with: master pserver --endpoints ..."},
		"all are missing": {&pb.ParameterServers{Wanted: 2, Missing: []uint32{0, 1}},
			"0 of 2, indices 0, 1 are missing: start each with: master pserver --endpoints ..."},
		"moving": {&pb.ParameterServers{Wanted: 2, Present: 3, MovingTo: 3, PlacementEpoch: 6}, "2, moving to 3 (placement 6)"},
		"moving to a missing server": {&pb.ParameterServers{Wanted: 2, Present: 2, Missing: []uint32{2}, MovingTo: 3, PlacementEpoch: 6},
			"2 of 3, moving to 3 (placement 6), index 2 is missing: start one with: master pserver --endpoints ..."},
		"spread over all, and unevenly": {&pb.ParameterServers{Wanted: 3, Present: 3, MovingTo: 3, PlacementEpoch: 7}, "3, blocks are moving (placement 7)"},
		"moving to fewer, and waiting": {&pb.ParameterServers{Wanted: 3, Present: 3, MovingTo: 1, PlacementEpoch: 7, Waiting: "one\ntwo"},
			"3, moving to 1 (placement 7); waiting: one; two"},
		"overflow and missing server": {&pb.ParameterServers{Wanted: 2, Present: 1, Missing: []uint32{1}, Overflow: "parameter server 0: w is +Inf"},
			"1 of 2, index 1 is missing: start one with: master pserver --endpoints ...; parameters overflowed, no checkpoints are written: parameter server 0: w is +Inf"},
		"one waits for a set": {&pb.ParameterServers{Wanted: 2, Present: 2, Unrestored: "parameter server 1: set 7: damaged"},
			"2; waiting without parameters: parameter server 1: set 7: damaged"},
		"unknown": {&pb.ParameterServers{Wanted: 3, Unknown: "etcd is silent"}, "3; registered servers unknown: etcd is silent"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := NewStatus(&pb.StatusReply{ParameterServers: tt.servers})
			var b bytes.Buffer
			if err := cli.Render(&b, "table", s, s.Table); err != nil || !strings.Contains(strings.Join(strings.Fields(b.String()), " "), "parameter servers "+tt.want+" trainers ") {
				t.Errorf("found\n%swant %q, %v", b.String(), tt.want, err)
			}
		})
	}
}
