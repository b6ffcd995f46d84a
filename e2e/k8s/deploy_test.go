//go:build k8s

package k8s

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// overlay returns the path of an overlay of deploy.
func (e *Env) overlay(name string) string { return filepath.Join(e.root, "deploy", "overlays", name) }

// The API server accepts each manifest, without unknown fields.
func TestManifestsAreValid(t *testing.T) {
	t.Parallel()
	c := ControlPlane(t)
	ns := c.Namespace(t)
	overlays, err := os.ReadDir(c.overlay(""))
	if err != nil || len(overlays) == 0 {
		t.Fatalf("%d overlays, %v", len(overlays), err)
	}
	for _, overlay := range overlays {
		out, err := c.Try("-n", ns, "apply", "-k", c.overlay(overlay.Name()), "--dry-run=server", "--validate=strict")
		if err != nil || !strings.Contains(out, "job.batch/digits created") {
			t.Errorf("%s: %v\n%s", overlay.Name(), err, out)
		}
	}
}

// F261: the Service of an overlay selects the master of its job only. Masters of TrainingJobs have the same role.
func TestServiceOfAnOverlaySelectsItsMasterOnly(t *testing.T) {
	t.Parallel()
	c := ControlPlane(t)
	for _, overlay := range []string{"single", "ha"} {
		found := false
		for _, object := range strings.Split(c.Kubectl(t, "kustomize", c.overlay(overlay)), "\n---\n") {
			if strings.Contains(object, "kind: Service\n") && strings.Contains(object, "name: master\n") {
				found = true
				if _, selector, _ := strings.Cut(object, "selector:\n"); !strings.Contains(selector, "trainmaster.io/job: digits") {
					t.Errorf("%s: expected the job in the selector of the Service master, found\n%s", overlay, selector)
				}
			}
		}
		if !found {
			t.Errorf("%s: expected a Service master", overlay)
		}
	}
}

// The component monitoring goes with an overlay, and selects the pods of the masters by a port that they have.
func TestMonitoringSelectsTheMasters(t *testing.T) {
	t.Parallel()
	c := ControlPlane(t)
	dir := t.TempDir()
	deploy, err := filepath.Rel(dir, filepath.Join(c.root, "deploy"))
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("resources: [%s/overlays/ha]\ncomponents: [%[1]s/components/monitoring]\n", deploy)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out := c.Kubectl(t, "kustomize", dir)
	for _, want := range []string{"kind: PodMonitor", "name: trainmaster-metrics", "- port: http", "name: http"} {
		if !strings.Contains(out, want) {
			t.Errorf("expected %q in\n%s", want, out)
		}
	}
}

// wantAccuracy requires the accuracy of `master run` in a log, after the words.
func wantAccuracy(t *testing.T, words, log string) {
	t.Helper()
	var accuracy float64
	if m := regexp.MustCompile(words + ` +(0\.\d+)`).FindStringSubmatch(log); m != nil {
		var err error
		if accuracy, err = strconv.ParseFloat(m[1], 64); err != nil {
			t.Fatal(err)
		}
	}
	if accuracy < 0.93 {
		t.Errorf("accuracy %v, expected at least 0.93, in:\n%s", accuracy, log)
	}
}

func TestOnePodTrainsTheDigits(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	c.Kubectl(t, "-n", ns, "apply", "-k", c.overlay("one-pod"))
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=complete", "job/digits", "--timeout=300s")
	wantAccuracy(t, "test accuracy", c.Kubectl(t, "-n", ns, "logs", "job/digits"))
}

// volume makes a volume on the node for a claim of a namespace.
func (e *Env) volume(t *testing.T, namespace, claim string) {
	t.Helper()
	e.Apply(t, namespace, manifest(t, "job-volume.yaml", "@NS@", namespace, "@CLAIM@", claim, "@DIR@", e.Directory(t)))
	t.Cleanup(func() { e.Kubectl(t, "delete", "pv", namespace+"-"+claim, "--wait=false") })
}

// The master creates its workers and servers, trains, saves the model and removes the servers.
func TestSingleTrainsTheDigits(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	c.volume(t, ns, "digits")
	c.Kubectl(t, "-n", ns, "apply", "-k", c.overlay("single"))
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=complete", "job/digits", "--timeout=300s")
	c.awaitEnd(t, ns)
	c.Kubectl(t, "-n", ns, "apply", "-f", filepath.Join(c.overlay("single"), "evaluate.yaml"))
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=complete", "job/digits-evaluate", "--timeout=120s")
	wantAccuracy(t, "accuracy", c.Kubectl(t, "-n", ns, "logs", "job/digits-evaluate"))
}

// The master's pod is evicted or deleted in the middle of the job. The Job is not complete then: its next pod continues the job from the
// volume, at the same name, and the workers continue with it.
func TestDeletedMasterOfSingleContinues(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	c.volume(t, ns, "digits")
	manifests := c.Kubectl(t, "kustomize", c.overlay("single"))
	c.Apply(t, ns, strings.Replace(manifests, "--passes=30", "--passes=300", 1))
	c.awaitPass(t, ns, 3)
	const workers = "pods -l trainmaster.io/job=digits,trainmaster.io/role=worker"
	before := c.Kubectl(t, append([]string{"-n", ns, "get"}, append(strings.Fields(workers), "-o", "jsonpath={.items[*].metadata.uid}")...)...)
	evicted := c.leader(t, ns)
	c.evict(t, ns, evicted)
	c.awaitNextLeader(t, ns, evicted)
	c.awaitPass(t, ns, 5)
	deleted := c.leader(t, ns)
	c.Kubectl(t, "-n", ns, "delete", "pod", deleted)
	c.awaitNextLeader(t, ns, deleted)
	c.awaitPass(t, ns, 7)
	if failed := c.Get(t, ns, "job/digits", "{.status.failed}"); failed != "" && failed != "0" {
		t.Errorf("%s failed pods: expected that no pod counts", failed)
	}
	if complete := c.Get(t, ns, "job/digits", Condition("Complete", "status")); complete == "True" {
		t.Error("the Job is complete without its master")
	}
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=complete", "job/digits", "--timeout=300s")
	after := c.Kubectl(t, append([]string{"-n", ns, "get"}, append(strings.Fields(workers), "-o", "jsonpath={.items[*].metadata.uid}")...)...)
	if before == "" || before != after {
		t.Errorf("workers %q, and %q after the replacement of the master: expected the same", before, after)
	}
	c.awaitEnd(t, ns)
	c.verify(t, ns, "/job/etcd")
}

// verify proves the ledger of the job digits, whose embedded etcd is in a directory of the volume.
func (e *Env) verify(t *testing.T, namespace, dir string) {
	t.Helper()
	manifest, err := os.ReadFile(filepath.Join(e.overlay("single"), "evaluate.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	e.Apply(t, namespace, strings.NewReplacer("digits-evaluate", "digits-verify", "[model, evaluate, --exit-codes=pod, --data=/job/data/digits, /job/model.safetensors]",
		"[verify, --data-dir="+dir+", --job=digits]", "readOnly: true", "readOnly: false").Replace(string(manifest)))
	e.Kubectl(t, "-n", namespace, "wait", "--for=condition=complete", "job/digits-verify", "--timeout=120s")
}

// awaitNextLeader waits until another pod leads.
func (e *Env) awaitNextLeader(t *testing.T, namespace, former string) {
	t.Helper()
	Until(t, 2*time.Minute, func() error {
		if e.leader(t, namespace) == former {
			return fmt.Errorf("expected another leader than %s", former)
		}
		return nil
	})
}

// awaitEnd waits until the pods of the job digits are its master and 3 workers, which have succeeded. Servers may take a moment to stop.
func (e *Env) awaitEnd(t *testing.T, namespace string) {
	t.Helper()
	Until(t, 2*time.Minute, func() error {
		pods, err := e.Try("-n", namespace, "get", "pods", "-l", "trainmaster.io/job=digits", "-o", `jsonpath={range .items[*]}{.metadata.labels.trainmaster\.io/role} {.status.phase}{"\n"}{end}`)
		if err != nil {
			return err
		}
		found := strings.Split(pods, "\n")
		slices.Sort(found)
		if strings.Join(found, ",") != "master Succeeded,worker Succeeded,worker Succeeded,worker Succeeded" {
			return fmt.Errorf("expected the master and 3 workers, all of them succeeded, found %s", pods)
		}
		return nil
	})
}

// awaitPass waits until the job digits is in a pass, by the status of its leader.
func (e *Env) awaitPass(t *testing.T, namespace string, pass int) {
	t.Helper()
	Until(t, 2*time.Minute, func() error {
		out, err := e.Try("-n", namespace, "exec", e.leader(t, namespace), "-c", "main", "--", "/master", "status", "--addr=127.0.0.1:8080", "-o", "json")
		if err != nil {
			return err
		}
		var status struct{ Datasets []struct{ Pass int } }
		if err := json.Unmarshal([]byte(out), &status); err != nil {
			return err
		}
		if len(status.Datasets) == 0 || status.Datasets[0].Pass < pass {
			return fmt.Errorf("expected pass %d, found %s", pass, out)
		}
		return nil
	})
}

// The leader of two masters is killed in the middle of the job. The standby continues the job, and its exit ends the Job and the other pod.
// F359: the leader survives a standby with wrong usage.
func TestTwoMastersTrainTheDigits(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	c.volume(t, ns, "digits")
	for i := range 3 {
		c.volume(t, ns, fmt.Sprintf("data-etcd-%d", i))
	}
	c.loadEtcd(t)
	manifests := c.Kubectl(t, "kustomize", c.overlay("ha"))
	c.Apply(t, ns, strings.NewReplacer("--passes=30", "--passes=600", "/usr/local/bin/etcd", "/etcd").Replace(manifests))
	c.awaitPass(t, ns, 3)
	leader := c.leader(t, ns)
	c.Kubectl(t, "-n", ns, "delete", "pod", leader, "--grace-period=1")
	c.awaitNextLeader(t, ns, leader)
	c.awaitPass(t, ns, 5)
	c.breakStandby(t, ns)
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=complete", "job/digits", "--timeout=300s")
	if reason := c.Get(t, ns, "job/digits", Condition("SuccessCriteriaMet", "reason")); reason != "SuccessPolicy" {
		t.Errorf("reason %q: expected SuccessPolicy", reason)
	}
}

// F359: both masters have wrong usage. Their Job fails with the reason.
func TestTwoMastersWithWrongUsageFailTheJob(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	c.volume(t, ns, "digits")
	for i := range 3 {
		c.volume(t, ns, fmt.Sprintf("data-etcd-%d", i))
	}
	c.loadEtcd(t)
	c.Apply(t, ns, strings.NewReplacer("--workers=3", "--workers=3:1", "/usr/local/bin/etcd", "/etcd").Replace(c.Kubectl(t, "kustomize", c.overlay("ha"))))
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=failed", "job/digits", "--timeout=180s")
	if reason := c.Get(t, ns, "job/digits", Condition("Failed", "reason")); reason != "PodFailurePolicy" {
		t.Errorf("reason %q: expected PodFailurePolicy", reason)
	}
}

// breakStandby makes the template of pods invalid and deletes the standby of the overlay ha. Its next pod ends with 75 (F359).
func (e *Env) breakStandby(t *testing.T, namespace string) {
	t.Helper()
	masters := func(path string) []string {
		t.Helper()
		return strings.Fields(e.Kubectl(t, "-n", namespace, "get", "pods", "-l", "trainmaster.io/role=master", "-o", "jsonpath="+path))
	}
	leader := e.leader(t, namespace)
	for _, name := range strings.Fields(e.Kubectl(t, "-n", namespace, "get", "configmaps", "-o", "jsonpath={.items[*].metadata.name}")) {
		if strings.HasPrefix(name, "digits-pods") {
			e.Kubectl(t, "-n", namespace, "patch", "configmap/"+name, "--type=merge", "-p", `{"data":{"pod.yaml":"spec: {tolerationz: []}"}}`)
		}
	}
	for _, name := range masters("{.items[*].metadata.name}") { // also a pod that has mounted the former template
		if name != leader {
			e.Kubectl(t, "-n", namespace, "delete", "pod", name, "--grace-period=1", "--ignore-not-found")
		}
	}
	Until(t, 2*time.Minute, func() error {
		codes := masters("{.items[*].status.containerStatuses[*].state.terminated.exitCode}")
		if !slices.Contains(codes, "75") {
			return fmt.Errorf("expected a standby that has ended with 75, found the exit codes %q", codes)
		}
		return nil
	})
	if now := e.leader(t, namespace); now != leader {
		t.Errorf("expected the leader %s, found %s", leader, now)
	}
}

// leader returns the pod of the master that leads.
func (e *Env) leader(t *testing.T, namespace string) (name string) {
	t.Helper()
	client := http.Client{Timeout: time.Second}
	Until(t, 3*time.Minute, func() error {
		pods, err := e.Try("-n", namespace, "get", "pods", "-l", "trainmaster.io/role=master", "-o", `jsonpath={range .items[*]}{.metadata.name} {.status.podIP}{"\n"}{end}`)
		if err != nil {
			return err
		}
		for line := range strings.Lines(pods) {
			pod, ip, _ := strings.Cut(strings.TrimSpace(line), " ")
			answer, err := client.Get("http://" + net.JoinHostPort(ip, "8081") + "/readyz")
			if err != nil {
				continue
			}
			text, err := io.ReadAll(answer.Body)
			answer.Body.Close()
			if err == nil && strings.TrimSpace(string(text)) == "leader" {
				name = pod
				return nil
			}
		}
		return fmt.Errorf("expected a leader, found %s", pods)
	})
	return name
}

// loadEtcd imports an image with the etcd of the cluster, under the name in the overlay.
func (e *Env) loadEtcd(t *testing.T) {
	t.Helper()
	program, err := exec.LookPath("etcd")
	if err != nil {
		t.Fatal(err)
	}
	manifests := e.Kubectl(t, "kustomize", e.overlay("ha"))
	name := regexp.MustCompile(`image: (\S+/etcd:\S+)`).FindStringSubmatch(manifests)
	if name == nil {
		t.Fatal("the overlay ha has no image of etcd")
	}
	archive := filepath.Join(t.TempDir(), "etcd.tar")
	if out, err := e.run("", "go", "run", filepath.Join(e.root, "scripts", "k8s", "mkimg"), archive, name[1], program); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	e.Control(t, "load", archive)
}
