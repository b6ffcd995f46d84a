//go:build k8s

package k8s

import (
	"strings"
	"testing"
)

// F291, F293: two groups of two pods train a job to its end. The pod of rank 1 of a group is killed: both pods of the group are replaced, and nothing is
// lost or counted twice.
func TestGroupsOfPodsTrainTogether(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	directory := startMaster(t, c, ns, "--workers=2", "--group-size=2", "--worker-image="+c.program(t, ns, "group"), "--worker-command=/group master:8080",
		"--dataset=digits=/job/data/digits-0*", "--passes=80")
	awaitWorkers(t, c, ns, "digits-worker-0-0", "digits-worker-0-0-1", "digits-worker-1-0", "digits-worker-1-0-1")
	c.awaitPass(t, ns, 1)
	if list := c.inMaster(t, ns, "trainers"); !strings.Contains(list, "digits-worker-0-0 ") || strings.Contains(list, "-0-1 ") {
		t.Errorf("expected the pods of rank 0 as trainers, found\n%s", list)
	}
	killWorker(t, c, ns, "digits-worker-0-0-1")
	awaitWorkers(t, c, ns, "digits-worker-0-1", "digits-worker-0-1-1", "digits-worker-1-0", "digits-worker-1-0-1")
	if list := c.inMaster(t, ns, "pods"); !strings.Contains(list, "digits-worker-0-1-1") {
		t.Errorf("found\n%s", list)
	}
	if status := strings.Join(strings.Fields(c.inMaster(t, ns, "status")), " "); !strings.Contains(status, "worker pods 2 of 2 groups of 2 running") {
		t.Errorf("found\n%s", status)
	}
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=complete", "job/digits", "--timeout=240s")
	for _, pod := range []string{"digits-worker-0-1", "digits-worker-0-1-1", "digits-worker-1-0", "digits-worker-1-0-1"} {
		c.Await(t, 0, ns, "pod/"+pod, "{.status.phase}", "Succeeded")
	}
	verifyJob(t, c, ns, directory)
	c.Kubectl(t, "-n", ns, "delete", "job", "digits", "--wait=true")
	c.Kubectl(t, "-n", ns, "wait", "--for=delete", "service/workers-digits", "--timeout=180s")
}
