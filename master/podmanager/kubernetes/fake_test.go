package kubernetes_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// api is the part of the API of Kubernetes that the package uses. It serves pods over HTTP; e2e/k8s runs on a real cluster.
type api struct {
	*httptest.Server
	mu       sync.Mutex
	version  int
	pods     map[string]*corev1.Pod
	watchers map[chan metav1.WatchEvent]bool
	history  []posted
	events   []corev1.Event
	services map[string]*corev1.Service
	expired  bool // watches are refused with 410 until the next list
	refuse   int  // status of the next requests; 0: none is refused
	lists    int
}

// posted is an event of a version.
type posted struct {
	version int
	event   metav1.WatchEvent
}

func newAPI(t *testing.T) *api {
	a := &api{pods: map[string]*corev1.Pod{}, watchers: map[chan metav1.WatchEvent]bool{}, services: map[string]*corev1.Service{}, version: 1}
	a.Server = httptest.NewServer(http.HandlerFunc(a.serve))
	t.Cleanup(func() {
		a.CloseClientConnections()
		a.Close()
	})
	return a
}

func (a *api) config() *rest.Config { return &rest.Config{Host: a.URL} }

func (a *api) fail(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message})
}

func (a *api) serve(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	refuse := a.refuse
	a.mu.Unlock()
	if refuse != 0 {
		reason := map[int]metav1.StatusReason{http.StatusUnprocessableEntity: metav1.StatusReasonInvalid, http.StatusBadRequest: metav1.StatusReasonBadRequest}[refuse]
		a.fail(w, refuse, cmp.Or(reason, metav1.StatusReasonForbidden), "exceeded quota: two pods")
		return
	}
	_, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/api/v1/namespaces/ns/"), "/")
	switch {
	case strings.HasSuffix(r.URL.Path, "/events"):
		var e corev1.Event
		_ = json.NewDecoder(r.Body).Decode(&e)
		a.mu.Lock()
		a.events = append(a.events, e)
		a.mu.Unlock()
		a.answer(w, &e)
	case strings.Contains(r.URL.Path, "/services"):
		a.service(w, r, name)
	case r.URL.Query().Get("watch") != "":
		a.watch(w, r)
	case r.Method == http.MethodGet && name == "":
		a.list(w)
	case r.Method == http.MethodGet:
		a.mu.Lock()
		pod := a.pods[name]
		a.mu.Unlock()
		if pod == nil {
			a.fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, "not found")
			return
		}
		a.answer(w, pod)
	case r.Method == http.MethodPost:
		var pod corev1.Pod
		if err := json.NewDecoder(r.Body).Decode(&pod); err != nil {
			a.fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
			return
		}
		if !a.add(&pod) {
			a.fail(w, http.StatusConflict, metav1.StatusReasonAlreadyExists, "exists")
			return
		}
		a.answer(w, &pod)
	case r.Method == http.MethodPatch:
		a.resize(w, r, strings.TrimSuffix(name, "/resize"))
	case r.Method == http.MethodDelete:
		a.remove(w, r, name)
	}
}

// service creates a Service, or returns it.
func (a *api) service(w http.ResponseWriter, r *http.Request, name string) {
	var s corev1.Service
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.Method == http.MethodGet {
		a.answer(w, a.services[name])
		return
	}
	if err := json.NewDecoder(r.Body).Decode(&s); err != nil {
		a.fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	if a.services[s.Name] != nil {
		a.fail(w, http.StatusConflict, metav1.StatusReasonAlreadyExists, "exists")
		return
	}
	a.services[s.Name] = &s
	a.answer(w, &s)
}

// resize merges the resources of a container, as a strategic merge patch does.
func (a *api) resize(w http.ResponseWriter, r *http.Request, name string) {
	var patch corev1.Pod
	err := json.NewDecoder(r.Body).Decode(&patch)
	if err != nil || len(patch.Spec.Containers) != 1 || r.Header.Get("Content-Type") != string(types.StrategicMergePatchType) {
		a.fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, fmt.Sprintf("expected a patch of one container, found %+v, %v", patch, err))
		return
	}
	a.mu.Lock()
	found := a.pods[name]
	isOther := found == nil || found.UID != patch.UID
	a.mu.Unlock()
	if isOther {
		a.fail(w, http.StatusConflict, metav1.StatusReasonConflict, "another UID")
		return
	}
	a.change(name, func(p *corev1.Pod) {
		change := patch.Spec.Containers[0]
		for i := range p.Spec.Containers {
			if c := &p.Spec.Containers[i]; c.Name == change.Name {
				maps.Copy(c.Resources.Requests, change.Resources.Requests)
				maps.Copy(c.Resources.Limits, change.Resources.Limits)
			}
		}
	})
	a.answer(w, &patch)
}

func (a *api) answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	b, _ := json.Marshal(v)
	var object map[string]any
	_ = json.Unmarshal(b, &object)
	kind := strings.TrimPrefix(fmt.Sprintf("%T", v), "*v1.")
	object["kind"], object["apiVersion"] = kind, "v1"
	_ = json.NewEncoder(w).Encode(object)
}

func (a *api) list(w http.ResponseWriter) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lists++
	a.expired = false
	list := corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: fmt.Sprint(a.version)}}
	for _, p := range a.pods {
		list.Items = append(list.Items, *p)
	}
	a.answer(w, &list)
}

func (a *api) watch(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	if a.expired {
		a.mu.Unlock()
		a.fail(w, http.StatusGone, metav1.StatusReasonExpired, "too old resource version")
		return
	}
	events := make(chan metav1.WatchEvent, 1000)
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	for _, p := range a.history { // since the list
		if p.version > from {
			events <- p.event
		}
	}
	a.watchers[events] = true
	a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case e, ok := <-events:
			if !ok {
				return
			}
			b, _ := json.Marshal(e)
			_, _ = io.WriteString(w, string(b)+"\n")
			w.(http.Flusher).Flush()
		}
	}
}

// cut ends all watches.
func (a *api) cut() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for w := range a.watchers {
		close(w)
	}
	clear(a.watchers)
}

func (a *api) post(kind string, object any) {
	b, _ := json.Marshal(object)
	e := metav1.WatchEvent{Type: kind}
	e.Object.Raw = b
	if kind != "ERROR" {
		a.history = append(a.history, posted{a.version, e})
	}
	for w := range a.watchers {
		w <- e
	}
}

func (a *api) add(pod *corev1.Pod) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pods[pod.Name] != nil {
		return false
	}
	a.version++
	pod.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	pod.UID, pod.ResourceVersion, pod.Status.Phase = types.UID(fmt.Sprint("uid-", a.version)), fmt.Sprint(a.version), corev1.PodPending
	a.pods[pod.Name] = pod.DeepCopy()
	a.post("ADDED", pod)
	return true
}

// change changes a pod.
func (a *api) change(name string, edit func(*corev1.Pod)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	edit(a.pods[name])
	a.pods[name].ResourceVersion = fmt.Sprint(a.version)
	a.post("MODIFIED", a.pods[name])
}

func (a *api) remove(w http.ResponseWriter, r *http.Request, name string) {
	var options metav1.DeleteOptions
	_ = json.NewDecoder(r.Body).Decode(&options)
	a.mu.Lock()
	pod := a.pods[name]
	if pod != nil && (options.Preconditions == nil || *options.Preconditions.UID == pod.UID) {
		delete(a.pods, name)
		a.version++
		a.post("DELETED", pod)
		a.mu.Unlock()
		a.answer(w, pod)
		return
	}
	a.mu.Unlock()
	if pod == nil {
		a.fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, "not found")
		return
	}
	a.fail(w, http.StatusConflict, metav1.StatusReasonConflict, "the UID in the precondition does not match")
}

// expire ends the watches with an event of an expired version.
func (a *api) expire() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.post("ERROR", metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "too old"})
}
