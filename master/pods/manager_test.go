package pods_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/component"
	"trainmaster/master/mastertest"
	"trainmaster/master/podmanager"
	"trainmaster/master/pods"
)

// cluster is a cluster whose pods the test changes. The package kubernetes is tested with the API, and e2e/k8s with a real cluster.
type cluster struct {
	mu      sync.Mutex
	pods    map[string]podmanager.Pod
	creates map[string]int // calls by name
	uids    int
	down    error // of all calls
	hidden  bool  // a created pod is not observed
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
		p = podmanager.Pod{Name: a.Name, UID: fmt.Sprint(c.uids), Instance: instance, Role: a.Role, Index: a.Index, Attempt: a.Attempt, Phase: podmanager.Running}
		c.pods[a.Name] = p
	}
	return p, nil
}

func (c *cluster) Delete(_ context.Context, a podmanager.Action) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pods[a.Name].UID == a.UID {
		delete(c.pods, a.Name)
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
	store := etcdtest.Store(t)
	c := newCluster()
	r, _ := start(t, store, c, workers(2))
	mastertest.Eventually(t, "two pods", func() bool { return c.has("j-worker-0-0", "j-worker-1-0") })
	r.Register(2)
	lost, other := r.Join("j-worker-0-0"), r.Join("j-worker-1-0")
	task := lost.Take(t)
	second := other.Take(t)
	began := time.Now()
	c.set("j-worker-0-0", ended(137))
	again := other.Take(t, second)
	if took := time.Since(began); again.Position != task.Position || took > 4*time.Second {
		t.Errorf("expected task %v within the grace of 5 s, found %v after %v", task, again, took)
	}
	tasks, err := r.Tasks(t.Context())
	if err != nil || len(tasks.Live) != 1 || tasks.Live[0].Losses != 0 {
		t.Errorf("expected one task without a charge, found %+v, %v", tasks.Live, err)
	}
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
	c.set("j-worker-0-0", func(p *podmanager.Pod) { p.Phase, p.Exit = podmanager.Succeeded, &podmanager.Exit{} })
	if err := <-done; err != nil || !c.has("j-worker-0-0") {
		t.Errorf("expected the completed worker, found %v, %v", c.pods, err)
	}
}
