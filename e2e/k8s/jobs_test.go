//go:build k8s

package k8s

import (
	"strings"
	"testing"
	"time"
)

func TestJobFailsAtOnceByPodFailurePolicy(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	c.put(t, ns, "job-policy.yaml")
	c.Await(t, 3*time.Minute, ns, "job/policy", Condition("Failed", "reason"), "PodFailurePolicy")
	c.Await(t, 0, ns, "job/policy", "{.status.failed}", "1")
	pods := c.Kubectl(t, "-n", ns, "get", "pods", "-l", "job-name=policy", "-o", "jsonpath={.items[*].status.containerStatuses[0].state.terminated.message}")
	if pods != "bad input" {
		t.Errorf("termination messages of the pods: expected one, %q, found %q", "bad input", pods)
	}
}

func TestJobWithoutCompletionsWaitsForItsOtherPod(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	c.put(t, ns, "job-parallel.yaml", "@DIR@", c.Directory(t))
	c.Await(t, 3*time.Minute, ns, "job/parallel", "{.status.succeeded}", "1")
	c.Await(t, 0, ns, "job/parallel", Condition("Complete", "status"), "")
	c.Await(t, 3*time.Minute, ns, "job/parallel", Condition("Complete", "status"), "True")
	c.Await(t, 0, ns, "job/parallel", "{.status.failed}", "1")
	if pods := strings.Fields(c.Kubectl(t, "-n", ns, "get", "pods", "-l", "job-name=parallel", "-o", "name")); len(pods) != 2 {
		t.Errorf("pods after the first success: expected no new one, found %d: %v", len(pods), pods)
	}
	c.Await(t, 3*time.Minute, ns, "job/success", Condition("Complete", "reason"), "SuccessPolicy")
	c.Await(t, 0, ns, "job/success", "{.status.succeeded}", "1")
}
