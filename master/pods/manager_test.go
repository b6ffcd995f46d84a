package pods_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/component"
	"trainmaster/master/mastertest"
	"trainmaster/master/podmanager"
	"trainmaster/master/pods"
	"trainmaster/taskqueue"
)

// cluster is a cluster whose pods the test changes. The package kubernetes is tested with the API, and e2e/k8s with a real cluster.
type cluster struct {
	mu      sync.Mutex
	pods    map[string]podmanager.Pod
	creates map[string]int // calls by name
	uids    int
	down    error // of all calls
	hidden  bool  // a created pod is not observed
	grace   bool  // a deleted pod does not end
	changed func()
	stored  func() bool // whether the state is stored, at each create
	early   bool        // a create came before its state
}

func newCluster() *cluster {
	return &cluster{pods: map[string]podmanager.Pod{}, creates: map[string]int{}, changed: func() {}}
}

func (c *cluster) Watch(ctx context.Context, changed func()) error {
	c.mu.Lock()
	c.changed = changed
	c.mu.Unlock()
	changed()
	<-ctx.Done()
	return context.Cause(ctx)
}

func (c *cluster) Pods() (list []podmanager.Pod, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hidden {
		return nil, true
	}
	for _, name := range slices.Sorted(maps.Keys(c.pods)) {
		list = append(list, c.pods[name])
	}
	return list, true
}

func (c *cluster) Problem() string { return "" }

func (c *cluster) Requests() map[podmanager.Request]int64 {
	return map[podmanager.Request]int64{{Verb: "post", Code: 201}: 2}
}

func (c *cluster) List(context.Context) ([]podmanager.Pod, error) {
	list, _ := c.Pods()
	return list, c.down
}

func (c *cluster) Note(context.Context, string, string, bool) error { return nil }

func (c *cluster) Create(_ context.Context, a podmanager.Action, instance string) (podmanager.Pod, error) {
	isStored := c.stored == nil || c.stored()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.early = c.early || !isStored
	c.creates[a.Name]++
	if c.down != nil {
		return podmanager.Pod{}, c.down
	}
	p, ok := c.pods[a.Name]
	if !ok {
		c.uids++
		p = podmanager.Pod{Name: a.Name, UID: fmt.Sprint(c.uids), Instance: instance, Role: a.Role, Index: a.Index, Attempt: a.Attempt, Rank: a.Rank, Size: a.Size, Phase: podmanager.Running}
		c.pods[a.Name] = p
	}
	return p, nil
}

func (c *cluster) Delete(_ context.Context, a podmanager.Action) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pods[a.Name]; p.UID == a.UID && c.grace {
		p.Deleting = true
		c.pods[a.Name] = p
	} else if p.UID == a.UID {
		delete(c.pods, a.Name)
	}
	return c.down
}

func (c *cluster) Resize(_ context.Context, a podmanager.Action) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pods[a.Name]; p.UID == a.UID && c.down == nil {
		p.Memory = a.Memory
		c.pods[a.Name] = p
	}
	return c.down
}

// set changes a pod.
func (c *cluster) set(name string, edit func(*podmanager.Pod)) {
	c.mu.Lock()
	p := c.pods[name]
	edit(&p)
	c.pods[name] = p
	changed := c.changed
	c.mu.Unlock()
	changed()
}

func (c *cluster) has(names ...string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Equal(slices.Sorted(maps.Keys(c.pods)), names)
}

func (c *cluster) names() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.pods))
}

func ended(code int) func(*podmanager.Pod) {
	return func(p *podmanager.Pod) {
		p.Phase, p.Exit = podmanager.Failed, &podmanager.Exit{Code: code, Message: "the last words"}
	}
}

// start starts a master that keeps pods.
func start(t *testing.T, store *etcdstore.Store, c *cluster, config podmanager.Config) (*mastertest.Running, *pods.Manager) {
	t.Helper()
	r, m := standBy(t, store, c, config)
	r.AwaitLeading()
	return r, m
}

// standBy is start without the wait for the lock.
func standBy(t *testing.T, store *etcdstore.Store, c *cluster, config podmanager.Config) (*mastertest.Running, *pods.Manager) {
	t.Helper()
	config.Job, config.OOMFactor = "j", 1.5
	m := pods.New(pods.Config{Pods: config, Clean: podmanager.CleanRunning, Cluster: c, Store: store})
	return mastertest.StandBy(t, store, master.Config{Components: []component.Component{m}, Pods: m}, nil), m
}

func workers(n int) podmanager.Config {
	return podmanager.Config{Workers: podmanager.Group{Count: n, Min: n}, MaxRelaunch: 1}
}

func TestStateIsStoredBeforeAPodIsCreated(t *testing.T) {
	store := etcdtest.Store(t)
	c := newCluster()
	c.stored = func() bool {
		value, _, err := store.Value(context.Background(), podmanager.Key)
		return err == nil && value != nil
	}
	start(t, store, c, workers(2))
	mastertest.Eventually(t, "two pods", func() bool { return c.has("j-worker-0-0", "j-worker-1-0") })
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.early {
		t.Error("a pod was created before the state was stored")
	}
}

func TestNextLeaderCreatesNoPodTwice(t *testing.T) {
	store := etcdtest.Store(t)
	c := newCluster()
	r, _ := start(t, store, c, workers(2))
	mastertest.Eventually(t, "two pods", func() bool { return c.has("j-worker-0-0", "j-worker-1-0") })
	c.set("j-worker-1-0", ended(1))
	mastertest.Eventually(t, "another attempt", func() bool { return c.has("j-worker-0-0", "j-worker-1-0", "j-worker-1-1") })
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	c.set("j-worker-1-1", ended(1)) // beyond the limit that the first leader has charged
	next, _ := standBy(t, store, c, workers(2))
	mastertest.Eventually(t, "the end of the job", next.Ended)
	if err := next.Wait(); !errors.Is(err, master.ErrJobFailed) || !strings.Contains(err.Error(), "j-worker-1-1 gave up after 2 charged relaunches: exit code 1: the last words") {
		t.Errorf("expected the end of the job, found %v", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, n := range c.creates {
		if n != 1 {
			t.Errorf("%s: expected 1 create, found %d", name, n)
		}
	}
}

func TestEndOfAPodEndsItsSessionImmediately(t *testing.T) {
	for code, losses := range map[int]int{137: 0, 1: 1} {
		t.Run(fmt.Sprint("exit code ", code), func(t *testing.T) { endOfAPod(t, code, losses) })
	}
}

func endOfAPod(t *testing.T, code, losses int) {
	store := etcdtest.Store(t)
	c := newCluster()
	r, _ := start(t, store, c, workers(2))
	mastertest.Eventually(t, "two pods", func() bool { return c.has("j-worker-0-0", "j-worker-1-0") })
	r.Register(3)
	lost, other := r.Join("j-worker-0-0"), r.Join("j-worker-1-0")
	task := lost.Take(t, lost.Take(t)) // its first task would not be charged
	second := other.Take(t)
	began := time.Now()
	c.set("j-worker-0-0", ended(code))
	again := other.Take(t, second)
	if took := time.Since(began); again.Position != task.Position || took > 4*time.Second {
		t.Errorf("expected task %v within the grace of 5 s, found %v after %v", task, again, took)
	}
	tasks, err := r.Tasks(t.Context())
	if err != nil || len(tasks.Live) != 1 || tasks.Live[0].Losses != losses {
		t.Errorf("expected one task with %d losses, found %+v, %v", losses, tasks.Live, err)
	}
}

// F293: the end of a pod of a group ends the session of its trainer, whose pod has another rank and still runs. The task is charged
// as the end of the group is.
func TestEndOfAGroupEndsTheSessionOfItsTrainer(t *testing.T) {
	store := etcdtest.Store(t)
	c := newCluster()
	c.grace = true
	config := workers(2)
	config.Workers.Size = 2
	r, m := start(t, store, c, config)
	mastertest.Eventually(t, "two groups", func() bool { return c.has("j-worker-0-0", "j-worker-0-0-1", "j-worker-1-0", "j-worker-1-0-1") })
	r.Register(3)
	lost, other := r.Join("j-worker-0-0"), r.Join("j-worker-1-0")
	task := lost.Take(t, lost.Take(t)) // a trainer that has finished no task is not charged
	second := other.Take(t)
	began := time.Now()
	c.set("j-worker-0-0-1", ended(1))
	again := other.Take(t, second)
	if took := time.Since(began); again.Position != task.Position || took > 4*time.Second {
		t.Errorf("expected task %v within the grace of 5 s, found %v after %v", task, again, took)
	}
	if tasks, err := r.Tasks(t.Context()); err != nil || len(tasks.Live) != 1 || tasks.Live[0].Losses != 1 {
		t.Errorf("expected one task with a charge, found %+v, %v", tasks.Live, err)
	}
	mastertest.Eventually(t, "a deletion", func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.pods["j-worker-0-0"].Deleting })
	s, err := m.Summary()
	if err != nil || len(s.Pods) != 4 || s.Pods[1].Name != "j-worker-0-1-1" || s.Pods[1].Rank != 1 || s.Pods[1].Phase != pods.Waiting || s.Pods[3].Phase != "Running" {
		t.Errorf("expected a waiting and a running group, found %+v, %v", s.Pods, err)
	}
	if g := s.Groups[0]; g.Goal != 2 || g.Size != 2 || g.Running != 1 || g.Pending != 1 {
		t.Errorf("expected 1 of 2 groups, found %+v", g)
	}
	c.set("j-worker-0-0", ended(143))
	mastertest.Eventually(t, "the next attempt", func() bool {
		return c.has("j-worker-0-0", "j-worker-0-0-1", "j-worker-0-1", "j-worker-0-1-1", "j-worker-1-0", "j-worker-1-0-1")
	})
}

// F284: the goal is stored before the call returns, outlives the leader, and its limits are refused with their reason.
func TestNumberOfWorkersOutlivesTheLeader(t *testing.T) {
	store := etcdtest.Store(t)
	c := newCluster()
	config := podmanager.Config{Workers: podmanager.Group{Count: 4, Min: 1}, MaxRelaunch: 1}
	r, m := start(t, store, c, config)
	mastertest.Eventually(t, "four pods", func() bool { return len(c.names()) == 4 })
	for _, n := range []int{5, 2000} {
		if _, err := m.ScaleWorkers(t.Context(), n); !errors.Is(err, pods.ErrLimits) || !strings.Contains(err.Error(), fmt.Sprintf("expected 1 to 4, the limits of --workers, found %d", n)) {
			t.Errorf("%d workers: found %v", n, err)
		}
	}
	g, err := m.ScaleWorkers(t.Context(), 2) // the component leads: it has created pods
	if err != nil || g.Goal != 2 || g.Min != 1 || g.Max != 4 {
		t.Fatalf("found %+v, %v", g, err)
	}
	value, _, err := store.Value(t.Context(), podmanager.Key)
	if err != nil || !strings.Contains(string(value), `"worker":{"given":4,"count":2}`) {
		t.Errorf("expected the number in etcd, found %s, %v", value, err)
	}
	mastertest.Eventually(t, "two pods", func() bool { return c.has("j-worker-0-0", "j-worker-1-0") })
	mastertest.Eventually(t, "the end of the change", func() bool { g, err := m.ScaleWorkers(t.Context(), 0); return err == nil && g.Done() && g.Running == 2 })
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := m.ScaleWorkers(t.Context(), 3); !errors.Is(err, master.ErrNotLeader) {
		t.Errorf("a master that does not lead: found %v", err)
	}
	_, m = start(t, store, c, config)
	mastertest.Eventually(t, "the number of the next leader", func() bool { g, err = m.ScaleWorkers(t.Context(), 0); return err == nil })
	if g.Goal != 2 {
		t.Errorf("next leader: expected 2 workers, found %+v", g)
	}
	if _, err = m.ScaleWorkers(t.Context(), 3); err != nil {
		t.Error(err)
	}
	mastertest.Eventually(t, "a third pod", func() bool { return len(c.names()) == 3 })
}

// F321: a number of the annotation that an earlier leader has applied does not undo master scale.
func TestAnnotatedNumberIsAppliedOnceByAllLeaders(t *testing.T) {
	store := etcdtest.Store(t)
	c := newCluster()
	config := podmanager.Config{Workers: podmanager.Group{Count: 4, Begin: 2, Min: 1}, MaxRelaunch: 1}
	var m *pods.Manager
	follow := func(wanted, want int) {
		t.Helper()
		mastertest.Eventually(t, "a leader", func() bool { return m.FollowWorkers(t.Context(), wanted) == nil })
		if g, err := m.ScaleWorkers(t.Context(), 0); err != nil || g.Goal != want {
			t.Errorf("annotation %d: expected %d workers, found %+v, %v", wanted, want, g, err)
		}
	}
	r, m := start(t, store, c, config)
	follow(3, 3)
	if _, err := m.ScaleWorkers(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	follow(3, 1)
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := m.FollowWorkers(t.Context(), 3); !errors.Is(err, master.ErrNotLeader) {
		t.Errorf("a master that does not lead: found %v", err)
	}
	_, m = start(t, store, c, config)
	follow(3, 1)
	follow(2, 2)
	follow(3, 3)
	if err := m.FollowWorkers(t.Context(), 5); !errors.Is(err, pods.ErrLimits) {
		t.Errorf("5 workers: found %v", err)
	}
}

func TestFixedNumberOfWorkersIsNamed(t *testing.T) {
	for count, want := range map[int]string{
		0: "expected --workers MIN:MAX of the master, found a job without workers",
		2: "expected 2, the fixed number of --workers, found 3: start the master with --workers MIN:MAX",
	} {
		if err := workers(count).CheckWorkers(3); !errors.Is(err, pods.ErrLimits) || !strings.Contains(err.Error(), want) {
			t.Errorf("expected %q, found %v", want, err)
		}
	}
}

// F285: a trainer that could not reach the master costs its task nothing.
func TestUnreachableMasterCostsNothing(t *testing.T) {
	store := etcdtest.Store(t)
	c := newCluster()
	config := workers(2)
	config.MaxRelaunch = 0
	r, _ := start(t, store, c, config)
	mastertest.Eventually(t, "two pods", func() bool { return c.has("j-worker-0-0", "j-worker-1-0") })
	r.Register(2)
	lost, other := r.Join("j-worker-0-0"), r.Join("j-worker-1-0")
	lost.Take(t)
	second := other.Take(t)
	c.set("j-worker-0-0", ended(75))
	other.Take(t, second)
	tasks, err := r.Tasks(t.Context())
	if err != nil || len(tasks.Live) != 1 || tasks.Live[0].Losses != 0 {
		t.Errorf("expected one task without a charge, found %+v, %v", tasks.Live, err)
	}
	mastertest.Eventually(t, "another attempt", func() bool { return c.has("j-worker-0-0", "j-worker-0-1", "j-worker-1-0") })
}

// F286: the index of a parameter server whose pod has ended is free, long before its lease ends. A server that renews its lease keeps its index, and
// so does another server.
func TestIndexOfAnEndedServerIsFree(t *testing.T) {
	job := etcdtest.NewJob(t)
	store := etcdtest.Open(t, etcdtest.Endpoint(t), job)
	if _, err := store.SetDesiredIfAbsent(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	claim := func(address string) *etcdstore.Store {
		server := etcdtest.Open(t, etcdtest.Endpoint(t), job)
		if _, err := server.ClaimPS(t.Context(), address+":9000", time.Hour, nil); err != nil {
			t.Fatal(err)
		}
		return server
	}
	dead, other := claim("10.0.0.1"), claim("10.0.0.2")
	renewed := claim("10.0.0.3")
	dead.Close()
	other.Close()
	c := newCluster()
	roster := store.FollowServers(t.Context())
	config := podmanager.Config{Servers: podmanager.Group{Count: 3}, MaxRelaunch: 1, Job: "j", OOMFactor: 1.5}
	m := pods.New(pods.Config{Pods: config, Clean: podmanager.CleanRunning, Cluster: c, Store: store, Registry: roster})
	r := mastertest.StandBy(t, store, master.Config{Components: []component.Component{m}, Pods: m}, nil)
	r.AwaitLeading()
	mastertest.Eventually(t, "three pods", func() bool { return len(c.names()) == 3 })
	for i, name := range c.names() {
		c.set(name, func(p *podmanager.Pod) { p.Address = fmt.Sprintf("10.0.0.%d", i+1) })
	}
	for _, name := range []string{"j-ps-0-0", "j-ps-2-0"} { // the process of the second pod renews its claim
		c.set(name, ended(137))
	}
	registered := func() []string { list, _ := store.RegisteredServers(t.Context()); return list }
	mastertest.Eventually(t, "a free index", func() bool { return slices.Equal(registered(), []string{"", "10.0.0.2:9000", "10.0.0.3:9000"}) })
	renewed.Close()
}

// F289: the pod of a trainer that hangs beyond the hard deadline of its task is deleted, and its relaunch is charged.
func TestPodOfAHungTrainerIsReplaced(t *testing.T) {
	store := etcdtest.Store(t)
	c := newCluster()
	config := workers(1)
	config.Job, config.OOMFactor = "j", 1.5
	m := pods.New(pods.Config{Pods: config, Clean: podmanager.CleanRunning, Cluster: c, Store: store})
	const timeout = 100 * time.Millisecond
	r := mastertest.StandBy(t, store, master.Config{
		Components: []component.Component{m}, Pods: m, Queue: taskqueue.Options{FirstTimeout: timeout, TimeoutMin: timeout, TimeoutMax: timeout},
	}, nil)
	r.AwaitLeading()
	mastertest.Eventually(t, "a pod", func() bool { return c.has("j-worker-0-0") })
	r.Register(2)
	r.Join("j-worker-0-0").Take(t)
	mastertest.Eventually(t, "another attempt", func() bool { return c.has("j-worker-0-1") })
	if s, err := m.Summary(); err != nil || s.Pods[0].Charged != 1 || !strings.Contains(s.Pods[0].Reason, "hangs beyond the hard deadline") {
		t.Errorf("expected one charge with its reason, found %+v, %v", s.Pods, err)
	}
}

// measures posts the memory of a parameter server.
type measures struct{ used func() uint64 }

func (measures) Name() string                                  { return "measures" }
func (measures) Init(context.Context) error                    { return nil }
func (measures) Prepare(context.Context, component.Term) error { return nil }
func (m measures) Run(ctx context.Context, t component.Term) error {
	for ctx.Err() == nil {
		t.Post(component.ServerMemory{Used: map[string]uint64{"10.0.0.1:9000": m.used()}})
		t.Clock().Sleep(ctx, 10*time.Millisecond)
	}
	return context.Cause(ctx)
}

// F290: a parameter server near its limit gets more memory in place. A refusal is shown, and the request is repeated.
func TestServerNearItsLimitIsResized(t *testing.T) {
	const mib = 1 << 20
	store := etcdtest.Store(t)
	c := newCluster()
	var used atomic.Uint64
	used.Store(80 * mib)
	config := podmanager.Config{Servers: podmanager.Group{Count: 1, Memory: 100 * mib}, MaxRelaunch: 1, Job: "j", OOMFactor: 1.5}
	m := pods.New(pods.Config{Pods: config, Clean: podmanager.CleanRunning, Cluster: c, Store: store})
	r := mastertest.StandBy(t, store, master.Config{Components: []component.Component{m, measures{used.Load}}, Pods: m}, nil)
	r.AwaitLeading()
	mastertest.Eventually(t, "a pod", func() bool { return c.has("j-ps-0-0") })
	c.set("j-ps-0-0", func(p *podmanager.Pod) { p.Address, p.Memory = "10.0.0.1", 100*mib })
	c.mu.Lock()
	c.down = errors.New("pods \"j-ps-0-0\" is forbidden: node capacity exceeded")
	c.mu.Unlock()
	used.Store(90 * mib)
	mastertest.Eventually(t, "the refusal", func() bool {
		s, err := m.Summary()
		return err == nil && s.Pods[0].Memory == 150*mib && strings.Contains(s.Pods[0].Reason, "node capacity exceeded")
	})
	c.mu.Lock()
	c.down = nil
	c.mu.Unlock()
	mastertest.Eventually(t, "the resize", func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.pods["j-ps-0-0"].Memory == 150*mib })
}

func TestRefusedCreateIsRepeatedAndShown(t *testing.T) {
	store := etcdtest.Store(t)
	c := newCluster()
	c.down = errors.New("exceeded quota: two pods")
	_, m := start(t, store, c, workers(1))
	mastertest.Eventually(t, "the reason", func() bool {
		s, err := m.Summary()
		return err == nil && len(s.Pods) == 1 && s.Pods[0].Phase == pods.Waiting && s.Pods[0].Reason == "exceeded quota: two pods"
	})
	c.mu.Lock()
	c.down = nil
	c.mu.Unlock()
	mastertest.Eventually(t, "the pod", func() bool { return c.has("j-worker-0-0") })
}

// F364: a template that the cluster refuses as invalid fails a new job with its words. A job that has been led before can have finished tasks, and
// continues.
func TestInvalidTemplateFailsANewJob(t *testing.T) {
	invalid := fmt.Errorf("%w: spec.containers[0].env[0].name: Invalid value", podmanager.ErrInvalid)
	c := newCluster()
	c.down = invalid
	r, _ := standBy(t, etcdtest.Store(t), c, workers(2))
	mastertest.Eventually(t, "the end of the job", r.Ended)
	if err := r.Wait(); !errors.Is(err, master.ErrJobFailed) || !strings.Contains(err.Error(), ": the cluster refuses the pod as invalid: spec.containers[0].env[0].name") {
		t.Errorf("expected the end of the job, found %v", err)
	}

	store := etcdtest.Store(t)
	c = newCluster()
	r, _ = start(t, store, c, workers(1))
	mastertest.Eventually(t, "the pod", func() bool { return c.has("j-worker-0-0") })
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	clear(c.pods)
	c.down = invalid
	c.mu.Unlock()
	r, m := start(t, store, c, workers(1))
	mastertest.Eventually(t, "the reason", func() bool {
		s, err := m.Summary()
		return err == nil && s.Pods[0].Reason == invalid.Error()
	})
	c.mu.Lock()
	c.down = nil
	c.mu.Unlock()
	mastertest.Eventually(t, "the pod", func() bool { return c.has("j-worker-0-0") })
	if r.Ended() {
		t.Error("expected the job to continue")
	}
}

func TestCreatedPodIsNotCreatedAgainBeforeItIsObserved(t *testing.T) {
	store := etcdtest.Store(t)
	c := newCluster()
	c.hidden = true
	start(t, store, c, workers(1))
	mastertest.Eventually(t, "the create", func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.creates["j-worker-0-0"] == 1 })
	for range 20 { // each is another round
		c.changed()
		time.Sleep(5 * time.Millisecond) // let the round end
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.creates["j-worker-0-0"]; n != 1 {
		t.Errorf("expected 1 create, found %d", n)
	}
}

func TestCleanDeletesServersAfterWorkersHaveCompleted(t *testing.T) {
	c := newCluster()
	for i, p := range []podmanager.Pod{{Role: podmanager.Worker, Phase: podmanager.Running}, {Role: podmanager.Server, Phase: podmanager.Running}} {
		p.Name, p.UID = podmanager.Name("j", p.Role, 0, 0), fmt.Sprint("u", i)
		c.pods[p.Name] = p
	}
	m := pods.New(pods.Config{Clean: podmanager.CleanRunning, Cluster: c})
	done := make(chan error, 1)
	go func() { done <- m.Clean(context.Background()) }()
	time.Sleep(700 * time.Millisecond) // longer than the first check
	if !c.has("j-ps-0-0", "j-worker-0-0") {
		t.Error("a pod was deleted while a worker runs")
	}
	c.set("j-worker-0-0", func(p *podmanager.Pod) { p.Exit = &podmanager.Exit{} })
	time.Sleep(700 * time.Millisecond) // the phase follows
	if !c.has("j-ps-0-0", "j-worker-0-0") {
		t.Error("a pod was deleted before the phase of a worker was known")
	}
	c.set("j-worker-0-0", func(p *podmanager.Pod) { p.Phase = podmanager.Succeeded })
	if err := <-done; err != nil || !c.has("j-worker-0-0") {
		t.Errorf("expected the completed worker, found %v, %v", c.pods, err)
	}
}
