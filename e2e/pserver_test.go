package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "trainmaster/proto/trainmaster/v1"
)

// describe calls Describe of the parameter server with an index.
func (j *job) describe(index int) (*pb.DescribeReply, error) {
	addrs, err := j.store.WaitPS(j.t.Context(), nil)
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("passthrough:///"+addrs[index], grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // only ever closed already
	ctx, cancel := context.WithTimeout(j.t.Context(), time.Second)
	defer cancel()
	return pb.NewParameterServerClient(conn).Describe(ctx, &pb.DescribeRequest{})
}

// awaitServer waits until the parameter server with an index meets the condition.
func (j *job) awaitServer(index int, what string, condition func(*pb.DescribeReply) bool) (d *pb.DescribeReply) {
	j.t.Helper()
	eventually(j.t, fmt.Sprintf("parameter server %d %s", index, what), func() (bool, string) {
		var err error
		if d, err = j.describe(index); err != nil {
			return false, err.Error()
		}
		return condition(d), d.String()
	})
	return d
}

// A parameter server is killed. Its successor starts from its checkpoint, trainers wait and continue, and the accuracy of the
// model is not affected.
func TestKilledParameterServer(t *testing.T) {
	for _, mode := range []string{"async", "sync"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			const passes = 6
			j := newJob(t)
			master := j.master("--passes", "6", "--ps", "2", "--update-mode", mode)
			servers := []*process{j.server("--ps-ttl", "1h"), j.server("--ps-ttl", "1h")} // the leader evicts a dead server before its lease ends
			trainers := []*process{j.trainer("a"), j.trainer("b")}
			j.awaitMidPass(2)
			victim := 0
			if strings.Contains(servers[1].log(), "shard=0") {
				victim = 1
			}
			before := j.awaitServer(0, "has a checkpoint of trained parameters", func(d *pb.DescribeReply) bool {
				return d.Checkpoint != "" && (mode == "async" || d.Version > 0)
			})
			servers[victim].kill()
			next := j.server(shortLease...)
			next.awaitLog("parameters restored")
			after := j.awaitServer(0, "is back", func(d *pb.DescribeReply) bool { return d.State == pb.DescribeReply_STATE_READY })
			if after.ShardEpoch <= before.ShardEpoch {
				t.Errorf("shard epoch %d after the restart, expected more than %d", after.ShardEpoch, before.ShardEpoch)
			}
			for _, trainer := range trainers {
				trainer.wantExit(0)
			}
			master.wantExit(0)
			if strings.Contains(next.log(), "parameters initialized") {
				t.Error("restarted parameter server: expected parameters from its checkpoint, found new ones")
			}
			if mode == "sync" { // the journal has only the rest of a task after a rollback
				j.wantVerified(passes, tasksPerPass)
			} else {
				j.wantExactlyOnce(passes, tasksPerPass)
			}
			j.wantAccuracy(0.90)
		})
	}
}
