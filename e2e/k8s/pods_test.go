//go:build k8s

package k8s

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Not parallel: a pod asks for more than half of the memory of the node.
func TestMemoryIsResizedInPlace(t *testing.T) {
	c := Cluster(t)
	ns := c.Namespace(t)
	c.put(t, ns, "resize.yaml")
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "--timeout=180s", "pod/resize")
	resize := func(memory string) (string, error) {
		return c.Try("-n", ns, "patch", "pod", "resize", "--subresource", "resize", "-p",
			fmt.Sprintf(`{"spec":{"containers":[{"name":"main","resources":{"requests":{"memory":%[1]q},"limits":{"memory":%[1]q}}}]}}`, memory))
	}
	must := func(memory string) {
		t.Helper()
		if _, err := resize(memory); err != nil {
			t.Fatal(err)
		}
	}
	limit := func(bytes int) {
		t.Helper()
		Until(t, 3*time.Minute, func() error {
			found, err := c.Try("-n", ns, "logs", "resize", "--tail=1")
			if err == nil && found != strconv.Itoa(bytes) {
				err = fmt.Errorf("limit in the container: expected %d, found %s", bytes, found)
			}
			return err
		})
	}
	limit(64 << 20)
	must("96Mi")
	limit(96 << 20)
	c.Await(t, 3*time.Minute, ns, "pod/resize", "{.status.containerStatuses[0].resources.limits.memory}", "96Mi")
	c.Await(t, 3*time.Minute, ns, "pod/resize", Condition("PodResizeInProgress", "status"), "")
	must("80Mi")
	limit(80 << 20)
	c.Await(t, 0, ns, "pod/resize", "{.status.containerStatuses[0].restartCount}", "0")

	kibibytes, err := strconv.Atoi(strings.TrimSuffix(c.Kubectl(t, "get", "node", "localhost", "-o", "jsonpath={.status.allocatable.memory}"), "Ki"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := resize(fmt.Sprintf("%dKi", 2*kibibytes)); err == nil || !strings.Contains(err.Error(), "enough allocatable") {
		t.Errorf("resize to twice the memory of the node: expected a refusal, found %v", err)
	}
	most := kibibytes * 6 / 10 / 4 * 4 // whole pages
	filler := strings.NewReplacer("name: resize", "name: filler", "memory: 64Mi", fmt.Sprintf("memory: %dKi", most))
	c.Apply(t, ns, filler.Replace(manifest(t, "resize.yaml")))
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "--timeout=180s", "pod/filler")
	must(fmt.Sprintf("%dKi", most))
	c.Await(t, 3*time.Minute, ns, "pod/resize", Condition("PodResizePending", "reason"), "Deferred")
	c.Kubectl(t, "-n", ns, "delete", "pod", "filler")
	limit(most << 10)
}

// Not parallel: the node is lost.
func TestPodOfALostNodeIsEvicted(t *testing.T) {
	c := Cluster(t)
	ns := c.Namespace(t)
	c.put(t, ns, "node-loss.yaml")
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "--timeout=180s", "pod/lost")
	c.LoseNode(t)
	c.Await(t, 2*time.Minute, ns, "pod/lost", Condition("DisruptionTarget", "reason"), "DeletionByTaintManager")
	c.ReturnNode(t)
	c.Kubectl(t, "-n", ns, "wait", "--for=delete", "--timeout=180s", "pod/lost")
}

func TestContainerAboveItsMemoryLimitIsOOMKilled(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	var reason string
	for range 5 { // the runtime may report an end before it knows that memory was the reason
		c.put(t, ns, "oom.yaml")
		c.Await(t, 3*time.Minute, ns, "pod/oom", "{.status.phase}", "Failed")
		c.Await(t, 0, ns, "pod/oom", "{.status.containerStatuses[0].state.terminated.exitCode}", "137")
		if reason = c.Get(t, ns, "pod/oom", "{.status.containerStatuses[0].state.terminated.reason}"); reason == "OOMKilled" {
			return
		}
		c.Kubectl(t, "-n", ns, "delete", "pod/oom")
	}
	t.Errorf("expected OOMKilled, found %s", reason)
}

func TestStaticVolumesKeepFiles(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns, dir := c.Namespace(t), c.Directory(t)
	if err := os.Mkdir(filepath.Join(dir, "local"), 0o777); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Kubectl(t, "delete", "pv", ns+"-hostpath", ns+"-local", "--wait=false") })
	c.put(t, ns, "volume.yaml", "@DIR@", dir)
	c.Await(t, 3*time.Minute, ns, "pod/volume", "{.status.phase}", "Succeeded")
	if found := c.Kubectl(t, "-n", ns, "logs", "volume", "-c", "main"); found != "first\nsecond" {
		t.Errorf("the container read %q, expected first and second", found)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "local", "two")); err != nil || string(text) != "second\n" {
		t.Errorf("file on the node: expected second, found %q, %v", text, err)
	}
}

func TestDeletionRunsThePreStopHookAndWaitsForTheDrain(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns, dir := c.Namespace(t), c.Directory(t)
	c.put(t, ns, "term.yaml", "@DIR@", dir)
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "--timeout=180s", "pod/term")
	logs := make(chan string)
	go func() {
		out, err := c.Try("-n", ns, "logs", "-f", "term")
		logs <- fmt.Sprint(out, err)
	}()
	Until(t, 90*time.Second, func() error { // otherwise SIGTERM arrives before its handler
		out, err := c.Try("-n", ns, "logs", "term")
		if err == nil && out != "started" {
			err = fmt.Errorf("log: expected started, found %q", out)
		}
		return err
	})
	began := time.Now()
	c.Kubectl(t, "-n", ns, "delete", "pod", "term", "--wait=true")
	if took := time.Since(began); took < 2*time.Second || took > 18*time.Second {
		t.Errorf("deletion: expected 2 s for the drain and less than the grace of 20 s, found %v", took)
	}
	if found := <-logs; !strings.Contains(found, "got SIGTERM\ndrained") {
		t.Errorf("log: expected got SIGTERM and drained, found %q", found)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "term", "prestop")); err != nil || string(text) != "ran\n" {
		t.Errorf("file of the preStop hook: expected ran, found %q, %v", text, err)
	}
}

func TestInitContainerCopiesAProgramIntoAnotherImage(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	c.put(t, ns, "init-copy.yaml")
	c.Await(t, 3*time.Minute, ns, "pod/init-copy", "{.status.phase}", "Succeeded")
	c.Await(t, 0, ns, "pod/init-copy", "{.status.containerStatuses[0].state.terminated.message}", "copied")
}

func TestImageOfThisTreeRuns(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	c.Kubectl(t, "-n", ns, "run", "version", "--image="+c.Image, "--image-pull-policy=Never", "--restart=Never", "--", "version")
	c.Await(t, 3*time.Minute, ns, "pod/version", "{.status.phase}", "Succeeded")
	if found := c.Kubectl(t, "-n", ns, "logs", "version"); !strings.HasPrefix(found, "master ") && !strings.Contains(found, "go1.") {
		t.Errorf("master version: found %q", found)
	}
}

func TestFakeNodeCompletesPodsOfAJob(t *testing.T) {
	t.Parallel()
	c := ControlPlane(t)
	ns := c.Namespace(t)
	c.put(t, ns, "fake-job.yaml")
	c.Await(t, 3*time.Minute, ns, "job/fake", Condition("Complete", "status"), "True")
}
