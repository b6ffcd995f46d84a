package main

import (
	"testing"

	"trainmaster/etcdstore"
	"trainmaster/master"
	"trainmaster/master/shards"
	pb "trainmaster/proto/trainmaster/v1"
)

// What a change waits for comes with the command that ends the waiting, as it is for this job.
func TestScaleCompletesTheHint(t *testing.T) {
	waits := &pb.ScaleReply{Waiting: "parameter server with index 2 (of 0 to 2) is not there: " + shards.StartAnother}
	for endpoints, want := range map[string]string{
		"10.0.0.1:2379": "waiting: parameter server with index 2 (of 0 to 2) is not there: start one with: master pserver --endpoints 10.0.0.1:2379 --job digits, and the --checkpoint-dir of the others",
		"":              "waiting: parameter server with index 2 (of 0 to 2) is not there: start one with: master pserver --endpoints ...",
	} {
		etcd := &etcdstore.Config{Job: "digits"}
		if endpoints != "" {
			etcd.Endpoints = []string{endpoints}
		}
		l := &leader{place: place{etcd: etcd}}
		if got := l.progressOf(waits); got != want {
			t.Errorf("endpoints %q:\n%s\nexpected\n%s", endpoints, got, want)
		}
	}
}

func TestScaleWithoutServers(t *testing.T) {
	l := lead(t, master.Config{})
	runArgs(t, "scale", "ps=2", "--addr", l.addr).wants(t, exitFailed, "this job has no parameter servers: its master was started without --ps")
}
