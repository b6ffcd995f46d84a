//go:build k8s && figures

package k8s

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"trainmaster/internal/grpcdial"
	pb "trainmaster/proto/trainmaster/v1"
)

var (
	figuresFile = flag.String("figures", "figures.json", "`file` for the figures of TestFigures")
	figuresRuns = flag.Int("figures-runs", 20, "number of runs of TestFigures")
)

// figure is one line of the results. Times are in seconds.
type figure struct {
	Name  string  `json:"name"`
	Unit  string  `json:"unit"`
	Runs  int     `json:"runs"`
	P50   float64 `json:"p50"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
	Limit string  `json:"limit"`

	values []float64
}

type figures struct{ list []*figure }

func (f *figures) add(name, unit, limit string, value float64) {
	i := slices.IndexFunc(f.list, func(g *figure) bool { return g.Name == name })
	if i < 0 {
		i, f.list = len(f.list), append(f.list, &figure{Name: name, Unit: unit, Limit: limit})
	}
	f.list[i].values = append(f.list[i].values, value)
}

// write computes the quantiles, and writes the figures as JSON.
func (f *figures) write(t *testing.T, path string) {
	t.Helper()
	for _, g := range f.list {
		slices.Sort(g.values)
		at := func(q float64) float64 { return g.values[int(math.Ceil(q*float64(len(g.values))))-1] }
		g.Runs, g.P50, g.P99, g.Max = len(g.values), at(0.5), at(0.99), at(1)
		t.Logf("%-86s %4d runs  p50 %7.3f  p99 %7.3f %s (%s)", g.Name, g.Runs, g.P50, g.P99, g.Unit, g.Limit)
	}
	data, err := json.MarshalIndent(f.list, "", "  ")
	if err == nil {
		err = os.WriteFile(path, append(data, '\n'), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestFigures measures the figures of pods (make bench-k8s).
func TestFigures(t *testing.T) {
	c := Cluster(t)
	f := &figures{}
	for run := range *figuresRuns {
		t.Run(fmt.Sprint("job ", run+1), func(t *testing.T) { measureJob(t, c, f) })
		t.Run(fmt.Sprint("ring ", run+1), func(t *testing.T) { measureRing(t, c, f) })
		t.Run(fmt.Sprint("two masters ", run+1), func(t *testing.T) { measureTwoMasters(t, c, f) })
		t.Run(fmt.Sprint("thousand pods ", run+1), func(t *testing.T) { measureThousand(t, c, f, run%10 == 0) })
	}
	f.write(t, *figuresFile)
}

// measureJob runs a job, kills a worker and a parameter server, and deletes the pod of the master.
func measureJob(t *testing.T, c *Env, f *figures) {
	ns := c.Namespace(t)
	startMaster(t, c, ns, "--workers=3", "--ps=2", "--passes=100000", "--chunks-per-task=1", "--checkpoint-every=1s", "--clean-pods=none",
		"--ps-command=master pserver --checkpoint-dir=/job/checkpoints",
		"--worker-command=master trainer --data '/job/data/digits-0*' --record-delay 300us")
	w := watchPods(t, c, ns)
	j := w.job(t, "")
	j.await(t, "three trainers with tasks", func() bool { return len(j.holders(t)) == 3 })

	// A worker.
	const worker = "digits-worker-0-0"
	pid := processOf(t, c, ns, worker)
	var held *pb.TaskEntry
	j.await(t, "a task of the worker", func() bool {
		signalTo(t, pid, syscall.SIGSTOP) // it cannot finish the task before its end
		if held = j.heldBy(t, worker); held == nil {
			signalTo(t, pid, syscall.SIGCONT)
		}
		return held != nil
	})
	killed := kill(t, pid)
	var moved, first time.Time
	j.await(t, "the task of the worker with another", func() bool {
		if moved.IsZero() && j.isWithAnother(t, held, worker) {
			moved = time.Now()
		}
		if j.heldBy(t, "digits-worker-0-1") != nil {
			first = time.Now()
		}
		return !moved.IsZero() && !first.IsZero()
	})
	f.add("worker kill -9 to its task with another", "s", "p99 3", moved.Sub(killed).Seconds())
	f.add("pod event to the same", "s", "p99 0.5", max(0, moved.Sub(w.endOf(t, worker)).Seconds()))
	f.add("worker kill -9 to the first task of the relaunched pod", "s", "p50 5, p99 10", first.Sub(killed).Seconds())

	// A parameter server. Tasks that were dispatched before may need no push any more, so a later task must finish.
	pid = processOf(t, c, ns, "digits-ps-0-0")
	killed = kill(t, pid)
	begun := j.begun(t)
	j.await(t, "a task after the end of the server", func() bool { return j.done(t) > begun })
	f.add("server kill -9 to a task that began and ended after it", "s", "p99 10", time.Since(killed).Seconds())

	// The master.
	master := masterOf(t, c, ns)
	c.Kubectl(t, "-n", ns, "delete", "pod", master, "--wait=false")
	dispatched := w.job(t, master).dispatches(t)
	f.add("master deleted to the next task, single", "s", "30", dispatched.Sub(w.deletionOf(t, master)).Seconds())
}

// measureRing kills one of four trainers that train by all-reduce in Go.
func measureRing(t *testing.T, c *Env, f *figures) {
	ns := c.Namespace(t)
	startMaster(t, c, ns, "--workers=2:4", "--distribution-strategy=allreduce", "--passes=100000", "--chunks-per-task=1",
		"--worker-command=master trainer --data '/job/data/digits-0*' --distribution-strategy allreduce --model mlp --record-delay 1ms")
	w := watchPods(t, c, ns)
	j := w.job(t, "")
	j.await(t, "four trainers with tasks", func() bool { return len(j.holders(t)) == 4 })
	ring := j.ring(t)
	j.await(t, "a ring of four", func() bool { return ring.newest.Load().members == 4 })
	before := j.done(t)
	j.await(t, "ten tasks", func() bool { return j.done(t) > before+10 })
	former := ring.newest.Load().number
	killed := kill(t, processOf(t, c, ns, "digits-worker-1-0"))
	var formed time.Time
	j.await(t, "the next generation", func() bool {
		formed = time.Now()
		return ring.newest.Load().number > former
	})
	before = j.done(t)
	j.await(t, "a task of the next generation", func() bool { return j.done(t) > before+3 }) // each survivor can report a task of the former generation
	f.add("ring of 4 (all-reduce in Go), one kill -9 to the next generation", "s", "3", formed.Sub(killed).Seconds())
	f.add("ring of 4 (all-reduce in Go), one kill -9 to a task that the next generation finished", "s", "3", time.Since(killed).Seconds())
}

// ringWatch follows the generations of a job.
type ringWatch struct{ newest atomic.Pointer[generation] }

type generation struct {
	number  uint64
	members int
}

func (j *jobView) ring(t *testing.T) *ringWatch {
	t.Helper()
	w := &ringWatch{}
	w.newest.Store(&generation{})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	t.Cleanup(func() { stop(); <-done })
	stream, err := pb.NewRendezvousClient(j.conn).Watch(ctx, &pb.RingWatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(done)
		for {
			u, err := stream.Recv()
			if err != nil {
				return // the test has ended, or waits in vain
			}
			w.newest.Store(&generation{u.GetGeneration().GetNumber(), len(u.GetGeneration().GetMembers())})
		}
	}()
	return w
}

// measureTwoMasters deletes the pod of the leader of the overlay ha.
func measureTwoMasters(t *testing.T, c *Env, f *figures) {
	ns := c.Namespace(t)
	c.volume(t, ns, "digits")
	for i := range 3 {
		c.volume(t, ns, fmt.Sprintf("data-etcd-%d", i))
	}
	c.loadEtcd(t)
	manifests := c.Kubectl(t, "kustomize", c.overlay("ha"))
	c.Apply(t, ns, strings.NewReplacer("--passes=30", "--passes=100000", "/usr/local/bin/etcd", "/etcd", "--save-model=/job/model.safetensors", "--record-delay=1ms").Replace(manifests))
	w := watchPods(t, c, ns)
	w.await(t, 2*time.Minute, func(p pods) bool { return p.count("master", "Running") == 2 && p.count("worker", "Running") == 3 })
	leader := c.leader(t, ns)
	ip := c.Get(t, ns, "pod/"+leader, "{.status.podIP}")
	former, standby := openJob(t, ip), w.job(t, leader)
	former.await(t, "three trainers with tasks", func() bool { return len(former.holders(t)) == 3 })
	before := former.done(t)
	former.await(t, "ten tasks", func() bool { return former.done(t) > before+10 })
	w.awaitRest(t) // so that the figure has nothing of the start of the pods
	c.Kubectl(t, "-n", ns, "delete", "pod", leader, "--wait=false")
	dispatched := standby.dispatches(t)
	f.add("master deleted to the next task, ha", "s", "1", dispatched.Sub(w.deletionOf(t, leader)).Seconds())
}

// otherController replaces the Job of masterJob. kwok completes pods of a Job.
const otherController = `
apiVersion: apps/v1
kind: StatefulSet

metadata: {name: digits}

spec:
  serviceName: master
  selector: {matchLabels: {trainmaster.io/role: master}}
`

// measureThousand creates 1,000 pods on 20 fake nodes, and deletes 100 of them. Requests at rest take a minute to count.
func measureThousand(t *testing.T, c *Env, f *figures, atRest bool) {
	const nodes, count = 20, 1000
	node, err := os.ReadFile(filepath.Join(c.root, "scripts", "k8s", "kwok-node.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var manifests strings.Builder
	for i := range nodes {
		fmt.Fprintf(&manifests, "---\n%s\n", strings.ReplaceAll(string(node), "kwok-0", fmt.Sprintf("figures-%d", i)))
	}
	c.Apply(t, "default", manifests.String())
	t.Cleanup(func() { c.Kubectl(t, "delete", "node", "-l", "type=kwok,kubernetes.io/hostname!=kwok-0") })
	var ns string
	t.Cleanup(func() { // the next run does not begin while these pods are deleted
		c.Kubectl(t, "wait", "--for=delete", "namespace/"+ns, "--timeout=5m")
	})
	ns = c.Namespace(t)
	template := strings.Replace(masterJob, "WORKER\n", "      nodeSelector: {type: kwok}\n      tolerations: [{key: kwok.x-k8s.io/node, operator: Exists}]\n", 1)
	from, to := strings.Index(template, "apiVersion: batch/v1"), strings.Index(template, "  template:\n")
	template = template[:from] + otherController + strings.Replace(template[to:], "restartPolicy: Never", "restartPolicy: Always", 1)
	begun := time.Now()
	startMasterFrom(t, c, ns, template, append(foreign("sleep 1h"), "--need-task-manager=false", fmt.Sprintf("--workers=%d", count))...)
	w := watchPods(t, c, ns)
	started := w.await(t, time.Minute, func(p pods) bool { return p.count("worker", "") > 0 })
	f.add("kwok, 20 nodes: 0 to 1,000 workers", "s", "30", w.await(t, 4*time.Minute, func(p pods) bool { return p.count("worker", "Running") == count }).Sub(started).Seconds())
	t.Logf("the master had its first pod after %v", started.Sub(begun))

	address := w.masterIP(t, "")
	before := writes(t, address)
	f.add("API writes per pod", "writes", "2", before/count)
	var names []string
	uids := map[string]string{}
	for i := range 100 {
		name := fmt.Sprintf("digits-worker-%d-0", i*10)
		names, uids[name] = append(names, name), w.uid(name)
	}
	deleted := time.Now()
	var all sync.WaitGroup // a kubectl deletes one pod after the other, at most 5 in a second
	for some := range slices.Chunk(names, 10) {
		all.Go(func() {
			if out, err := c.Try(append([]string{"-n", ns, "delete", "pod", "--grace-period=0", "--force", "--wait=false"}, some...)...); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	all.Wait()
	back := w.await(t, 4*time.Minute, func(p pods) bool {
		return p.count("worker", "Running") == count && !slices.ContainsFunc(names, func(name string) bool {
			return p[name].uid == uids[name] && !p[name].ended // a pod whose end the master did not observe is created again under its name
		})
	})
	f.add("kwok: 100 of 1,000 deleted, from the first to all back", "s", "10", back.Sub(deleted).Seconds())
	f.add("kwok: 100 of 1,000 deleted, from the last to all back", "s", "", back.Sub(w.lastEnd(names)).Seconds())
	if !atRest {
		return
	}
	rest := requests(t, address)
	time.Sleep(time.Minute) // the time of the figure
	f.add("API requests a minute at rest, with 1,000 pods", "requests", "10", requests(t, address)-rest)
}

// pods are the newest states of the pods of a namespace, by name.
type pods map[string]podState

type podState struct {
	role, attempt, phase, ip, uid string
	ended                         bool
}

func (p pods) count(role, phase string) (n int) {
	for _, s := range p {
		if s.role == role && (phase == "" || s.phase == phase && !s.ended) {
			n++
		}
	}
	return n
}

// podWatch follows the pods of a namespace.
type podWatch struct {
	mu        sync.Mutex
	pods      pods
	ends      map[string]time.Time // when the end of a pod was observed
	deletions map[string]time.Time // when the API showed that a pod is being deleted
	newest    time.Time            // of the last event
}

func watchPods(t *testing.T, c *Env, ns string) *podWatch {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.ContentType = runtime.ContentTypeProtobuf // it costs less processor time than JSON
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	w := &podWatch{pods: pods{}, ends: map[string]time.Time{}, deletions: map[string]time.Time{}}
	informers := informers.NewSharedInformerFactoryWithOptions(api, 0, informers.WithNamespace(ns))
	if _, err := informers.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(pod any) { w.event(pod.(*corev1.Pod), false) },
		UpdateFunc: func(_, pod any) { w.event(pod.(*corev1.Pod), false) },
		DeleteFunc: func(pod any) {
			if d, ok := pod.(cache.DeletedFinalStateUnknown); ok {
				pod = d.Obj
			}
			w.event(pod.(*corev1.Pod), true)
		},
	}); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	informers.Start(stop)
	t.Cleanup(func() { close(stop); informers.Shutdown() })
	return w
}

// uid returns the id of a pod.
func (w *podWatch) uid(name string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pods[name].uid
}

func (w *podWatch) event(pod *corev1.Pod, deleted bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.newest = time.Now()
	s := podState{role: pod.Labels["trainmaster.io/role"], attempt: pod.Labels["trainmaster.io/attempt"], phase: string(pod.Status.Phase), ip: pod.Status.PodIP, uid: string(pod.UID)}
	s.ended = deleted
	for _, c := range pod.Status.ContainerStatuses {
		s.ended = s.ended || c.State.Terminated != nil
	}
	if s.ended && w.ends[pod.Name].IsZero() {
		w.ends[pod.Name] = time.Now()
	}
	if pod.DeletionTimestamp != nil && w.deletions[pod.Name].IsZero() {
		w.deletions[pod.Name] = time.Now()
	}
	w.pods[pod.Name] = s
}

// await returns the time at which the pods are as is says.
func (w *podWatch) await(t *testing.T, limit time.Duration, is func(pods) bool) time.Time {
	t.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(5 * time.Millisecond) { // the precision of the figure
		w.mu.Lock()
		ok := is(w.pods)
		w.mu.Unlock()
		if ok {
			return time.Now()
		}
	}
	t.Fatalf("after %v the pods are not as expected: %d pods, %d running workers", limit, len(w.pods), w.pods.count("worker", "Running"))
	return time.Time{}
}

// awaitRest waits until no pod has changed for 3 seconds.
func (w *podWatch) awaitRest(t *testing.T) {
	t.Helper()
	w.await(t, time.Minute, func(pods) bool { return time.Since(w.newest) > 3*time.Second })
}

// endOf returns when the end of a pod was observed.
func (w *podWatch) endOf(t *testing.T, name string) (at time.Time) {
	t.Helper()
	w.await(t, time.Minute, func(pods) bool { at = w.ends[name]; return !at.IsZero() })
	return at
}

// deletionOf returns when the API showed that a pod is being deleted.
func (w *podWatch) deletionOf(t *testing.T, name string) (at time.Time) {
	t.Helper()
	w.await(t, time.Minute, func(pods) bool { at = w.deletions[name]; return !at.IsZero() })
	return at
}

// lastEnd returns when the last of some ends was observed.
func (w *podWatch) lastEnd(names []string) (at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range names {
		if end := w.ends[name]; end.After(at) {
			at = end
		}
	}
	return at
}

// masterIP returns the address of a running master that is not former.
func (w *podWatch) masterIP(t *testing.T, former string) (ip string) {
	t.Helper()
	w.await(t, 2*time.Minute, func(p pods) bool {
		for name, s := range p {
			if s.role == "master" && name != former && s.phase == "Running" && !s.ended {
				ip = s.ip
			}
		}
		return ip != ""
	})
	return ip
}

// jobView asks a master of a job.
type jobView struct {
	conn   *grpc.ClientConn
	client pb.AdminClient
}

// job asks a running master that is not former.
func (w *podWatch) job(t *testing.T, former string) *jobView {
	t.Helper()
	return openJob(t, w.masterIP(t, former))
}

func openJob(t *testing.T, ip string) *jobView {
	t.Helper()
	conn, err := grpcdial.Open(ip + ":8080")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &jobView{conn, pb.NewAdminClient(conn)}
}

func (j *jobView) await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !is(); time.Sleep(5 * time.Millisecond) { // the precision of the figure
		if time.Now().After(end) {
			t.Fatalf("expected %s within 2 minutes", what)
		}
	}
}

func (j *jobView) pending(t *testing.T) []*pb.TaskEntry {
	t.Helper()
	reply, err := j.client.ListTasks(t.Context(), &pb.ListTasksRequest{States: []pb.TaskState{pb.TaskState_TASK_STATE_PENDING}})
	if err != nil {
		return nil // the master begins or ends
	}
	return reply.GetTasks()
}

// holders returns the trainers that run tasks.
func (j *jobView) holders(t *testing.T) map[string]bool {
	found := map[string]bool{}
	for _, task := range j.pending(t) {
		for _, h := range task.GetHolders() {
			found[h.GetTrainer()] = found[h.GetTrainer()] || !h.GetPrefetched()
		}
	}
	return found
}

// heldBy returns a task that a trainer runs, or nil.
func (j *jobView) heldBy(t *testing.T, trainer string) *pb.TaskEntry {
	for _, task := range j.pending(t) {
		for _, h := range task.GetHolders() {
			if h.GetTrainer() == trainer && !h.GetPrefetched() {
				return task
			}
		}
	}
	return nil
}

// isWithAnother reports whether another trainer has a task, or has finished it.
func (j *jobView) isWithAnother(t *testing.T, of *pb.TaskEntry, than string) bool {
	list := j.pending(t)
	if list == nil {
		return false
	}
	for _, task := range list {
		if task.GetIndex() == of.GetIndex() && task.GetPass() == of.GetPass() {
			return slices.ContainsFunc(task.GetHolders(), func(h *pb.TaskHolder) bool { return h.GetTrainer() != than })
		}
	}
	return j.done(t) > 0 && !j.retries(t, of)
}

// retries reports whether a task waits to be dispatched again.
func (j *jobView) retries(t *testing.T, of *pb.TaskEntry) bool {
	reply, err := j.client.ListTasks(t.Context(), &pb.ListTasksRequest{})
	return err != nil || slices.ContainsFunc(reply.GetTasks(), func(task *pb.TaskEntry) bool {
		return task.GetIndex() == of.GetIndex() && task.GetPass() == of.GetPass()
	})
}

// done returns the number of finished tasks of all passes.
func (j *jobView) done(t *testing.T) uint64 {
	done, _ := j.counts(t)
	return done
}

// begun returns the number of tasks of all passes that are finished or dispatched.
func (j *jobView) begun(t *testing.T) uint64 {
	done, pending := j.counts(t)
	return done + pending
}

// dispatches waits until a master leads and has dispatched a task, and returns the time.
func (j *jobView) dispatches(t *testing.T) time.Time {
	t.Helper()
	var at uint64
	j.await(t, "a master that leads", func() bool { at = j.begun(t); return at > 0 })
	j.await(t, "a task of the next master", func() bool { return j.begun(t) > at })
	return time.Now()
}

func (j *jobView) counts(t *testing.T) (done, pending uint64) {
	t.Helper()
	reply, err := j.client.Status(t.Context(), &pb.StatusRequest{})
	if err != nil || len(reply.GetDatasets()) == 0 {
		return 0, 0
	}
	d := reply.GetDatasets()[0]
	return uint64(max(d.GetPass(), 1)-1)*d.GetTasks() + d.GetDone(), d.GetPending() + d.GetRetry()
}

func kill(t *testing.T, pid int) time.Time {
	t.Helper()
	signalTo(t, pid, syscall.SIGKILL)
	return time.Now()
}

func signalTo(t *testing.T, pid int, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, s); err != nil {
		t.Fatal(err)
	}
}

// requests returns the requests of a master to the API.
func requests(t *testing.T, ip string) float64 { return sum(t, ip, "") }

// writes returns the requests that change something, without events for users.
func writes(t *testing.T, ip string) float64 {
	return sum(t, ip, `verb="post"`) + sum(t, ip, `verb="put"`) + sum(t, ip, `verb="patch"`) + sum(t, ip, `verb="delete"`)
}

func sum(t *testing.T, ip, label string) (total float64) {
	t.Helper()
	for line := range strings.Lines(scrape(t, ip)) {
		if !strings.HasPrefix(line, "trainmaster_kube_requests_total{") || !strings.Contains(line, label) {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " "):]), 64)
		if err != nil {
			t.Fatal(err)
		}
		total += value
	}
	return total
}
