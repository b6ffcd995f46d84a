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

// depose revokes the lease of whoever holds the lock, as a stand-by does that believes it
// dead.
func depose(t *testing.T, store *etcdstore.Store) {
	t.Helper()
	lock, err := store.Client().Get(t.Context(), store.Prefix()+"/master/lock/", clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend), clientv3.WithLimit(1))
	if err != nil || len(lock.Kvs) != 1 {
		t.Fatalf("who holds the lock? %v, %v", lock, err)
	}
	if _, err := store.Client().Revoke(t.Context(), clientv3.LeaseID(lock.Kvs[0].Lease)); err != nil {
		t.Fatal(err)
	}
}

// still is what of the state outlives a term.
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

// A master that loses its lock answers nobody: callers hear it at once, connections are
// closed, and the stand-by leads the same job on.
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
		first.Join("x").Take(t) // each takes the place of the one before
	}
	if err := first.Fail(t.Context(), b.Ordinal, b.Incarnation, taskqueue.Token{}, "nothing that there is"); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Overview(t.Context()); !errors.Is(err, master.ErrNotLeader) || second.Leading() {
		t.Fatalf("a stand-by answers: %v", err)
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
	depose(t, second.Store)
	second.AwaitLeading()
	if took := time.Since(began); took > time.Second {
		t.Errorf("the stand-by led after %v", took)
	}
	mastertest.Eventually(t, "the connection is closed", func() bool {
		return errors.Is(client.Call("RPCServer.ReportDataset", []string{}, new(int)), rpc.ErrShutdown)
	})
	o, q, p := still(t, second)
	o.Commit = overview.Commit // ticks may have been committed since
	if !reflect.DeepEqual(o, overview) {
		t.Errorf("the overview was\n%+v\nand is\n%+v", overview, o)
	}
	if !reflect.DeepEqual(q, queues) || !reflect.DeepEqual(p, tasks) {
		t.Errorf("the queues were\n%+v\n%+v\nand are\n%+v\n%+v", queues, tasks, q, p)
	}
	again := *request // F2, F21: the same request to the next master has the same answer
	if got, err := second.Next(t.Context(), &again); err != nil || got.Assignment == nil || !reflect.DeepEqual(got.Assignment.Task, reply.Assignment.Task) {
		t.Errorf("the next master answers %+v, %v; the one before %+v", got, err, reply)
	}
	if got, err := second.Next(t.Context(), a.Request(nil, []taskqueue.Token{finished})); err != nil || got.Finishes[0] != taskqueue.AlreadyCounted { // F22
		t.Errorf("a finish that the master before counted: %+v, %v", got, err)
	}
	mastertest.Eventually(t, "the deposed one waits its turn", func() bool { return !first.Leading() })
	mastertest.Verify(t, second.Store)
}

// A caller that waits for a task hears of the lost lock at once.
func TestLostLockWakesThoseWhoWait(t *testing.T) {
	store := etcdtest.Store(t)
	r := mastertest.Start(t, store, master.Config{})
	waiting := asks(t, r.Join("a"))
	mastertest.Eventually(t, "it waits", func() bool { return r.Parked(t) == 1 })
	began := time.Now()
	depose(t, store)
	if got := <-waiting; !errors.Is(got.err, master.ErrNotLeader) || time.Since(began) > time.Second {
		t.Errorf("after %v: %+v", time.Since(began), got)
	}
	r.AwaitLeading()
}

// F1, F4: a master that was cut off while it wrote is fenced when the write lands at last;
// its caller is told that it does not lead, and the next master's state stands.
func TestPausedLeaderIsFenced(t *testing.T) {
	paused, proxy, direct := behind(t, master.Config{})
	paused.Register(5)
	a := paused.Join("a")
	proxy.HoldRequests(true)
	answered := asks(t, a)
	mastertest.Eventually(t, "the commit is on its way", func() bool { return proxy.HeldRequests() > largerThanAKeepAlive })
	next := mastertest.StandBy(t, direct, master.Config{}, nil)
	next.AwaitLeading() // when the lease has run out
	task := next.Join("b").Take(t)
	_, before, revision := mastertest.State(t, direct)

	proxy.HoldRequests(false)
	if got := <-answered; !errors.Is(got.err, master.ErrNotLeader) || got.reply.Assignment != nil {
		t.Errorf("the paused one answered %+v", got)
	}
	mastertest.Eventually(t, "it knows that it does not lead", func() bool { return !paused.Leading() })
	if _, after, now := mastertest.State(t, direct); now != revision || string(after) != string(before) {
		t.Errorf("the state moved from revision %d to %d", revision, now)
	}
	if _, err := next.Next(t.Context(), &taskqueue.Request{Trainer: 99}); !errors.Is(err, master.ErrRejoin) {
		t.Error(err)
	}
	if task.Position != 0 {
		t.Errorf("the next master began at position %d", task.Position)
	}
	mastertest.Verify(t, direct)
}

// The echo of a commit that a deposed master does not know yet is no proof that the store
// went back in time: it stands by.
func TestEchoAtADeposedMaster(t *testing.T) {
	deposed, proxy, direct := behind(t, master.Config{})
	deposed.Register(5)
	a := deposed.Join("a")
	proxy.HoldReplies(true) // it does not hear of its end
	depose(t, direct)
	next := mastertest.StandBy(t, direct, master.Config{}, nil)
	next.AwaitLeading()
	reply, err := a.At(next).Next(t.Context())
	if err != nil || !deposed.Leading() {
		t.Fatalf("%v; the deposed one believes that it leads: %v", err, deposed.Leading())
	}
	request := a.Request([]taskqueue.Token{reply.Assignment.Task.Token}, nil)
	request.SeenCommit, request.SeenProof = reply.Commit, reply.CommitProof
	answered := make(chan error, 1)
	go func() {
		_, err := deposed.Next(t.Context(), request)
		answered <- err
	}()
	mastertest.Eventually(t, "the question is asked", func() bool { return proxy.HeldReplies() > 0 })
	proxy.HoldReplies(false)
	if err := <-answered; !errors.Is(err, master.ErrNotLeader) || errors.Is(err, master.ErrRolledBack) {
		t.Errorf("the deposed one says %v", err)
	}
	if err := next.Stop(); err != nil {
		t.Fatal(err)
	}
	deposed.AwaitLeading() // it did not give up
}

// F10: etcd restored from an old backup, under the same token: the first trainer that echoes
// a later commit stops the leader, and nothing more is written.
func TestStoreThatWentBackInTime(t *testing.T) {
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
		moved.Take(t) // and the one before is given back
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
	if _, err := r.Next(t.Context(), stranger); errors.Is(err, master.ErrRolledBack) {
		t.Error("the echo of another job stopped the leader")
	}
	for name, proof := range map[string][]byte{"none": nil, "made up": make([]byte, len(reply.CommitProof)), "of another commit": reply.CommitProof, "cut short": reply.CommitProof[:1]} {
		forged := a.Request(nil, nil)
		forged.SeenCommit, forged.SeenProof = reply.Commit+100, proof
		if _, err := r.Next(t.Context(), forged); errors.Is(err, master.ErrRolledBack) {
			t.Errorf("a forged commit number stopped the leader; proof: %s", name)
		}
	}
	_, before, revision := mastertest.State(t, store)
	request := a.Request([]taskqueue.Token{reply.Assignment.Task.Token}, []taskqueue.Token{task})
	request.SeenCommit, request.SeenProof = reply.Commit, reply.CommitProof
	if _, err := r.Next(t.Context(), request); !errors.Is(err, master.ErrRolledBack) || !strings.Contains(err.Error(), "backup") {
		t.Fatalf("the echo of a commit that the store does not know: %v", err)
	}
	if err := r.Wait(); !errors.Is(err, master.ErrRolledBack) {
		t.Errorf("the master ended with %v", err)
	}
	if _, after, now := mastertest.State(t, store); now != revision || string(after) != string(before) {
		t.Errorf("the state moved from revision %d to %d", revision, now)
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

// refusesState runs a master over a state that it must not touch.
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
	mastertest.Eventually(t, "the master ends, or leads", func() bool { return r.Ended() || r.Leading() })
	err := r.Stop()
	if !reflect.DeepEqual(all(), before) {
		t.Error("what is stored was changed")
	}
	return err
}

// F18: a state that is damaged, partial, newer, or of another cluster is refused with what
// to do; every byte of it stays.
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
		"of another cluster": {func(t *testing.T, store *etcdstore.Store, _ []byte) {
			replaceState(t, store, func(s *taskqueue.Snapshot) { s.Cluster++ })
		}, master.ErrForeign, "--accept-cluster"},
		"a part is gone": {func(t *testing.T, store *etcdstore.Store, _ []byte) {
			if _, err := store.Client().Delete(t.Context(), store.Prefix()+"/task_queues/tasks/", clientv3.WithPrefix()); err != nil {
				t.Fatal(err)
			}
		}, taskqueue.ErrDamaged, "snapshot"},
		"a part is another's": {func(t *testing.T, store *etcdstore.Store, _ []byte) {
			state, _, _ := mastertest.State(t, store)
			other, err := etcdstore.Encode(mastertest.Table(t, 8).Part(0, 8))
			if err != nil {
				t.Fatal(err)
			}
			overwrite(t, store, etcdstore.PartKey(state.Sets[0].ReportID, 0), other)
		}, taskqueue.ErrDamaged, "another digest"},
		"fewer parts than none": {func(t *testing.T, store *etcdstore.Store, _ []byte) {
			replaceState(t, store, func(s *taskqueue.Snapshot) { s.Sets[0].Parts = -1 })
		}, taskqueue.ErrDamaged, "-1 parts"},
		"more parts than there are": {func(t *testing.T, store *etcdstore.Store, _ []byte) {
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

// --accept-cluster goes on with the state of another cluster, and says so in it: the next
// master needs no flag, also when a commit was refused in between.
func TestAcceptCluster(t *testing.T) {
	store := etcdtest.Store(t)
	r := mastertest.Start(t, store, master.Config{})
	r.Register(7)
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	replaceState(t, store, func(s *taskqueue.Snapshot) { s.Cluster++ })
	r = mastertest.Start(t, store, master.Config{AcceptCluster: true})
	if _, err := r.Heartbeat(t.Context(), nil); err == nil { // goes back to the stored state
		t.Error("an event that panics was taken")
	}
	a := r.Join("a")
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	r = mastertest.Start(t, store, master.Config{})
	a.At(r).Take(t)
}

// F20: another job's master is refused, and told which setting differs; the settings that
// may change from term to term may.
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

// F12: of two masters that start together exactly one leads.
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
	mastertest.Eventually(t, "one leads", func() bool { return leading() > 0 })
	for range 100 {
		if n := leading(); n != 1 {
			t.Fatalf("%d lead", n)
		}
		time.Sleep(time.Millisecond)
	}
}

// F16: a master that is stopped hands the lock over at once.
func TestStoppedMasterResigns(t *testing.T) {
	job := etcdtest.NewJob(t)
	first := mastertest.Start(t, etcdtest.Open(t, etcdtest.Endpoint(t), job), master.Config{})
	first.Register(5)
	task := first.Join("a").Take(t)
	second := mastertest.StandBy(t, etcdtest.Open(t, etcdtest.Endpoint(t), job), master.Config{}, nil)
	mastertest.Eventually(t, "the stand-by has queued", func() bool {
		bids, _, err := second.Store.Prefixed(t.Context(), "/master/lock/")
		return err == nil && len(bids) == 2
	})
	began := time.Now()
	if err := first.Stop(); err != nil {
		t.Error(err)
	}
	second.AwaitLeading()
	if took := time.Since(began); took > mastertest.LeaseTTL/2 {
		t.Errorf("the next one led after %v: the lease ran out, it was not given back", took)
	}
	if forced, _, err := second.Store.Value(t.Context(), "/master/holddown"); err != nil || forced != nil {
		t.Errorf("a take-over was forced of %q, %v: nobody resigned", forced, err)
	}
	if tasks, err := second.PendingTasks(t.Context()); err != nil || len(tasks) != 1 || tasks[0].Token != task {
		t.Errorf("pending: %+v, %v", tasks, err)
	}
	if addr, err := second.Store.MasterAddr(t.Context()); err != nil || addr.Addr != second.Addr { // F14
		t.Errorf("announced is %+v, %v; want %s", addr, err, second.Addr)
	}
}
