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

// F55, F56: three parameter servers start together, and two of them claim the two indices. One server is paused until its
// lease expires. The third server claims its index and continues from its checkpoint. When the paused server resumes, it
// exits without writing a checkpoint.
func TestPausedParameterServer(t *testing.T) {
	t.Parallel()
	const passes = 8
	j := newJob(t)
	master := j.master("--passes", "8", "--ps", "2")
	all := []*process{j.server(shortLease...), j.server(shortLease...), j.server(shortLease...)}
	var servers []*process
	var next *process
	eventually(t, "two of three servers have the two indices", func() (bool, string) {
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
		t.Fatal("expected a checkpoint of the first start, found none")
	}
	victim.signal(syscall.SIGCONT)
	victim.wantExit(exitStore)
	if !strings.Contains(victim.log(), "lease") {
		t.Error("log of the server without a lease: expected \"lease\"")
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

// generationsOf returns the checkpoints of a shard with a name prefix.
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
