package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"trainmaster/internal/tcpproxy"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

// F190, F192: the leader is killed after it has committed a learning rate, and before a server has received it. The next leader sends
// it. A server that starts while no master runs reads it itself.
func TestLearningRateOfAKilledLeader(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	leader := j.master("--ps", "2")
	first := j.server(shortLease...)
	first.awaitLog("parameter server started")
	addr := closedAddr(t)
	proxy, err := tcpproxy.New(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	j.server("--listen", addr, "--advertise", proxy.Addr()).awaitLog("parameter server started")
	j.load(1)
	j.awaitSet(2, 0)
	term := j.awaitLeader(0)
	proxy.Refuse(true)
	proxy.Cut()
	j.says("the learning rate is 0.125 (0.125 times the rate at the start), from the next update of each parameter server on", "job", "set", "learning-rate=0.125")
	hasRate := func(d *pb.DescribeReply) bool { return d.LearningRateNumber == 1 && d.LearningRateScale == 0.125 }
	j.awaitServer(0, "has the learning rate", hasRate)
	behind := func() (*pb.DescribeReply, error) {
		conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return pb.NewParameterServerClient(conn).Describe(ctx, &pb.DescribeRequest{Brief: true})
	}
	if d, err := behind(); err != nil || d.LearningRateNumber != 0 || d.LearningRateScale != 1 {
		t.Fatalf("server behind the cut connection: expected no change, found %v, %v", d, err)
	}
	leader.kill()
	next := j.master("--ps", "2")
	j.awaitLeader(term)
	proxy.Refuse(false)
	eventually(t, "the server behind the proxy has the learning rate", func() (bool, string) {
		d, err := behind()
		return err == nil && hasRate(d), fmt.Sprint(d, err)
	})
	j.says("0.125, 0.125 times the rate at the start", "status")

	next.kill()
	first.kill()
	j.server(shortLease...)
	j.awaitServer(0, "starts with the learning rate", func(d *pb.DescribeReply) bool { return d.ShardEpoch > 1 && hasRate(d) })
}

// F193: a synchronous job rolls back over changes of its learning rate. Each version is made with the same rate as at the first time.
func TestRollbackRepeatsLearningRates(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	steps := j.steps()
	m := j.master("--passes", "4", "--ps", "2", "--update-mode", "sync", "--checkpoint-every", "1s")
	servers := []*process{j.server(shortLease...), j.server(shortLease...)}
	trainers := []*process{j.trainer("a"), j.trainer("b")}
	j.awaitSet(2, 0)
	for _, rate := range []string{"0.02", "0.005"} {
		j.awaitSteps(5)
		j.says("from version", "job", "set", "learning-rate="+rate)
	}
	j.awaitSteps(5)
	servers[1].kill()
	j.server(shortLease...)
	for _, p := range trainers {
		p.wantExit(0)
	}
	m.wantExit(0)
	scales, repeated := map[uint64]float32{}, 0
	changes := map[float32]bool{}
	for step := range steps {
		if len(step.Contributors) == 0 {
			continue // a rollback
		}
		before, again := scales[step.Version]
		if again && before != step.Scale {
			t.Errorf("version %d: made with the factor %v, and again with %v", step.Version, before, step.Scale)
		}
		if again && step.Scale != 0 {
			repeated++
		}
		scales[step.Version], changes[step.Scale] = step.Scale, true
	}
	if len(changes) != 3 || repeated == 0 {
		t.Errorf("%d factors, %d versions with a changed rate made twice: expected 3 factors and some versions", len(changes), repeated)
	}
	j.wantVerified(4, tasksPerPass)
}

// steps returns the synchronous steps that are committed from now on, until the master resigns.
func (j *job) steps() <-chan taskqueue.Step {
	j.t.Helper()
	steps := make(chan taskqueue.Step, 10_000)
	ctx, stop := context.WithCancel(j.t.Context())
	j.t.Cleanup(stop)
	changes := j.store.Client().Watch(ctx, j.store.Prefix()+"/", clientv3.WithPrefix())
	go func() {
		defer close(steps)
		for change := range changes {
			for _, event := range change.Events {
				switch key := strings.TrimPrefix(string(event.Kv.Key), j.store.Prefix()); {
				case key == taskqueue.StepKey && event.Type == clientv3.EventTypePut:
					step, err := taskqueue.DecodeStep(event.Kv.Value)
					if err != nil {
						j.t.Error(err)
					}
					steps <- step
				case strings.HasPrefix(key, "/master/lock/") && event.Type == clientv3.EventTypeDelete:
					return // the master has resigned
				}
			}
			if err := change.Err(); err != nil && !errors.Is(err, context.Canceled) {
				j.t.Error(err)
			}
		}
	}()
	return steps
}

// says runs a command that must succeed with these words on its standard output.
func (j *job) says(words string, args ...string) {
	j.t.Helper()
	o := run(j.t, j.dir, j.in(args...)...)
	o.wants(j.t, 0)
	if !strings.Contains(o.stdout, words) {
		j.t.Errorf("%s: expected %q, found %q", args, words, o.stdout)
	}
}
