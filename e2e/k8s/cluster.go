//go:build k8s

package k8s

import (
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Env is the running cluster. The process of the tests is in its network namespace, so addresses of pods and Services can be dialed.
// There is no way out of this namespace.
type Env struct {
	// Kubeconfig is the path of a file with all rights, for client-go.
	Kubeconfig string
	// Run is the directory of the cluster, with the logs of its components in log.
	Run string
	// Image is the image of the tree under test, with the entry point /master. Pods need the imagePullPolicy Never, or IfNotPresent.
	Image string
	root  string
}

// Cluster returns the cluster with a node that runs containers ("localhost"), a fake node ("kwok-0"), Services and DNS. Without root or
// containerd it skips the test, or fails it if REQUIRE is "all".
func Cluster(t testing.TB) *Env {
	t.Helper()
	return require(t, node)
}

// ControlPlane returns a cluster for tests without containers: it may have only the API server, the controllers, the scheduler and
// the fake node "kwok-0".
func ControlPlane(t testing.TB) *Env {
	t.Helper()
	return require(t, control)
}

func require(t testing.TB, needed tier) *Env {
	t.Helper()
	have, ok := tiers[os.Getenv(tierVariable)]
	if !ok {
		t.Fatalf("%s: expected a tier, found %q: call k8s.Main from TestMain", tierVariable, os.Getenv(tierVariable))
	}
	if have < needed {
		if os.Getenv("REQUIRE") == "all" {
			t.Fatal(os.Getenv(missingVariable))
		}
		t.Skip(os.Getenv(missingVariable))
	}
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	return &Env{Kubeconfig: os.Getenv("KUBECONFIG"), Run: os.Getenv(runVariable), Image: image, root: root}
}

// Kubectl runs kubectl and returns its output without the last line break. An error fails the test.
func (e *Env) Kubectl(t testing.TB, args ...string) string {
	t.Helper()
	out, err := e.Try(args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Try runs kubectl. The error contains what kubectl wrote to stderr.
func (e *Env) Try(args ...string) (string, error) { return e.run("", "kubectl", args...) }

// Apply applies manifests in a namespace.
func (e *Env) Apply(t testing.TB, namespace, manifests string) {
	t.Helper()
	if out, err := e.run(manifests, "kubectl", "-n", namespace, "apply", "-f", "-"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// Get returns a field of an object, by a JSONPath such as {.status.phase}.
func (e *Env) Get(t testing.TB, namespace, object, path string) string {
	t.Helper()
	return e.Kubectl(t, "-n", namespace, "get", object, "-o", "jsonpath="+path)
}

// Await waits until a field of an object has a value.
func (e *Env) Await(t testing.TB, limit time.Duration, namespace, object, path, want string) {
	t.Helper()
	Until(t, limit, func() error {
		found, err := e.Try("-n", namespace, "get", object, "-o", "jsonpath="+path)
		if err == nil && found != want {
			err = fmt.Errorf("%s %s: expected %q, found %q", object, path, want, found)
		}
		return err
	})
}

// Condition is the JSONPath of a field of a condition, for Get and Await.
func Condition(kind, field string) string {
	return fmt.Sprintf("{.status.conditions[?(@.type==%q)].%s}", kind, field)
}

// Until repeats f until it returns nil. If the limit passes, the test fails with the last error.
func Until(t testing.TB, limit time.Duration, f func() error) {
	t.Helper()
	for end := time.Now().Add(limit); ; {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("after %v: %v", limit, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// Namespace makes a namespace for the test and deletes it afterwards. If the test fails, it logs the pods, their logs and the events.
func (e *Env) Namespace(t testing.TB) string {
	t.Helper()
	name := "test-" + strings.ToLower(rand.Text()[:8])
	e.Kubectl(t, "create", "namespace", name)
	t.Cleanup(func() {
		if t.Failed() {
			e.describe(t, name)
		}
		if _, err := e.Try("delete", "namespace", name, "--wait=false"); err != nil {
			t.Error(err)
		}
	})
	// Pods are rejected until the account exists.
	Until(t, 90*time.Second, func() error {
		_, err := e.Try("-n", name, "get", "serviceaccount", "default")
		return err
	})
	return name
}

// describe logs what a person needs to understand a failure.
func (e *Env) describe(t testing.TB, namespace string) {
	show := func(args ...string) {
		out, err := e.Try(append([]string{"-n", namespace}, args...)...)
		t.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	show("get", "all", "-o", "wide")
	show("get", "events", "--sort-by=.metadata.creationTimestamp")
	pods, err := e.Try("-n", namespace, "get", "pods", "-o", "jsonpath={.items[*].metadata.name}")
	if err != nil {
		t.Log(err)
	}
	names := strings.Fields(pods)
	for _, pod := range names[:min(30, len(names))] {
		show("logs", pod, "--all-containers", "--tail=40", "--ignore-errors")
	}
}

// Directory makes a directory for a hostPath volume, which each user can write. It is removed with the cluster.
func (e *Env) Directory(t testing.TB) string {
	t.Helper()
	parent := filepath.Join(e.Run, "volumes")
	if err := os.MkdirAll(parent, 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(parent, "")
	if err == nil {
		err = os.Chmod(dir, 0o777)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Control runs scripts/k8s/ctl.sh, for example with kubelet kill, kubelet start or kill kube-apiserver.
func (e *Env) Control(t testing.TB, args ...string) string {
	t.Helper()
	return e.script(t, "ctl.sh", args...)
}

// Start runs scripts/k8s/start.sh: it starts ended components again. The word control names the control plane.
func (e *Env) Start(t testing.TB, words ...string) {
	t.Helper()
	e.script(t, "start.sh", words...)
}

func (e *Env) script(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := e.run("", filepath.Join(e.root, "scripts", "k8s", name), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// run runs a command in the environment of the cluster.
func (e *Env) run(stdin, name string, args ...string) (string, error) {
	stdout, err := newOutput(e.Run)
	if err != nil {
		return "", err
	}
	defer stdout.Close()
	stderr, err := newOutput(e.Run)
	if err != nil {
		return "", err
	}
	defer stderr.Close()
	cmd := exec.Command(name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), stdout.File, stderr.File
	err = cmd.Run()
	out := strings.TrimSuffix(stdout.text(), "\n")
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", filepath.Base(name), strings.Join(args, " "), err, strings.TrimSpace(stderr.text()))
	}
	return out, err
}

// LoseNode kills the kubelet. About 20 s later, the node has the taint unreachable; its containers stay. The fake node stays Ready, without
// which no pod would be evicted. A test with a lost node must not be parallel.
func (e *Env) LoseNode(t testing.TB) {
	t.Helper()
	e.Kubectl(t, "wait", "--for=condition=Ready", "--timeout=10s", "node/kwok-0")
	e.Control(t, "kubelet", "kill")
	t.Cleanup(func() { e.Start(t, "node", "proxy", "dns") })
}

// ReturnNode starts the kubelet again, and waits for the node and DNS. LoseNode calls it after the test.
func (e *Env) ReturnNode(t testing.TB) {
	t.Helper()
	e.Start(t, "node")
	e.Kubectl(t, "wait", "--for=condition=Ready", "--timeout=90s", "node/localhost")
	e.Start(t, "dns")
}
