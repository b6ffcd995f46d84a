//go:build k8s

package k8s

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// awaitReason waits until `master pods` shows words of the cluster.
func (e *Env) awaitReason(t *testing.T, ns, words string) {
	t.Helper()
	Until(t, 3*time.Minute, func() error {
		list := e.inMaster(t, ns, "pods")
		if !strings.Contains(list, words) {
			return fmt.Errorf("expected %q, found\n%s", words, list)
		}
		return nil
	})
}

// F287: an image is missing. The words of the cluster are shown, and the pods start when the image is loaded.
func TestMissingImageIsShownUntilItIsLoaded(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	name := "localhost/" + ns + ":1"
	startMaster(t, c, ns, "--workers=2", "--worker-image="+name, "--worker-command=/probe sleep 10m")
	c.awaitReason(t, ns, "ErrImagePull")
	c.Control(t, "ctr", "images", "tag", "localhost/probe:1", name)
	t.Cleanup(func() { c.Control(t, "ctr", "images", "rm", name) })
	awaitWorkers(t, c, ns, "digits-worker-0-0", "digits-worker-1-0")
	if list := c.inMaster(t, ns, "pods"); strings.Count(list, " Running ") != 2 {
		t.Errorf("expected two pods that run, found\n%s", list)
	}
}

// F287: no node has the wanted device. The words of the scheduler are shown, and the pods start when a node has it.
func TestUnschedulableDeviceIsShownUntilANodeHasIt(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	startMaster(t, c, ns, append(foreign("sleep 10m"), "--workers=2", "--worker-resources=example.com/gpu=1")...)
	c.awaitReason(t, ns, "Insufficient example.com/gpu")
	patch := func(value string) {
		t.Helper()
		c.Kubectl(t, "patch", "node", "localhost", "--subresource=status", "--type=json", "-p", value)
	}
	patch(`[{"op":"add","path":"/status/capacity/example.com~1gpu","value":"2"}]`)
	t.Cleanup(func() { patch(`[{"op":"remove","path":"/status/capacity/example.com~1gpu"}]`) })
	awaitWorkers(t, c, ns, "digits-worker-0-0", "digits-worker-1-0")
}

// F287: a scheduling gate holds the workers. It is shown, and the pods start when it is lifted. The parameter servers do not wait for it.
func TestSchedulingGateIsShownUntilItIsLifted(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	startMasterWith(t, c, ns, "      schedulingGates: [{name: example.com/quota}]\n", append(foreign("sleep 10m"), "--workers=2", "--ps=1")...)
	c.awaitReason(t, ns, "SchedulingGated: Scheduling is blocked due to non-empty scheduling gates")
	for _, pod := range []string{"digits-worker-0-0", "digits-worker-1-0"} {
		c.Kubectl(t, "-n", ns, "patch", "pod", pod, "--type=json", "-p", `[{"op":"remove","path":"/spec/schedulingGates"}]`)
	}
	awaitWorkers(t, c, ns, "digits-worker-0-0", "digits-worker-1-0")
}

// F288: in the middle of a pass, a worker is evicted by the API, another is deleted by force.
// No end is charged, and nothing is lost.
func TestEvictedAndForciblyDeletedWorkersCostNothing(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	directory := startMaster(t, c, ns, "--workers=3", "--ps=1", "--passes=30", "--checkpoint-every=2s", "--max-relaunch=0",
		"--ps-command=master pserver --checkpoint-dir=/job/checkpoints --ps-ttl=60s", slowTrainer)
	awaitWorkers(t, c, ns, "digits-worker-0-0", "digits-worker-1-0", "digits-worker-2-0")
	c.awaitPass(t, ns, 1)
	c.evict(t, ns, "digits-worker-0-0")
	c.Kubectl(t, "-n", ns, "delete", "pod", "digits-worker-1-0", "--force", "--grace-period=0")
	awaitWorkers(t, c, ns, "digits-worker-0-1", "digits-worker-1-1", "digits-worker-2-0")
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=complete", "job/digits", "--timeout=240s")
	verifyJob(t, c, ns, directory)
}

// evict evicts a pod with the API.
func (e *Env) evict(t *testing.T, ns, pod string) {
	t.Helper()
	eviction := fmt.Sprintf(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":%q,"namespace":%q}}`, pod, ns)
	if out, err := e.run(eviction, "kubectl", "create", "--raw", "/api/v1/namespaces/"+ns+"/pods/"+pod+"/eviction", "-f", "-"); err != nil {
		t.Fatalf("%v %s", err, out)
	}
}

// F285: the master is away for longer than --ps-ttl. The servers end with exit code 75, and the trainers may do so too. With --max-relaunch 0, one
// charge would end the job.
func TestMasterThatIsAwayCostsNoRelaunch(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	directory := startMaster(t, c, ns, "--workers=2", "--ps=2", "--passes=25", "--checkpoint-every=1s", "--max-relaunch=0",
		"--ps-command=master pserver --checkpoint-dir=/job/checkpoints --ps-ttl=2s", slowTrainer)
	c.awaitPass(t, ns, 2)
	former := c.leader(t, ns)
	c.Kubectl(t, "-n", ns, "delete", "pod", former) // the next pod starts about 10 s later
	c.awaitNextLeader(t, ns, former)
	Until(t, 3*time.Minute, func() error {
		if list := c.inMaster(t, ns, "pods"); !strings.Contains(list, "exit code 75 (temporary failure)") {
			return fmt.Errorf("expected a server that ended with exit code 75, found\n%s", list)
		}
		return nil
	})
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=complete", "job/digits", "--timeout=240s")
	verifyJob(t, c, ns, directory)
}

// F358: the pod of the master is away for longer than --leader-timeout, as after the failure of its Job. The trainers and the server end, and the next
// master creates them again without a charge: with --max-relaunch 0, one charge would end the job.
func TestPodsEndWithoutAMasterAndReturnWithIt(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	directory := startMaster(t, c, ns, "--workers=2", "--ps=1", "--passes=25", "--checkpoint-every=1s", "--max-relaunch=0",
		"--ps-command=master pserver --checkpoint-dir=/job/checkpoints --ps-ttl=10m --leader-timeout=20s", slowTrainer+" --leader-timeout=20s")
	c.awaitPass(t, ns, 2)
	c.Kubectl(t, "-n", ns, "patch", "job/digits", "--type=merge", "-p", `{"spec":{"suspend":true}}`)
	const code = "{.status.containerStatuses[0].state.terminated.exitCode}"
	for _, pod := range []string{"digits-worker-0-0", "digits-worker-1-0", "digits-ps-0-0"} {
		c.Await(t, 2*time.Minute, ns, "pod/"+pod, code, "75")
	}
	c.Kubectl(t, "-n", ns, "patch", "job/digits", "--type=merge", "-p", `{"spec":{"suspend":false}}`)
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=complete", "job/digits", "--timeout=240s")
	verifyJob(t, c, ns, directory)
}

// F279, F288: the kubelet of the node of all pods stops in the middle of the job. The pods that have no other node wait with the reason, and the job
// ends when the node has returned. Not parallel: the node is lost.
func TestJobSurvivesALostNode(t *testing.T) {
	c := Cluster(t)
	ns := c.Namespace(t)
	directory := startMaster(t, c, ns, "--workers=2", "--ps=1", "--passes=45", "--checkpoint-every=2s", "--node-lost-after=5s", "--max-relaunch=0",
		"--ps-command=master pserver --checkpoint-dir=/job/checkpoints --ps-ttl=60s", slowTrainer)
	awaitWorkers(t, c, ns, "digits-worker-0-0", "digits-worker-1-0")
	c.awaitPass(t, ns, 1)
	c.LoseNode(t)
	for _, pod := range []string{"digits-worker-0-0", "digits-worker-1-0", "digits-ps-0-0"} {
		c.Await(t, 2*time.Minute, ns, "pod/"+pod, Condition("DisruptionTarget", "reason"), "DeletionByTaintManager")
	}
	for _, pod := range []string{"digits-worker-0-1", "digits-worker-1-1", "digits-ps-0-1"} {
		c.Kubectl(t, "-n", ns, "wait", "--for=create", "--timeout=180s", "pod/"+pod)
	}
	c.ReturnNode(t)
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=complete", "job/digits", "--timeout=240s")
	verifyJob(t, c, ns, directory)
}

// program builds a program of this package, and returns the name of its image.
func (e *Env) program(t *testing.T, ns, name string) (image string) {
	t.Helper()
	program, archive := filepath.Join(t.TempDir(), name), filepath.Join(t.TempDir(), "image.tar")
	image = "localhost/" + name + "-" + ns + ":1"
	for _, command := range [][]string{
		{"env", "CGO_ENABLED=0", "go", "build", "-o", program, filepath.Join(e.root, "e2e", "k8s", name)},
		{"go", "run", filepath.Join(e.root, "scripts", "k8s", "mkimg"), archive, image, program},
	} {
		if out, err := e.run("", command[0], command[1:]...); err != nil {
			t.Fatalf("%v %s", err, out)
		}
	}
	e.Control(t, "load", archive)
	return image
}

// F289: trainers hang in a task and still send heartbeats. Their pods are replaced, the relaunches are charged, and the job ends.
func TestHungTrainersAreReplaced(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	name := c.program(t, ns, "hang")
	directory := startMaster(t, c, ns, "--workers=2", "--worker-image="+name, "--worker-command=/hang master:8080", "--dataset=digits=/job/data/digits-0*",
		"--task-timeout-min=1s", "--max-relaunch=20")
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=complete", "job/digits", "--timeout=240s")
	verifyJob(t, c, ns, directory)
	if events := c.Kubectl(t, "-n", ns, "get", "events", "-o", "jsonpath={.items[*].message}"); !strings.Contains(events, "its trainer hangs beyond the hard deadline of its task") {
		t.Errorf("expected an event about a trainer that hangs, found %s", events)
	}
}
