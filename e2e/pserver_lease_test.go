package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	pb "trainmaster/proto/trainmaster/v1"
)

// F55 and F56: of three parameter servers that start together two get the two indices. One of them stands still until its lease is over. The one that stood by takes its index and goes on
// from its checkpoint. When the first one wakes up, it ends, and writes no checkpoint any more.
func TestPausedParameterServer(t *testing.T) {
	t.Parallel()
	const passes = 8
	j := newJob(t)
	master := j.master("--passes", "8", "--ps", "2")
	all := []*process{j.server(mortal...), j.server(mortal...), j.server(mortal...)}
	var servers []*process
	var next *process
	eventually(t, "two of three servers that start together get the two indices", func() (bool, string) {
		servers, next = nil, nil
		for _, s := range all {
			switch log := s.log(); {
			case strings.Contains(log, "parameter server started"):
				servers = append(servers, s)
			case strings.Contains(log, "all 2 indices are taken"):
				next = s
			}
		}
		return len(servers) == 2 && next != nil, fmt.Sprintf("%d have started", len(servers))
	})
	trainers := []*process{j.trainer("a"), j.trainer("b")}
	j.awaitMidPass(2)
	victim := servers[slices.IndexFunc(servers, func(p *process) bool { return strings.Contains(p.log(), "shard=0") })]
	before := j.awaitServer(0, "has a checkpoint of trained parameters", func(d *pb.DescribeReply) bool {
		return d.Checkpoint != "" && d.Counters.BlocksPushed > 0
	})
	victim.signal(syscall.SIGSTOP)
	next.awaitLog("parameters restored")
	written := j.generationsOf(0, "00000001-")
	if len(written) == 0 {
		t.Fatal("no checkpoint of the first start is there")
	}
	victim.signal(syscall.SIGCONT)
	victim.wantExit(3) // the store would not have it
	if !strings.Contains(victim.log(), "lease") {
		t.Error("the server that lost its lease does not say so")
	}
	for _, g := range j.generationsOf(0, "00000001-") {
		if !slices.Contains(written, g) {
			t.Errorf("checkpoint %s was written after the lease had ended", g)
		}
	}
	after := j.awaitServer(0, "is back", func(d *pb.DescribeReply) bool { return d.State == pb.DescribeReply_STATE_READY })
	if after.ShardEpoch <= before.ShardEpoch {
		t.Errorf("shard epoch %d of the successor, expected more than %d", after.ShardEpoch, before.ShardEpoch)
	}
	for _, trainer := range trainers {
		trainer.wantExit(0)
	}
	master.wantExit(0)
	j.wantExactlyOnce(passes, tasksPerPass)
	j.wantAccuracy(0.90)
}

// generationsOf are the checkpoints of a shard whose names begin so.
func (j *job) generationsOf(shard byte, prefix string) (names []string) {
	j.t.Helper()
	entries, err := os.ReadDir(filepath.Join(j.checkpoints(), "ps-"+string('0'+shard)))
	if err != nil {
		j.t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			names = append(names, e.Name())
		}
	}
	return names
}
