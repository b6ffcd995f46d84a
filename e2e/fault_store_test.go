package e2e

import (
	"io"
	"net/http"
	"net/rpc"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master/netrpc/wire"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

// dialLeader connects to the leader without the trainer package.
func (j *job) dialLeader() *rpc.Client {
	j.t.Helper()
	addr, err := j.store.MasterAddr(j.t.Context())
	if err != nil {
		j.t.Fatal(err)
	}
	client, err := rpc.DialHTTP("tcp", addr.Addr)
	if err != nil {
		j.t.Fatal(err)
	}
	j.t.Cleanup(func() { _ = client.Close() }) // may be closed already
	return client
}

func call(t testing.TB, client *rpc.Client, method string, request, reply any) {
	t.Helper()
	if err := client.Call("RPCServer."+method, request, reply); err != nil {
		t.Fatalf("%s: %v", method, err)
	}
}

// F2, F21, F22: a master is killed after its commit in etcd and before its answer. The next master has the result: the same
// request receives the same task, and its finish is not counted again.
func TestMasterCrashBetweenCommitAndReply(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	proxy := etcdtest.StartProxy(t, j.endpoint)
	first := j.behind(proxy).master()
	term := j.awaitLeader(0)
	client := j.dialLeader()
	var joined wire.JoinReply
	call(t, client, "Join", wire.JoinRequest{ID: "a"}, &joined)
	var dummy int
	call(t, client, "ReportDataset", j.data.Train.Paths, &dummy)
	var got wire.NextReply
	call(t, client, "Next", wire.NextRequest{Trainer: joined.Trainer, Seq: 1, Ack: 1, Want: true, JobID: joined.JobID}, &got)

	proxy.HoldReplies(true)
	finished := got.Task.Token
	again := wire.NextRequest{
		Trainer: joined.Trainer, Seq: 2, Ack: 2, Finished: []taskqueue.Result{{Token: finished}},
		Want: true, SeenCommit: got.Commit, SeenProof: got.CommitProof, JobID: joined.JobID,
	}
	answer := client.Go("RPCServer.Next", again, &wire.NextReply{}, make(chan *rpc.Call, 1))
	at := taskPosition{finished.Pass, finished.Position}
	eventually(t, "the commit is in etcd", func() (bool, string) { return len(j.history().finished[at]) == 1, "no finish in the ledger" })
	select {
	case <-answer.Done:
		t.Fatalf("answer before the outcome of the commit is known: %+v, %v", answer.Reply, answer.Error)
	default:
	}
	first.kill()

	j.master()
	j.awaitLeader(term)
	client = j.dialLeader()
	var replies [2]wire.NextReply
	for i := range replies {
		call(t, client, "Next", again, &replies[i])
		if f := replies[i].Finishes; len(f) != 1 || f[0] != taskqueue.AlreadyCounted {
			t.Errorf("repeated finish: expected already counted, found %v", f)
		}
	}
	h := j.history()
	if token := replies[0].Task.Token; token == finished || token != replies[1].Task.Token || h.dispatched[taskPosition{token.Pass, token.Position}] != 1 {
		t.Errorf("repeated request: expected the committed task twice, found %+v and %+v; dispatched: %v", replies[0].Task.Token, replies[1].Task.Token, h.dispatched)
	}
	if n := len(h.finished[at]); n != 1 || len(h.dispatched) != 2 {
		t.Errorf("task counted %d times, %d tasks dispatched: expected 1 and 2", n, len(h.dispatched))
	}
}

// F5: the leader of an etcd cluster of three members is killed during a pass, and then its successor. The job pauses and
// continues.
func TestEtcdLeaderKilled(t *testing.T) {
	t.Parallel()
	const passes = 4
	cluster := etcdtest.StartCluster(t, "127.0.0.1")
	j := newJobOn(t, cluster.Endpoints()...)
	flags := []string{"--passes", "4", "--ps", "1", "--lease-ttl", "10s"}
	j.master(flags...)
	j.master(flags...)
	j.awaitLeader(0)
	j.server("--ps-ttl", "30s")
	trainers := []*process{j.trainer("a", "--record-delay", "3ms"), j.trainer("b", "--record-delay", "3ms")}
	for _, pass := range []uint32{1, 2} {
		before := j.awaitMidPass(pass).Commit
		dead := cluster.Leader()
		dead.Kill()
		j.awaitStatus("the job continues without a member", func(s *pb.StatusReply) bool { return s.Commit > before+10 })
		dead.Start()
	}
	for _, trainer := range trainers {
		trainer.wantExit(0)
	}
	j.wantExactlyOnce(passes, tasksPerPass)
}

// tools is the HTTP port of a master.
type tools struct {
	t    testing.TB
	addr string
}

func newTools(t testing.TB) tools { return tools{t, closedAddr(t)} }

// get sends a request. Code 0 means that no answer arrived.
func (h tools) get(path string) (code int, body string) {
	h.t.Helper()
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get("http://" + h.addr + path)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = answer.Body.Close() }() // read to its end, or failed
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(text)
}

// await waits for an answer with the code and the words.
func (h tools) await(path string, code int, words string) {
	h.t.Helper()
	eventually(h.t, path+" answers "+words, func() (bool, string) {
		found, body := h.get(path)
		return found == code && strings.Contains(body, words), body
	})
}

// F8: etcd becomes full during a pass. No refused finish counts. The log, `master status` and a metric report the state. The
// job continues after an operator has freed space.
func TestStoreRunsFull(t *testing.T) {
	t.Parallel()
	const passes = 3
	etcd := etcdtest.StartProcess(t, 16<<20)
	j := newJobOn(t, etcd.Endpoint())
	h := newTools(t)
	master := j.master("--passes", "3", "--ps", "1", "--lease-ttl", "30s", "--http", h.addr)
	j.awaitLeader(0)
	j.server()
	trainers := []*process{j.trainer("a"), j.trainer("b")}
	j.awaitMidPass(1)
	client := j.store.Client()
	for i := 0; ; i++ {
		_, err := client.Put(t.Context(), "/ballast/"+string(rune('a'+i%20)), strings.Repeat("x", 1<<20))
		if err != nil {
			break // the quota of 16 MiB is reached
		}
		if i > 100 {
			t.Fatal("expected 100 MiB to exceed the quota of 16 MiB")
		}
	}
	master.awaitLog("alarm disarm")
	full := j.awaitStatus("commits are refused", func(s *pb.StatusReply) bool { return s.Totals.CommitsRefused > 0 })
	h.await("/metrics", http.StatusOK, "trainmaster_commits_refused_total")
	later := j.awaitStatus("more of them are refused", func(s *pb.StatusReply) bool { return s.Totals.CommitsRefused > full.Totals.CommitsRefused })
	if later.Commit != full.Commit || later.Term != full.Term {
		t.Errorf("full etcd: found commit %d of term %d, expected commit %d of term %d", later.Commit, later.Term, full.Commit, full.Term)
	}
	disarm(t, client, etcd.Endpoint())
	for _, trainer := range trainers {
		trainer.wantExit(0)
	}
	master.wantExit(0)
	j.wantExactlyOnce(passes, tasksPerPass)
}

// disarm frees space in etcd and removes the alarm, as an operator does.
func disarm(t testing.TB, client *clientv3.Client, endpoint string) {
	t.Helper()
	if _, err := client.Delete(t.Context(), "/ballast/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	head, err := client.Get(t.Context(), "/ballast/")
	if err == nil {
		_, err = client.Compact(t.Context(), head.Header.Revision, clientv3.WithCompactPhysical())
	}
	if err == nil {
		_, err = client.Defragment(t.Context(), endpoint)
	}
	if err != nil {
		t.Fatal(err)
	}
	alarms, err := client.AlarmList(t.Context())
	if err != nil || len(alarms.Alarms) != 1 || alarms.Alarms[0].Alarm != etcdserverpb.AlarmType_NOSPACE {
		t.Fatalf("alarms: expected NOSPACE, found %v (%v)", alarms, err)
	}
	if _, err := client.AlarmDisarm(t.Context(), (*clientv3.AlarmMember)(alarms.Alarms[0])); err != nil {
		t.Fatal(err)
	}
}

// F9: every commit takes at least two seconds, longer than the task timeout. Trainers wait, and no task times out because of
// the slow store.
func TestSlowStore(t *testing.T) {
	t.Parallel()
	const passes = 2
	j := newJob(t)
	proxy := etcdtest.StartProxy(t, j.endpoint)
	master := j.behind(proxy).master("--passes", "2", "--ps", "1", "--lease-ttl", "60s", "--task-timeout-min", "2s", "--task-timeout-max", "2s")
	j.awaitLeader(0)
	j.server()
	trainers := []*process{j.trainer("a"), j.trainer("b")}
	before := j.awaitMidPass(1).Commit
	proxy.Delay(time.Second, time.Second)
	j.awaitSlowStatus(5*time.Second, "three slow commits", func(s *pb.StatusReply) bool { return s.Commit > before+3 })
	if h := j.history(); len(h.returned) > 0 || len(h.lost) > 0 {
		t.Errorf("returned: %v, lost: %v; expected none", h.returned, h.lost)
	}
	proxy.Delay(0, 0)
	for _, trainer := range trainers {
		trainer.wantExit(0)
	}
	master.wantExit(0)
	j.wantExactlyOnce(passes, tasksPerPass)
}

// F11: etcd is down when a master starts, and later for longer than the lease. The master is healthy and not ready. It
// continues when etcd is reachable again.
func TestEtcdDown(t *testing.T) {
	t.Parallel()
	const passes = 3
	etcd := etcdtest.StartProcess(t, 0)
	j := newJobOn(t, etcd.Endpoint())
	h := newTools(t)
	etcd.Kill()
	master := j.master("--passes", "3", "--ps", "1", "--http", h.addr)
	trainers := []*process{j.trainer("a"), j.trainer("b")}
	h.await("/healthz", http.StatusOK, "ok")
	h.await("/readyz", http.StatusServiceUnavailable, "etcd")
	master.awaitLog("etcd does not answer, trying again")

	etcd.Start()
	h.await("/readyz", http.StatusOK, "leader")
	j.server("--ps-ttl", "60s")
	j.awaitMidPass(1)
	etcd.Kill()
	eventually(t, "the master no longer leads", func() (bool, string) {
		_, body := h.get("/metrics")
		return strings.Contains(body, "trainmaster_leading 0"), body
	})
	if code, body := h.get("/healthz"); code != http.StatusOK {
		t.Errorf("/healthz without etcd: expected code 200, found %d %s", code, body)
	}
	etcd.Start()
	for _, trainer := range trainers {
		trainer.wantExit(0)
	}
	master.wantExit(0)
	j.wantExactlyOnce(passes, tasksPerPass)
}
