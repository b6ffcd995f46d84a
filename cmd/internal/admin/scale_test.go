package admin

import (
	"testing"

	"trainmaster/etcdstore"
	"trainmaster/master/psclient"
	pb "trainmaster/proto/trainmaster/v1"
)

// The command that ends the wait of a change has the flags of this job.
func TestScaleCompletesTheHint(t *testing.T) {
	waits := &pb.ScaleReply{Waiting: "parameter server with index 2 (of 0 to 2) is missing: " + psclient.StartAnother}
	for endpoints, want := range map[string]string{
		"10.0.0.1:2379": "waiting: parameter server with index 2 (of 0 to 2) is missing: start one with: master pserver --endpoints 10.0.0.1:2379 --job digits, and the --checkpoint-dir of the others",
		"":              "waiting: parameter server with index 2 (of 0 to 2) is missing: start one with: master pserver --endpoints ...",
	} {
		etcd := &etcdstore.Config{Job: "digits"}
		if endpoints != "" {
			etcd.Endpoints = []string{endpoints}
		}
		l := &Leader{location: Location{Etcd: etcd}}
		if got := l.progressOf(waits); got != want {
			t.Errorf("endpoints %q:\n%s\nexpected\n%s", endpoints, got, want)
		}
	}
}

func TestScaleProgress(t *testing.T) {
	l := &Leader{location: Location{Etcd: &etcdstore.Config{}}}
	for want, reply := range map[string]*pb.ScaleReply{
		"moving from 3 to 1 parameter server: 12 of 40 blocks and 682 of 2048 slots to move": {ParameterServers: 3, Goal: 1, BlocksLeft: 12, Blocks: 40, SlotsLeft: 682, Slots: 2048},
		"moving to 3 parameter servers: 0 of 40 blocks to move":                              {ParameterServers: 3, Goal: 3, Blocks: 40},
		"moving to 3 parameter servers":                                                      {ParameterServers: 2, Goal: 3},
		"the model is distributed over 1 parameter server":                                   {ParameterServers: 1, Goal: 1, Done: true},
	} {
		if got := l.progressOf(reply); got != want {
			t.Errorf("%q, expected %q", got, want)
		}
	}
}
