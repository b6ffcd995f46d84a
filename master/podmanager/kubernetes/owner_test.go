package kubernetes_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"trainmaster/master/podmanager/kubernetes"
)

// F320: a master changes only the Job that its pod belongs to, by name and UID: another Job may have the name later.
func TestAnnotationIsOfItsOwnJob(t *testing.T) {
	type patched struct {
		path, kind string
		body       struct {
			Metadata metav1.ObjectMeta `json:"metadata"`
		}
	}
	var found []patched
	pods := newAPI(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPatch {
			pods.serve(w, r)
			return
		}
		b, _ := io.ReadAll(r.Body)
		p := patched{path: r.URL.Path, kind: r.Header.Get("Content-Type")}
		if err := json.Unmarshal(b, &p.body); err != nil {
			t.Error(err)
		}
		found = append(found, p)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"Job","apiVersion":"batch/v1","metadata":{"annotations":{"other":"y"}}}`)
	}))
	t.Cleanup(server.Close)
	annotate := func(owners ...metav1.OwnerReference) error {
		pods.mu.Lock()
		delete(pods.pods, "m-0")
		pods.mu.Unlock()
		pods.add(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "m-0", Namespace: "ns", OwnerReferences: owners}})
		c, err := kubernetes.New(kubernetes.Config{Job: "j", API: &rest.Config{Host: server.URL}, Namespace: "ns", Self: "m-0", QPS: 1000})
		if err != nil {
			t.Fatal(err)
		}
		all, err := c.Annotate(t.Context(), map[string]string{"trainmaster.io/progress": "x"})
		if err == nil && all["other"] != "y" {
			t.Errorf("annotations: found %v", all)
		}
		return err
	}
	if err := annotate(metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: "m", UID: "job-uid", Controller: new(true)}); err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 || found[0].path != "/apis/batch/v1/namespaces/ns/jobs/m" || found[0].kind != "application/merge-patch+json" ||
		found[0].body.Metadata.UID != "job-uid" || found[0].body.Metadata.Annotations["trainmaster.io/progress"] != "x" {
		t.Errorf("found %+v", found)
	}
	if err := annotate(); err == nil || !strings.Contains(err.Error(), "expected a Job as its controller") {
		t.Errorf("without a Job: found %v", err)
	}
}
