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

// describe asks the parameter server with an index what it holds.
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

// awaitServer waits until the parameter server with an index is as condition says.
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

// Kill -9 of a parameter server: the one that takes its place goes on from its checkpoint, the trainers wait for it and go
// on, and the model becomes as good as it would have.
func TestKilledParameterServer(t *testing.T) {
	for _, mode := range []string{"async", "sync"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			const passes = 6
			j := newJob(t)
			master := j.master("--passes", "6", "--ps", "2", "--update-mode", mode)
			servers := []*process{j.server("--ps-ttl", "1h"), j.server("--ps-ttl", "1h")} // the leader frees the index of one that died
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
			next := j.server(mortal...)
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
				t.Error("the restarted parameter server was given new parameters, expected that it goes on from its checkpoint")
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
