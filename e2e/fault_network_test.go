package e2e

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"trainmaster/etcdstore/etcdtest"
	pb "trainmaster/proto/trainmaster/v1"
)

// ask sends a Status request to a master, which may not be the leader.
func (j *job) ask(addr string) error {
	j.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		j.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // only ever closed already
	ctx, cancel := context.WithTimeout(j.t.Context(), 10*time.Second)
	defer cancel()
	_, err = pb.NewAdminClient(conn).Status(ctx, &pb.StatusRequest{Job: j.name})
	return err
}

// wantNotLeader fails the test if the master at addr, whose term has ended in etcd, answers as the leader.
func (j *job) wantNotLeader(addr string) {
	j.t.Helper()
	if err := j.ask(addr); status.Code(err) != codes.Unavailable {
		j.t.Errorf("former leader at %s: expected Unavailable, found %v", addr, err)
	}
}

// F6: the leader is partitioned from etcd, but not from trainers and the standby. No connection breaks, and all messages are
// lost. The leader stops answering before the standby can lead.
func TestLeaderPartitionedFromEtcd(t *testing.T) {
	t.Parallel()
	const passes = 4
	j := newJob(t)
	proxy := etcdtest.StartProxy(t, j.endpoint)
	flags := []string{"--passes", "4", "--ps", "1", "--holddown", "2s"}
	first := j.behind(proxy).master(flags...)
	term := j.awaitLeader(0)
	old := j.awaitStatus("a leader", func(*pb.StatusReply) bool { return true }).LeaderAddress
	standby := j.master(flags...)
	standby.awaitLog("waiting for the lock")
	j.server()
	trainers := []*process{j.trainer("a"), j.trainer("b")}
	j.awaitMidPass(1)
	proxy.HoldRequests(true)
	proxy.HoldReplies(true)
	j.awaitLeader(term)
	j.wantNotLeader(old)
	j.awaitMidPass(2)
	proxy.Cut()
	proxy.HoldRequests(false)
	proxy.HoldReplies(false)
	for _, trainer := range trainers {
		trainer.wantExit(0)
	}
	standby.wantExit(0)
	first.signal(syscall.SIGTERM)
	first.wantExit(0)
	j.wantExactlyOnce(passes, tasksPerPass)
}

// exposed starts a master whose port is reached through a proxy.
func (j *job) exposed(flags ...string) (m *process, addr string, proxy *etcdtest.Proxy) {
	j.t.Helper()
	addr = closedAddr(j.t)
	proxy = etcdtest.StartProxy(j.t, "http://"+addr)
	// A standby without heartbeats of the leader treats each commit as a sign of life, and a checkpoint commits.
	return j.master(append(flags, "--listen", addr, "--advertise", proxy.Addr(), "--checkpoint-every", "never")...), addr, proxy
}

// F13, F14: the network between the masters breaks repeatedly. The standby takes over from a healthy leader each time, at
// most once per holddown, and no task is counted twice.
func TestSpuriousTakeovers(t *testing.T) {
	t.Parallel()
	const (
		passes   = 6
		holddown = 3 * time.Second
	)
	j := newJob(t)
	flags := []string{"--passes", "6", "--ps", "1", "--lease-ttl", "60s", "--holddown", holddown.String()}
	type exposed struct {
		*process
		addr  string
		proxy *etcdtest.Proxy
	}
	masters := map[string]exposed{} // by announced address
	for range 2 {
		m, addr, proxy := j.exposed(flags...)
		masters[proxy.Addr()] = exposed{m, addr, proxy}
		eventually(t, "the master is in the queue for the lock", func() (bool, string) {
			queue, _, err := j.store.Prefixed(t.Context(), "/master/lock/")
			return err == nil && len(queue) == len(masters), fmt.Sprint(queue, err)
		})
	}
	term := j.awaitLeader(0)
	j.server()
	trainers := []*process{j.trainer("a", "--record-delay", "3ms"), j.trainer("b", "--record-delay", "3ms")}
	j.awaitMidPass(1)
	var took []time.Time
	for range 3 {
		leader, err := j.store.MasterAddr(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		cut := masters[leader.Addr]
		cut.proxy.Refuse(true)
		cut.proxy.Cut()
		term = j.awaitLeader(term)
		took = append(took, time.Now())
		j.wantNotLeader(cut.addr)
		cut.proxy.Refuse(false)
		// The holddown does not protect a leader without a commit.
		before := j.awaitStatus("the next leader answers", func(s *pb.StatusReply) bool { return s.Term == term }).Commit
		j.awaitStatus("the next leader commits", func(s *pb.StatusReply) bool { return s.Term == term && s.Commit > before })
	}
	for i := 1; i < len(took); i++ {
		// The test may observe a takeover late and the next takeover in time. The pause between takeovers grows with their
		// number.
		least := time.Duration(i) * holddown
		if gap := took[i].Sub(took[i-1]); gap < least/2 {
			t.Errorf("takeover %d: %v after the previous takeover, expected at least %v", i+1, gap, least)
		}
	}
	for _, trainer := range trainers {
		trainer.wantExit(0)
	}
	j.wantVerified(passes, tasksPerPass) // only the ledger: sessions may end, because no request arrives for longer than the grace period
}

// F14: trainers read the address of a master that does not lead, and retry until they reach the leader.
func TestStaleAddress(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	leader := j.master("--ps", "1")
	term := j.awaitLeader(0)
	addr := closedAddr(t)
	standby := j.master("--ps", "1", "--listen", addr)
	standby.awaitLog("waiting for the lock")
	if _, err := j.store.Client().Put(t.Context(), j.store.Prefix()+"/master/addr", fmt.Sprintf(`{"addr":%q,"term":%d}`, addr, term)); err != nil {
		t.Fatal(err)
	}
	trainer := j.trainer("a")
	trainer.awaitLog("not the leader")
	if h := j.history(); len(h.sessions) > 0 {
		t.Errorf("expected no session with a standby, found %v", h.sessions)
	}
	leader.kill()
	j.server()
	trainer.wantExit(0)
	standby.wantExit(0)
	j.wantExactlyOnce(1, tasksPerPass)
}
