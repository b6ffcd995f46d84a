package master_test

import (
	"errors"
	"net/rpc"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/mastertest"
	"trainmaster/taskqueue"
)

// revokeLock revokes the lease of the present holder of the lock, as a standby does with a dead leader.
func revokeLock(t *testing.T, store *etcdstore.Store) {
	t.Helper()
	lock, err := store.Client().Get(t.Context(), store.Prefix()+"/master/lock/", clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend), clientv3.WithLimit(1))
	if err != nil || len(lock.Kvs) != 1 {
		t.Fatalf("holder of the lock: got %v, %v", lock, err)
	}
	if _, err := store.Client().Revoke(t.Context(), clientv3.LeaseID(lock.Kvs[0].Lease)); err != nil {
		t.Fatal(err)
	}
}

// still returns the parts of the state that remain after a term.
func still(t *testing.T, r *mastertest.Running) (taskqueue.Overview, taskqueue.TaskQueues, []taskqueue.PendingTask) {
	t.Helper()
	overview, err := r.Overview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range overview.Trainers {
		overview.Trainers[i].Silent = 0
	}
	overview.Clock = 0
	queues, err := r.TaskQueues(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := r.PendingTasks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range tasks {
		for k := range tasks[i].Holders {
			tasks[i].Holders[k].Age = 0
		}
	}
	return overview, queues, tasks
}

// A master that loses its lock answers no request. Callers receive an error immediately, connections close, and the
// standby continues the job.
func TestLostLock(t *testing.T) {
	job := etcdtest.NewJob(t)
	config := master.Config{Shuffle: true, Seed: 3, Queue: taskqueue.Options{Passes: 2}}
	open := func() *etcdstore.Store { return etcdtest.Open(t, etcdtest.Endpoint(t), job) }
	first := mastertest.Start(t, open(), config)
	first.Register(6)
	second := mastertest.StandBy(t, open(), config, nil)
	a, b, c := first.Join("a"), first.Join("b"), first.Join("c")
	finished := a.Take(t)
	if reply, err := first.Next(t.Context(), a.Request(nil, []taskqueue.Token{finished})); err != nil || reply.Finishes[0] != taskqueue.Counted {
		t.Fatal(reply, err)
	}
	request := b.Request(nil, nil)
	sent := *request
	reply, err := first.Next(t.Context(), &sent)
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		first.Join("x").Take(t) // each replaces the session of the previous
	}
	if err := first.Fail(t.Context(), b.Ordinal, b.Incarnation, taskqueue.Token{}, "nothing that there is"); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Overview(t.Context()); !errors.Is(err, master.ErrNotLeader) || second.Leading() {
		t.Fatalf("standby: got %v", err)
	}
	client, err := rpc.DialHTTP("tcp", first.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	call := client.Go("RPCServer.ReportDataset", []string{"/nowhere/*"}, new(int), nil)
	<-call.Done // so that the connection is served
	c.Take(t)
	overview, queues, tasks := still(t, first)

	began := time.Now()
	revokeLock(t, second.Store)
	second.AwaitLeading()
	if took := time.Since(began); took > time.Second {
		t.Errorf("standby: led after %v", took)
	}
	mastertest.Eventually(t, "the end of the connection", func() bool {
		return errors.Is(client.Call("RPCServer.ReportDataset", []string{}, new(int)), rpc.ErrShutdown)
	})
	o, q, p := still(t, second)
	o.Commit = overview.Commit // ticks may have committed
	if !reflect.DeepEqual(o, overview) {
		t.Errorf("overview:\n expected %+v\n found    %+v", overview, o)
	}
	if !reflect.DeepEqual(q, queues) || !reflect.DeepEqual(p, tasks) {
		t.Errorf("queues:\n expected %+v\n%+v\n found    %+v\n%+v", queues, tasks, q, p)
	}
	again := *request // F2, F21: the same request to the next master has the same answer
	if got, err := second.Next(t.Context(), &again); err != nil || got.Assignment == nil || !reflect.DeepEqual(got.Assignment.Task, reply.Assignment.Task) {
		t.Errorf("next master: got %+v, %v; expected the answer of the first master, %+v", got, err, reply)
	}
	if got, err := second.Next(t.Context(), a.Request(nil, []taskqueue.Token{finished})); err != nil || got.Finishes[0] != taskqueue.AlreadyCounted { // F22
		t.Errorf("finish that the first master counted: got %+v, %v", got, err)
	}
	mastertest.Eventually(t, "the end of the first term", func() bool { return !first.Leading() })
	mastertest.Verify(t, second.Store)
}

// A caller that waits for a task receives an error immediately when the lock is lost.
func TestLostLockAnswersWaitingCallers(t *testing.T) {
	store := etcdtest.Store(t)
	r := mastertest.Start(t, store, master.Config{})
	waiting := asks(t, r.Join("a"))
	mastertest.Eventually(t, "a parked request", func() bool { return r.Parked(t) == 1 })
	began := time.Now()
	revokeLock(t, store)
	if got := <-waiting; !errors.Is(got.err, master.ErrNotLeader) || time.Since(began) > time.Second {
		t.Errorf("after %v: %+v", time.Since(began), got)
	}
	r.AwaitLeading()
}

// F1, F4: a master is cut off during a write. The write arrives after the next term began and is fenced. The caller
// receives the error that the master does not lead, and the state of the next master remains.
func TestPausedLeaderIsFenced(t *testing.T) {
	paused, proxy, direct := behind(t, master.Config{})
	paused.Register(5)
	a := paused.Join("a")
	proxy.HoldRequests(true)
	answered := asks(t, a)
	mastertest.Eventually(t, "a held commit", func() bool { return proxy.HeldRequests() > largerThanAKeepAlive })
	next := mastertest.StandBy(t, direct, master.Config{}, nil)
	next.AwaitLeading() // when the lease has expired
	task := next.Join("b").Take(t)
	_, before, revision := mastertest.State(t, direct)

	proxy.HoldRequests(false)
	if got := <-answered; !errors.Is(got.err, master.ErrNotLeader) || got.reply.Assignment != nil {
		t.Errorf("paused master: got %+v", got)
	}
	mastertest.Eventually(t, "the end of the paused term", func() bool { return !paused.Leading() })
	if _, after, now := mastertest.State(t, direct); now != revision || string(after) != string(before) {
		t.Errorf("state: expected revision %d, found %d", revision, now)
	}
	if _, err := next.Next(t.Context(), &taskqueue.Request{Trainer: 99}); !errors.Is(err, master.ErrRejoin) {
		t.Error(err)
	}
	if task.Position != 0 {
		t.Errorf("next master: expected position 0, found %d", task.Position)
	}
	mastertest.Verify(t, direct)
}

// A trainer echoes a commit that a former leader has not seen. This is no proof of a restored backup: the former
// leader becomes a standby.
func TestSeenCommitAtAFormerLeader(t *testing.T) {
	former, proxy, direct := behind(t, master.Config{})
	former.Register(5)
	a := former.Join("a")
	proxy.HoldReplies(true) // the end of the lease does not reach it
	revokeLock(t, direct)
	next := mastertest.StandBy(t, direct, master.Config{}, nil)
	next.AwaitLeading()
	reply, err := a.At(next).Next(t.Context())
	if err != nil || !former.Leading() {
		t.Fatalf("%v; former leader: expected that it assumes leadership, found %v", err, former.Leading())
	}
	request := a.Request([]taskqueue.Token{reply.Assignment.Task.Token}, nil)
	request.SeenCommit, request.SeenProof = reply.Commit, reply.CommitProof
	answered := make(chan error, 1)
	go func() {
		_, err := former.Next(t.Context(), request)
		answered <- err
	}()
	mastertest.Eventually(t, "a held answer", func() bool { return proxy.HeldReplies() > 0 })
	proxy.HoldReplies(false)
	if err := <-answered; !errors.Is(err, master.ErrNotLeader) || errors.Is(err, master.ErrStoreWentBack) {
		t.Errorf("former leader: got %v", err)
	}
	if err := next.Stop(); err != nil {
		t.Fatal(err)
	}
	former.AwaitLeading() // it did not end
}

// F10: etcd is restored from an old backup, with the same token. The first trainer that echoes a later commit stops
// the leader, and nothing more is written.
func TestRestoredOldStoreStopsLeader(t *testing.T) {
	etcd := etcdtest.StartProcess(t, 0)
	job := etcdtest.NewJob(t)
	store := etcdtest.Open(t, etcd.Endpoint(), job)
	r := mastertest.Start(t, store, master.Config{})
	r.Register(10)
	a := r.Join("a")
	task := a.Take(t)
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	etcd.Kill()
	backup := t.TempDir()
	copyDir(t, backup, etcd.Dir())
	etcd.Start()

	r = mastertest.Start(t, store, master.Config{})
	moved := a.At(r)
	for range 5 {
		moved.Take(t) // the previous task returns
	}
	reply, err := moved.Next(t.Context(), task)
	if err != nil || reply.Assignment == nil {
		t.Fatal(reply, err)
	}
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	etcd.Kill()
	copyDir(t, etcd.Dir(), backup)
	etcd.Start()

	r = mastertest.Start(t, store, master.Config{})
	stranger := a.Request(nil, nil)
	stranger.SeenCommit, stranger.SeenProof, stranger.JobID = reply.Commit, reply.CommitProof, [16]byte{1}
	if _, err := r.Next(t.Context(), stranger); errors.Is(err, master.ErrStoreWentBack) {
		t.Error("echo of another job: expected the leader to continue")
	}
	for name, proof := range map[string][]byte{"none": nil, "made up": make([]byte, len(reply.CommitProof)), "of another commit": reply.CommitProof, "cut short": reply.CommitProof[:1]} {
		forged := a.Request(nil, nil)
		forged.SeenCommit, forged.SeenProof = reply.Commit+100, proof
		if _, err := r.Next(t.Context(), forged); errors.Is(err, master.ErrStoreWentBack) {
			t.Errorf("forged commit number with proof %q: expected the leader to continue", name)
		}
	}
	_, before, revision := mastertest.State(t, store)
	request := a.Request([]taskqueue.Token{reply.Assignment.Task.Token}, []taskqueue.Token{task})
	request.SeenCommit, request.SeenProof = reply.Commit, reply.CommitProof
	if _, err := r.Next(t.Context(), request); !errors.Is(err, master.ErrStoreWentBack) || !strings.Contains(err.Error(), "backup") {
		t.Fatalf("echo of an unknown commit: got %v", err)
	}
	if err := r.Wait(); !errors.Is(err, master.ErrStoreWentBack) {
		t.Errorf("end of the master: got %v", err)
	}
	if _, after, now := mastertest.State(t, store); now != revision || string(after) != string(before) {
		t.Errorf("state: expected revision %d, found %d", revision, now)
	}
}

func copyDir(t *testing.T, to, from string) {
	t.Helper()
	if err := os.RemoveAll(to); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// refusesState runs a master with a state that it must not change.
func refusesState(t *testing.T, store *etcdstore.Store, config master.Config) error {
	t.Helper()
	all := func() map[string]string {
		values, _, err := store.Prefixed(t.Context(), "/")
		if err != nil {
			t.Fatal(err)
		}
		text := map[string]string{}
		for key, value := range values {
			if !strings.HasPrefix(key, "/master/") {
				text[key] = string(value)
			}
		}
		return text
	}
	before := all()
	r := mastertest.StandBy(t, store, config, nil)
	mastertest.Eventually(t, "the end or the leadership of the master", func() bool { return r.Ended() || r.Leading() })
	err := r.Stop()
	if !reflect.DeepEqual(all(), before) {
		t.Error("expected an unchanged store")
	}
	return err
}

// F18: a damaged, partial, newer or foreign state is refused with an action. Every stored byte is unchanged.
func TestStateThatIsRefused(t *testing.T) {
	mid := func(b []byte, change func([]byte) []byte) []byte { return change(append([]byte(nil), b...)) }
	tests := map[string]struct {
		damage func(t *testing.T, store *etcdstore.Store, state []byte)
		want   error
		words  string
	}{
		"cut short": {func(t *testing.T, store *etcdstore.Store, state []byte) {
			overwrite(t, store, "/task_queues", state[:len(state)/2])
		}, taskqueue.ErrDamaged, "bytes are left as they are"},
		"a flipped bit": {func(t *testing.T, store *etcdstore.Store, state []byte) {
			overwrite(t, store, "/task_queues", mid(state, func(b []byte) []byte { b[len(b)/2] ^= 4; return b }))
		}, taskqueue.ErrDamaged, "bytes are left as they are"},
		"empty": {func(t *testing.T, store *etcdstore.Store, _ []byte) {
			overwrite(t, store, "/task_queues", nil)
		}, taskqueue.ErrDamaged, "bytes are left as they are"},
		"gone": {func(t *testing.T, store *etcdstore.Store, _ []byte) {
			if _, err := store.Client().Delete(t.Context(), store.Prefix()+"/task_queues"); err != nil {
				t.Fatal(err)
			}
		}, taskqueue.ErrDamaged, "/task_queues is gone"},
		"newer": {func(t *testing.T, store *etcdstore.Store, _ []byte) {
			replaceState(t, store, func(s *taskqueue.Snapshot) { s.Format = taskqueue.Format + 1; s.Sets[0].Parts = 99 })
		}, taskqueue.ErrNewer, "start a newer master"},
		"does not add up": {func(t *testing.T, store *etcdstore.Store, _ []byte) {
			replaceState(t, store, func(s *taskqueue.Snapshot) { s.Sets[0].Cursor++ })
		}, taskqueue.ErrDamaged, "does not add up"},
		"another cluster": {func(t *testing.T, store *etcdstore.Store, _ []byte) {
			replaceState(t, store, func(s *taskqueue.Snapshot) { s.Cluster++ })
		}, master.ErrForeign, "--accept-cluster"},
		"a missing part": {func(t *testing.T, store *etcdstore.Store, _ []byte) {
			if _, err := store.Client().Delete(t.Context(), store.Prefix()+"/task_queues/tasks/", clientv3.WithPrefix()); err != nil {
				t.Fatal(err)
			}
		}, taskqueue.ErrDamaged, "snapshot"},
		"a part of another table": {func(t *testing.T, store *etcdstore.Store, _ []byte) {
			state, _, _ := mastertest.State(t, store)
			other, err := etcdstore.Encode(mastertest.Table(t, 8).Part(0, 8))
			if err != nil {
				t.Fatal(err)
			}
			overwrite(t, store, etcdstore.PartKey(state.Sets[0].ReportID, 0), other)
		}, taskqueue.ErrDamaged, "another digest"},
		"a negative number of parts": {func(t *testing.T, store *etcdstore.Store, _ []byte) {
			replaceState(t, store, func(s *taskqueue.Snapshot) { s.Sets[0].Parts = -1 })
		}, taskqueue.ErrDamaged, "-1 parts"},
		"too many parts": {func(t *testing.T, store *etcdstore.Store, _ []byte) {
			replaceState(t, store, func(s *taskqueue.Snapshot) { s.Sets[0].Parts = 1 << 40 })
		}, taskqueue.ErrDamaged, "snapshot"},
		"a damaged trainer": {func(t *testing.T, store *etcdstore.Store, _ []byte) {
			overwrite(t, store, "/trainers/a", []byte("{"))
		}, taskqueue.ErrDamaged, "roster"},
		"edited settings": {func(t *testing.T, store *etcdstore.Store, _ []byte) {
			value, _, err := store.Value(t.Context(), "/job")
			if err != nil {
				t.Fatal(err)
			}
			overwrite(t, store, "/job", []byte(strings.Replace(string(value), `"seed":"0"`, `"seed":"1"`, 1)))
		}, taskqueue.ErrDamaged, "edited"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			store := etcdtest.Store(t)
			r := mastertest.Start(t, store, master.Config{})
			r.Register(7)
			r.Join("a").Take(t)
			if err := r.Stop(); err != nil {
				t.Fatal(err)
			}
			_, encoded, _ := mastertest.State(t, store)
			tt.damage(t, store, encoded)
			if err := refusesState(t, store, master.Config{}); !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.words) {
				t.Errorf("expected %v with %q, got %v", tt.want, tt.words, err)
			}
		})
	}
}

// --accept-cluster continues with the state of another cluster and stores the new cluster id. The next master needs
// no flag, also if a commit was refused in between.
func TestAcceptCluster(t *testing.T) {
	store := etcdtest.Store(t)
	r := mastertest.Start(t, store, master.Config{})
	r.Register(7)
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	replaceState(t, store, func(s *taskqueue.Snapshot) { s.Cluster++ })
	r = mastertest.Start(t, store, master.Config{AcceptCluster: true})
	if _, err := r.PlainAsk(t.Context(), nil); err == nil { // reloads the stored state
		t.Error("event that panics: expected an error")
	}
	a := r.Join("a")
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	r = mastertest.Start(t, store, master.Config{})
	a.At(r).Take(t)
}

// F20: a master of another job is refused with the setting that differs. Settings that may change between terms are
// accepted.
func TestOtherSettings(t *testing.T) {
	store := etcdtest.Store(t)
	config := master.Config{Shuffle: true, Seed: 1, ChunksPerTask: 2}
	r := mastertest.Start(t, store, config)
	r.Register(7)
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	for setting, other := range map[string]func(*master.Config){
		"seed":            func(c *master.Config) { c.Seed = 2 },
		"shuffle":         func(c *master.Config) { c.Shuffle = false },
		"pass-mode":       func(c *master.Config) { c.Queue.Rolling = true },
		"commit-mode":     func(c *master.Config) { c.Queue.ExplicitCommit = true },
		"chunks-per-task": func(c *master.Config) { c.ChunksPerTask = 3 },
		"job":             func(c *master.Config) { c.Job = "another" },
	} {
		c := config
		other(&c)
		if err := refusesState(t, store, c); !errors.Is(err, master.ErrOtherJob) || !strings.Contains(err.Error(), setting) {
			t.Errorf("%s: got %v", setting, err)
		}
	}
	config.Trainers, config.Queue.Passes, config.ChunksPerTask = 3, 5, 0
	mastertest.Start(t, store, config)
}

// F12: if two masters start together, exactly one leads.
func TestOneLeads(t *testing.T) {
	job := etcdtest.NewJob(t)
	var masters []*mastertest.Running
	for range 4 {
		masters = append(masters, mastertest.StandBy(t, etcdtest.Open(t, etcdtest.Endpoint(t), job), master.Config{}, nil))
	}
	leading := func() (n int) {
		for _, r := range masters {
			if r.Leading() {
				n++
			}
		}
		return n
	}
	mastertest.Eventually(t, "one leader", func() bool { return leading() > 0 })
	for range 100 {
		if n := leading(); n != 1 {
			t.Fatalf("leaders: found %d, expected 1", n)
		}
		time.Sleep(time.Millisecond) // no second leader may appear in this time
	}
}

// F16: a master that is stopped releases the lock immediately.
func TestStoppedMasterResigns(t *testing.T) {
	job := etcdtest.NewJob(t)
	first := mastertest.Start(t, etcdtest.Open(t, etcdtest.Endpoint(t), job), master.Config{})
	first.Register(5)
	task := first.Join("a").Take(t)
	second := mastertest.StandBy(t, etcdtest.Open(t, etcdtest.Endpoint(t), job), master.Config{}, nil)
	mastertest.Eventually(t, "the queued standby", func() bool {
		bids, _, err := second.Store.Prefixed(t.Context(), "/master/lock/")
		return err == nil && len(bids) == 2 && second.Warm() // a standby without the state takes over without a holddown
	})
	began := time.Now()
	if err := first.Stop(); err != nil {
		t.Error(err)
	}
	second.AwaitLeading()
	if took := time.Since(began); took > mastertest.LeaseTTL/2 {
		t.Errorf("next leader: led after %v, expected a released lock", took)
	}
	if forced, _, err := second.Store.Value(t.Context(), "/master/holddown"); err != nil || forced != nil {
		t.Errorf("expected a resignation, found a takeover of %q, %v", forced, err)
	}
	if tasks, err := second.PendingTasks(t.Context()); err != nil || len(tasks) != 1 || tasks[0].Token != task {
		t.Errorf("pending: %+v, %v", tasks, err)
	}
	if addr, err := second.Store.MasterAddr(t.Context()); err != nil || addr.Addr != second.Addr { // F14
		t.Errorf("announced address: found %+v, %v; expected %s", addr, err, second.Addr)
	}
}
