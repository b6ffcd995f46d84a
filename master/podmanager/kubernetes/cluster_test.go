package kubernetes_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"trainmaster/master/podmanager"
	"trainmaster/master/podmanager/kubernetes"
)

const instance = "0123"

// connect returns the cluster of an API, in which the pod of the master is "m-0".
func connect(t *testing.T, a *api) *kubernetes.Cluster {
	t.Helper()
	a.add(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "m-0", Namespace: "ns", OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "batch/v1", Kind: "Job", Name: "m", UID: "job-uid", Controller: new(true)},
	}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "master", Image: "registry/trainmaster:7", ImagePullPolicy: corev1.PullNever}}}})
	logger, _ := logtest.NewNullLogger()
	c, err := kubernetes.New(kubernetes.Config{
		Job: "j", API: a.config(), Namespace: "ns", Self: "m-0", Endpoints: []string{"http://etcd:2379"}, NodeLostAfter: 30 * time.Second, QPS: 1000, Log: logrus.NewEntry(logger),
		Workers: kubernetes.Pods{Command: []string{"master", "trainer", "--data", "/d"}, Env: []corev1.EnvVar{{Name: "TRAINMASTER_PROTOCOL", Value: "netrpc"}}}, Servers: kubernetes.Pods{Command: []string{"serve"}, Image: "other:1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// watch observes until the test ends.
func watch(t *testing.T, c *kubernetes.Cluster) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Watch(ctx, func() {})
	}()
	t.Cleanup(func() { cancel(); <-done })
	eventually(t, "pods listed", func() bool { _, known := c.Pods(); return known })
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); {
		if time.Now().After(end) {
			t.Fatalf("%s: expected it within 20 s", what)
		}
		time.Sleep(5 * time.Millisecond) // poll
	}
}

func create(i, attempt int) podmanager.Action {
	return podmanager.Action{Verb: podmanager.Create, Name: podmanager.Name("j", podmanager.Worker, i, attempt), Role: podmanager.Worker, Index: i, Attempt: attempt}
}

func phase(c *kubernetes.Cluster, name string) podmanager.Phase {
	pods, _ := c.Pods()
	for _, p := range pods {
		if p.Name == name {
			return p.Phase
		}
	}
	return ""
}

func TestRepeatedCreateFindsItsPod(t *testing.T) {
	a := newAPI(t)
	c := connect(t, a)
	watch(t, c)
	first, err := c.Create(t.Context(), create(0, 0), instance)
	if err != nil {
		t.Fatal(err)
	}
	again, err := c.Create(t.Context(), create(0, 0), instance)
	if err != nil || again.UID != first.UID {
		t.Errorf("expected the pod %s, found %+v, %v", first.UID, again, err)
	}
	if _, err := c.Create(t.Context(), create(0, 0), "another"); !errors.Is(err, kubernetes.ErrOccupied) {
		t.Errorf("a pod of another instance: expected %v, found %v", kubernetes.ErrOccupied, err)
	}
}

func TestDeleteSparesALaterPodOfTheSameName(t *testing.T) {
	a := newAPI(t)
	c := connect(t, a)
	watch(t, c)
	pod, err := c.Create(t.Context(), create(0, 0), instance)
	if err != nil {
		t.Fatal(err)
	}
	old := podmanager.Action{Verb: podmanager.Delete, Name: pod.Name, UID: "an-earlier-one"}
	if err := c.Delete(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the later pod stays", func() bool { return phase(c, pod.Name) == podmanager.Pending })
	old.UID = pod.UID
	for range 2 { // the second one finds nothing
		if err := c.Delete(t.Context(), old); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the pod is gone", func() bool { return phase(c, pod.Name) == "" })
}

func TestWatchSurvivesCutsExpiryAndAnUnreachableAPI(t *testing.T) {
	a := newAPI(t)
	c := connect(t, a)
	watch(t, c)
	name := create(0, 0).Name
	if _, err := c.Create(t.Context(), create(0, 0), instance); err != nil {
		t.Fatal(err)
	}
	seen := func(p corev1.PodPhase) {
		t.Helper()
		eventually(t, "a watch", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return len(a.watchers) > 0 })
		a.change(name, func(pod *corev1.Pod) { pod.Status.Phase = p })
		eventually(t, "phase "+string(p), func() bool { return phase(c, name) == podmanager.Phase(p) })
	}
	seen(corev1.PodRunning)
	a.mu.Lock()
	a.expired = true
	a.mu.Unlock()
	a.cut()
	seen(corev1.PodFailed)
	eventually(t, "a watch", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return len(a.watchers) > 0 })
	a.mu.Lock()
	lists := a.lists
	a.mu.Unlock()
	a.expire()
	eventually(t, "another list", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return a.lists > lists && len(a.watchers) > 0 })
	seen(corev1.PodRunning)
	a.mu.Lock()
	a.refuse = http.StatusServiceUnavailable
	a.mu.Unlock()
	a.cut()
	eventually(t, "a problem", func() bool { return c.Problem() != "" })
	a.mu.Lock()
	a.refuse = 0
	a.mu.Unlock()
	eventually(t, "no problem", func() bool { return c.Problem() == "" })
	seen(corev1.PodSucceeded)
}

func TestPodHasTheEnvironmentAndTheOwnerOfTheJob(t *testing.T) {
	a := newAPI(t)
	c := connect(t, a)
	watch(t, c)
	action := create(3, 2)
	action.Memory = 3 << 30
	if _, err := c.Create(t.Context(), action, instance); err != nil {
		t.Fatal(err)
	}
	server := podmanager.Action{Verb: podmanager.Create, Name: podmanager.Name("j", podmanager.Server, 0, 0), Role: podmanager.Server}
	if _, err := c.Create(t.Context(), server, instance); err != nil {
		t.Fatal(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	pod, ps := a.pods["j-worker-3-2"], a.pods["j-ps-0-0"]
	if len(pod.OwnerReferences) != 1 || pod.OwnerReferences[0].UID != "job-uid" || pod.OwnerReferences[0].Kind != "Job" || pod.OwnerReferences[0].Controller != nil {
		t.Errorf("owner: expected the Job of the master, found %+v", pod.OwnerReferences)
	}
	for k, v := range map[string]string{kubernetes.JobLabel: "j", kubernetes.RoleLabel: "worker", kubernetes.IndexLabel: "3", kubernetes.AttemptLabel: "2", kubernetes.InstanceLabel: instance} {
		if pod.Labels[k] != v {
			t.Errorf("label %s: expected %s, found %s", k, v, pod.Labels[k])
		}
	}
	main := pod.Spec.Containers[0]
	if main.Image != "registry/trainmaster:7" || main.ImagePullPolicy != corev1.PullNever || strings.Join(main.Args, " ") != "trainer --data /d" || main.Command != nil {
		t.Errorf("found image %s (%s), command %q, arguments %q", main.Image, main.ImagePullPolicy, main.Command, main.Args)
	}
	if m := ps.Spec.Containers[0]; m.Image != "other:1" || strings.Join(m.Command, " ") != "serve" {
		t.Errorf("server: found image %s, command %q", m.Image, m.Command)
	}
	env := map[string]string{}
	for _, e := range main.Env {
		env[e.Name] = e.Value
	}
	for k, v := range map[string]string{"TRAINMASTER_ENDPOINTS": "http://etcd:2379", "TRAINMASTER_JOB": "j", "TRAINMASTER_ID": "j-worker-3-2", "TRAINMASTER_EXIT_CODES": "pod", "TRAINMASTER_PROTOCOL": "netrpc"} {
		if env[k] != v {
			t.Errorf("%s: expected %s, found %s", k, v, env[k])
		}
	}
	if q := main.Resources.Limits.Memory().Value(); q != 3<<30 {
		t.Errorf("memory: expected 3 GiB, found %d", q)
	}
	if pod.Spec.RestartPolicy != corev1.RestartPolicyNever || *pod.Spec.AutomountServiceAccountToken || *pod.Spec.TerminationGracePeriodSeconds != 30 || *ps.Spec.TerminationGracePeriodSeconds != 45 {
		t.Errorf("found %+v", pod.Spec)
	}
	for _, tolerated := range pod.Spec.Tolerations {
		if *tolerated.TolerationSeconds != 30 {
			t.Errorf("toleration: expected 30 s, found %+v", tolerated)
		}
	}
	if len(pod.Spec.Tolerations) != 2 {
		t.Errorf("expected 2 tolerations, found %+v", pod.Spec.Tolerations)
	}
}

// F295: each pod of a group has its rank, and a name in the cluster by which the other pods find rank 0. A Service of another owner is not used.
func TestPodsOfAGroupHaveRanksAndNames(t *testing.T) {
	a := newAPI(t)
	c := connect(t, a)
	watch(t, c)
	a.mu.Lock()
	a.services["workers-j"] = &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Name: "workers-j", Labels: map[string]string{kubernetes.JobLabel: "j"}, OwnerReferences: []metav1.OwnerReference{{UID: "a-deleted-job"}},
	}}
	a.mu.Unlock()
	group := []podmanager.Action{create(3, 2), create(3, 2)}
	for rank := range group {
		group[rank].Name, group[rank].Rank, group[rank].Size = podmanager.NameOfRank("j", podmanager.Worker, 3, 2, rank), rank, 2
	}
	if _, err := c.Create(t.Context(), group[0], instance); !errors.Is(err, kubernetes.ErrOccupied) {
		t.Errorf("a Service of another owner: expected %v, found %v", kubernetes.ErrOccupied, err)
	}
	a.mu.Lock()
	delete(a.services, "workers-j")
	a.mu.Unlock()
	for range 2 { // the second master finds the Service
		for rank, action := range group {
			p, err := c.Create(t.Context(), action, instance)
			if err != nil || p.Rank != rank || p.Size != 2 {
				t.Fatalf("rank %d: found %+v, %v", rank, p, err)
			}
		}
		c = connect(t, a)
		watch(t, c)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	service := a.services["workers-j"]
	if service.Spec.ClusterIP != corev1.ClusterIPNone || !service.Spec.PublishNotReadyAddresses || len(service.OwnerReferences) != 1 || service.OwnerReferences[0].UID != "job-uid" {
		t.Errorf("found the Service %+v", service)
	}
	for rank, action := range group {
		pod := a.pods[action.Name]
		for k, v := range service.Spec.Selector {
			if pod.Labels[k] != v {
				t.Errorf("rank %d: expected the label %s=%s of the Service, found %q", rank, k, v, pod.Labels[k])
			}
		}
		if pod.Spec.Hostname != action.Name || pod.Spec.Subdomain != "workers-j" {
			t.Errorf("rank %d: found the name %s.%s", rank, pod.Spec.Hostname, pod.Spec.Subdomain)
		}
		env := map[string]string{}
		for _, e := range pod.Spec.Containers[0].Env {
			env[e.Name] = e.Value
		}
		for k, v := range map[string]string{
			"TRAINMASTER_GROUP_RANK": fmt.Sprint(rank), "TRAINMASTER_GROUP_SIZE": "2", "RANK": fmt.Sprint(rank), "WORLD_SIZE": "2",
			"MASTER_ADDR": "j-worker-3-2.workers-j", "MASTER_PORT": "29500", "TRAINMASTER_ID": action.Name,
		} {
			if env[k] != v {
				t.Errorf("rank %d: %s: expected %s, found %s", rank, k, v, env[k])
			}
		}
	}
}

func TestNoteIsAnEventOfTheOwner(t *testing.T) {
	a := newAPI(t)
	c := connect(t, a)
	watch(t, c)
	if err := c.Note(t.Context(), "PodReplaced", "pod j-worker-0-0: ended", true); err != nil {
		t.Fatal(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.events) != 1 || a.events[0].InvolvedObject.Name != "m" || a.events[0].Type != corev1.EventTypeWarning {
		t.Errorf("found %+v", a.events)
	}
}

func TestRefusalHasTheWordsOfTheCluster(t *testing.T) {
	a := newAPI(t)
	c := connect(t, a)
	watch(t, c)
	a.mu.Lock()
	a.refuse = http.StatusForbidden
	a.mu.Unlock()
	if _, err := c.Create(t.Context(), create(0, 0), instance); err == nil || !strings.Contains(err.Error(), "exceeded quota: two pods") {
		t.Errorf("found %v", err)
	}
}

// F364: the API refuses a pod that is not valid.
func TestInvalidPodIsRecognized(t *testing.T) {
	a := newAPI(t)
	c := connect(t, a)
	watch(t, c)
	for code, want := range map[int]bool{http.StatusUnprocessableEntity: true, http.StatusBadRequest: true, http.StatusForbidden: false, http.StatusInternalServerError: false} {
		a.mu.Lock()
		a.refuse = code
		a.mu.Unlock()
		if _, err := c.Create(t.Context(), create(0, 0), instance); err == nil || errors.Is(err, podmanager.ErrInvalid) != want {
			t.Errorf("code %d: found %v", code, err)
		}
	}
}

// F362: the Role of the master lacks a right. The message says what to do.
func TestMissingRightNamesTheRole(t *testing.T) {
	a := newAPI(t)
	c := connect(t, a)
	a.mu.Lock()
	a.refuse = http.StatusForbidden
	a.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Watch(ctx, func() {})
	}()
	eventually(t, "a problem", func() bool { return c.Problem() != "" })
	if found := c.Problem(); !strings.HasSuffix(found, ": bind the Role of deploy/base to the service account of the master") {
		t.Errorf("found %q", found)
	}
	cancel()
	<-done
}

// F290: a resize changes the memory of the pod with the UID only. A request that is equal to the limit stays equal.
func TestResizeKeepsTheQualityOfService(t *testing.T) {
	const mib = 1 << 20
	for name, test := range map[string]struct{ request, limit, wantRequest string }{
		"guaranteed": {"64Mi", "64Mi", "96Mi"},
		"burstable":  {"32Mi", "64Mi", "32Mi"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			c := connect(t, a)
			watch(t, c)
			pod, err := c.Create(t.Context(), create(0, 0), instance)
			if err != nil {
				t.Fatal(err)
			}
			a.change(pod.Name, func(p *corev1.Pod) {
				p.Spec.Containers[0].Resources = corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(test.request), corev1.ResourceCPU: resource.MustParse("1")},
					Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(test.limit)},
				}
			})
			memory := func() int64 {
				list, _ := c.Pods()
				for _, p := range list {
					if p.Name == pod.Name {
						return p.Memory
					}
				}
				return 0
			}
			eventually(t, "the limit", func() bool { return memory() == 64*mib })
			for _, resize := range []struct {
				uid  string
				want int64
			}{{"an-earlier-one", 64 * mib}, {pod.UID, 96 * mib}} {
				if err := c.Resize(t.Context(), podmanager.Action{Verb: podmanager.Resize, Name: pod.Name, UID: resize.uid, Memory: 96 * mib}); err != nil {
					t.Fatal(err)
				}
				eventually(t, "the limit after the resize", func() bool { return memory() == resize.want })
			}
			a.change(pod.Name, func(p *corev1.Pod) {
				r := p.Spec.Containers[0].Resources
				if got := r.Requests.Memory().String(); got != test.wantRequest || r.Requests.Cpu().String() != "1" {
					t.Errorf("requests: expected memory %s and cpu 1, found %v", test.wantRequest, r.Requests)
				}
			})
			if err := c.Resize(t.Context(), podmanager.Action{Verb: podmanager.Resize, Name: "j-worker-9-0", UID: "x", Memory: mib}); err != nil {
				t.Errorf("a pod that is gone: %v", err)
			}
		})
	}
}
