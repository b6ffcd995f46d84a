package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"trainmaster/master/podmanager"
)

// Cluster is the cluster of a job. Its methods may be called at any time.
type Cluster struct {
	config Config
	core   rest.Interface
	codec  runtime.ParameterCodec

	mu       sync.Mutex
	self     *own // nil: not read yet
	pods     map[string]podmanager.Pod
	deadline map[string]time.Time // UID -> time at which a deletion is overdue
	listed   bool
	problem  string
	requests map[podmanager.Request]int64

	naming sync.Mutex // held during the request for the Service
	named  bool       // the Service exists
}

const (
	requestTimeout = 10 * time.Second
	watchTimeout   = 10 * time.Minute
	firstPause     = 100 * time.Millisecond
	longestPause   = 2 * time.Second
	overdueAfter   = 10 * time.Second // after the grace period of a deletion
)

// New returns the cluster. It calls nothing.
func New(config Config) (*Cluster, error) {
	if config.Log == nil {
		config.Log = logrus.NewEntry(logrus.StandardLogger())
	}
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	metav1.AddToGroupVersion(scheme, schemaV1)
	c := &Cluster{config: config, codec: runtime.NewParameterCodec(scheme), pods: map[string]podmanager.Pod{}, deadline: map[string]time.Time{}, requests: map[podmanager.Request]int64{}}
	api := rest.CopyConfig(config.API)
	api.APIPath, api.GroupVersion = "/api", &schemaV1
	api.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	api.UserAgent = "trainmaster"
	api.QPS, api.Burst = config.QPS, int(2*config.QPS)+1
	api.Wrap(func(t http.RoundTripper) http.RoundTripper { return counting{t, c.count} })
	core, err := rest.RESTClientFor(api)
	if err != nil {
		return nil, err
	}
	c.core = core
	return c, nil
}

var schemaV1 = corev1.SchemeGroupVersion

func (c *Cluster) count(verb string, code int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests[podmanager.Request{Verb: verb, Code: code}]++
}

// Requests returns the number of requests by kind.
func (c *Cluster) Requests() map[podmanager.Request]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.requests)
}

// Problem returns why the pods are not observed now; "": they are.
func (c *Cluster) Problem() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.problem
}

// Pods returns the pods by name. known is false before the first list.
func (c *Cluster) Pods() (list []podmanager.Pod, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for _, name := range slices.Sorted(maps.Keys(c.pods)) {
		p := c.pods[name]
		if p.Deleting {
			if c.deadline[p.UID].IsZero() {
				c.deadline[p.UID] = now.Add(overdueAfter)
			}
			p.Lost = p.Lost || now.After(c.deadline[p.UID])
		}
		list = append(list, p)
	}
	return list, c.listed
}

// Watch observes the pods until ctx ends, and calls changed after each change.
func (c *Cluster) Watch(ctx context.Context, changed func()) error {
	c.mu.Lock()
	c.listed = false
	c.mu.Unlock()
	version := "" // list first
	for pause := time.Duration(0); ctx.Err() == nil; {
		began := time.Now()
		err := c.introduce(ctx)
		if err == nil && version == "" {
			version, err = c.list(ctx)
			if err == nil {
				changed()
			}
		}
		if err == nil {
			version, err = c.follow(ctx, version, changed)
		}
		if ctx.Err() != nil {
			break
		}
		c.report(err)
		if pause = min(max(firstPause, 2*pause), longestPause); err == nil || time.Since(began) > longestPause {
			pause = firstPause
		}
		if err != nil {
			changed()
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return context.Cause(ctx)
}

// report stores the state of the observation, and logs a change of it.
func (c *Cluster) report(err error) {
	text := ""
	if err != nil {
		text = words(err)
	}
	c.mu.Lock()
	was := c.problem
	c.problem = text
	c.mu.Unlock()
	switch {
	case text != "" && was == "":
		c.config.Log.WithError(err).Warn("pods not observed, retrying")
	case text == "" && was != "":
		c.config.Log.Info("pods observed again")
	}
}

// introduce reads the master's own pod, once.
func (c *Cluster) introduce(ctx context.Context) error {
	c.mu.Lock()
	known := c.self != nil
	c.mu.Unlock()
	if known {
		return nil
	}
	var o own
	if c.config.Self != "" {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		var pod corev1.Pod
		if err := c.core.Get().Namespace(c.config.Namespace).Resource("pods").Name(c.config.Self).Do(ctx).Into(&pod); err != nil {
			return fmt.Errorf("read the pod of the master: %w", err)
		}
		o = selfOf(&pod)
		if len(o.owner) == 0 {
			c.config.Log.WithField("pod", pod.Name).Warn("the pod of the master has no controller: pods of the job are not deleted with it")
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.self = &o
	return nil
}

// selfOf returns what the master's pod determines. The owner is its controller: the pod itself would take all workers with it.
func selfOf(pod *corev1.Pod) (o own) {
	//guard:owner-is-the-controller
	if r := metav1.GetControllerOf(pod); r != nil {
		// Without the mark of a controller: a Job releases pods that it controls and that its selector does not match.
		o.owner = []metav1.OwnerReference{{APIVersion: r.APIVersion, Kind: r.Kind, Name: r.Name, UID: r.UID}}
		o.target = corev1.ObjectReference{APIVersion: r.APIVersion, Kind: r.Kind, Name: r.Name, UID: r.UID, Namespace: pod.Namespace}
	}
	o.pull = pod.Spec.ImagePullSecrets
	containers := pod.Spec.Containers
	i := max(0, slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == Main || c.Name == "master" }))
	if len(containers) > 0 {
		o.image, o.policy = containers[i].Image, containers[i].ImagePullPolicy
	}
	return o
}

func (c *Cluster) selector() string {
	return fmt.Sprintf("%s=%s,%s in (%s,%s)", JobLabel, c.config.Job, RoleLabel, podmanager.Worker, podmanager.Server)
}

// list reads all pods, and returns the version to watch from.
func (c *Cluster) list(ctx context.Context) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var list corev1.PodList
	if err := c.core.Get().Namespace(c.config.Namespace).Resource("pods").
		VersionedParams(&metav1.ListOptions{LabelSelector: c.selector()}, c.codec).Do(ctx).Into(&list); err != nil {
		return "", fmt.Errorf("list pods: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.pods)
	old := c.deadline
	c.deadline = map[string]time.Time{}
	for i := range list.Items {
		c.take(&list.Items[i], old)
	}
	c.listed = true
	return list.ResourceVersion, nil
}

// take stores a pod.
func (c *Cluster) take(pod *corev1.Pod, deadlines map[string]time.Time) {
	p, ok := observed(pod, *c.self) // it is read before the first list
	if !ok {
		return
	}
	c.pods[p.Name] = p
	if !p.Deleting {
		return
	}
	if until, ok := deadlines[p.UID]; ok {
		c.deadline[p.UID] = until
		return
	}
	grace := time.Duration(0)
	if g := pod.DeletionGracePeriodSeconds; g != nil {
		grace = time.Duration(*g) * time.Second
	}
	c.deadline[p.UID] = time.Now().Add(grace + overdueAfter)
}

// errExpired is the end of a watch whose version the API does not have any more.
var errExpired = errors.New("watch expired")

// follow watches from a version until the watch ends, and returns the version to continue from; "": list again.
func (c *Cluster) follow(ctx context.Context, version string, changed func()) (string, error) {
	seconds := int64(watchTimeout / time.Second)
	events, err := c.core.Get().Namespace(c.config.Namespace).Resource("pods").Timeout(watchTimeout+requestTimeout).
		VersionedParams(&metav1.ListOptions{LabelSelector: c.selector(), Watch: true, ResourceVersion: version, AllowWatchBookmarks: true, TimeoutSeconds: &seconds}, c.codec).Watch(ctx)
	if err != nil {
		//guard:expired-watch-lists-again
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			return "", nil
		}
		return version, fmt.Errorf("watch pods: %w", err)
	}
	defer events.Stop()
	c.report(nil)
	for {
		select {
		case <-ctx.Done():
			return version, context.Cause(ctx)
		case e, ok := <-events.ResultChan():
			if !ok {
				return version, nil
			}
			next, err := c.event(e)
			switch {
			case errors.Is(err, errExpired):
				return "", nil
			case err != nil:
				return "", err
			}
			if version = next; e.Type != watch.Bookmark {
				changed()
			}
		}
	}
}

// event takes one event of a watch.
func (c *Cluster) event(e watch.Event) (version string, err error) {
	if e.Type == watch.Error {
		err := apierrors.FromObject(e.Object)
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			return "", errExpired
		}
		return "", fmt.Errorf("watch pods: %w", err)
	}
	pod, ok := e.Object.(*corev1.Pod)
	if !ok {
		return "", fmt.Errorf("watch pods: expected a pod, found %T", e.Object)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch e.Type {
	case watch.Added, watch.Modified:
		c.take(pod, c.deadline)
	case watch.Deleted:
		if p, ok := c.pods[pod.Name]; ok && p.UID == string(pod.UID) {
			delete(c.pods, pod.Name)
			delete(c.deadline, p.UID)
		}
	}
	return pod.ResourceVersion, nil
}

// ErrOccupied is returned for a name that a pod outside this job instance has.
var ErrOccupied = errors.New("the name is in use")

// Create creates a pod. If a pod of this name and job instance exists, it returns that pod.
func (c *Cluster) Create(ctx context.Context, a podmanager.Action, instance string) (podmanager.Pod, error) {
	c.mu.Lock()
	self := c.self
	c.mu.Unlock()
	if self == nil {
		return podmanager.Pod{}, errors.New("the pod of the master has not been read")
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if a.Size > 1 {
		if err := c.ensureService(ctx, *self); err != nil {
			return podmanager.Pod{}, err
		}
	}
	pods := func(r *rest.Request) *rest.Request { return r.Namespace(c.config.Namespace).Resource("pods") }
	var made corev1.Pod
	err := pods(c.core.Post()).VersionedParams(&metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}, c.codec).
		Body(c.config.spec(a, instance, *self)).Do(ctx).Into(&made)
	//guard:repeated-create-finds-its-pod
	if apierrors.IsAlreadyExists(err) {
		if err := pods(c.core.Get()).Name(a.Name).Do(ctx).Into(&made); err != nil {
			return podmanager.Pod{}, err
		}
		//guard:foreign-pod-not-adopted
		if made.Labels[JobLabel] != c.config.Job || made.Labels[InstanceLabel] != instance {
			return podmanager.Pod{}, fmt.Errorf("%w: expected no pod %s, or one of this job, found one %s: delete it, or give one of the jobs another name (--job)", ErrOccupied, a.Name, belongsTo(&made))
		}
		err = nil
	}
	//guard:invalid-pod-recognized
	if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
		return podmanager.Pod{}, fmt.Errorf("%w: %w", podmanager.ErrInvalid, err)
	}
	if err != nil {
		return podmanager.Pod{}, err
	}
	p, ok := observed(&made, *self)
	if !ok {
		return p, fmt.Errorf("%w: pod %s has other labels", ErrOccupied, a.Name)
	}
	return p, nil
}

// belongsTo names the owner of a pod, or its job.
func belongsTo(pod *corev1.Pod) string {
	if len(pod.OwnerReferences) > 0 {
		o := pod.OwnerReferences[0]
		return fmt.Sprintf("that belongs to %s %s", o.Kind, o.Name)
	}
	return fmt.Sprintf("of the job %q", pod.Labels[JobLabel])
}

// Delete deletes a pod with the UID of the action. A pod that is gone, or has another UID, is a success.
func (c *Cluster) Delete(ctx context.Context, a podmanager.Action) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	uid := types.UID(a.UID)
	//guard:delete-carries-the-uid
	options := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
	err := c.core.Delete().Namespace(c.config.Namespace).Resource("pods").Name(a.Name).Body(options).Do(ctx).Error()
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// Resize sets the memory limit of the container "main" of the pod with the UID of the action, in place. A request that is equal to the limit stays
// equal: the quality of service of a pod cannot change. A pod that is gone, or has another UID, is a success.
func (c *Cluster) Resize(ctx context.Context, a podmanager.Action) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var pod corev1.Pod
	if err := c.core.Get().Namespace(c.config.Namespace).Resource("pods").Name(a.Name).Do(ctx).Into(&pod); err != nil {
		return ignoreGone(err)
	}
	i := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == Main })
	//guard:resize-of-the-pod
	if string(pod.UID) != a.UID || i < 0 {
		return nil
	}
	resources := pod.Spec.Containers[i].Resources
	memory := resource.NewQuantity(a.Memory, resource.BinarySI)
	change := corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: *memory}}
	if resources.Requests.Memory().Cmp(*resources.Limits.Memory()) == 0 {
		change.Requests = change.Limits
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": a.UID},
		"spec":     map[string]any{"containers": []any{map[string]any{"name": Main, "resources": change}}},
	})
	if err != nil {
		return err
	}
	return ignoreGone(c.core.Patch(types.StrategicMergePatchType).Namespace(c.config.Namespace).Resource("pods").Name(a.Name).SubResource("resize").Body(patch).Do(ctx).Error())
}

// ignoreGone returns no error for an object that does not exist.
func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// List reads the pods of the job once.
func (c *Cluster) List(ctx context.Context) ([]podmanager.Pod, error) {
	if err := c.introduce(ctx); err != nil {
		return nil, err
	}
	if _, err := c.list(ctx); err != nil {
		return nil, err
	}
	pods, _ := c.Pods()
	return pods, nil
}

// Note writes an event on the owner of the pods, if there is one.
func (c *Cluster) Note(ctx context.Context, reason, message string, warning bool) error {
	c.mu.Lock()
	self := c.self
	c.mu.Unlock()
	if self == nil || self.target.Name == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	kind := corev1.EventTypeNormal
	if warning {
		kind = corev1.EventTypeWarning
	}
	now := metav1.Now()
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: self.target.Name + ".", Namespace: c.config.Namespace},
		InvolvedObject: self.target, Reason: reason, Message: message, Type: kind, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source: corev1.EventSource{Component: "trainmaster"}, ReportingController: "trainmaster.io/master", ReportingInstance: c.config.Self, Action: reason,
		EventTime: metav1.MicroTime(now),
	}
	return c.core.Post().Namespace(c.config.Namespace).Resource("events").Body(event).Do(ctx).Error()
}

// words returns the message of an error of the API.
func words(err error) string {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "the Kubernetes API does not answer: " + err.Error()
	}
	//guard:missing-right-is-named
	if apierrors.IsForbidden(err) {
		return err.Error() + ": bind the Role of deploy/base to the service account of the master"
	}
	return err.Error()
}
