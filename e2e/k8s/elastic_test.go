//go:build k8s

package k8s

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "trainmaster/proto/trainmaster/v1"
)

const slowTrainer = "--worker-command=master trainer --data '/job/data/digits-0*' --record-delay 3ms"

// F284: a running job has 4, 2, 4, 1 and 4 workers. The number outlives the leader. Workers that leave give their tasks back, and nothing is lost.
func TestScaledWorkersLoseNothing(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	directory := startMaster(t, c, ns, "--workers=1:4", "--ps=1", "--passes=70", "--checkpoint-every=2s",
		"--ps-command=master pserver --checkpoint-dir=/job/checkpoints --ps-ttl=60s", slowTrainer)
	awaitWorkers(t, c, ns, "digits-worker-0-0", "digits-worker-1-0", "digits-worker-2-0", "digits-worker-3-0")
	c.awaitPass(t, ns, 1)
	if out := c.inMaster(t, ns, "scale", "workers=2"); !strings.HasSuffix(out, "workers: 2 of 2 running") {
		t.Errorf("found %q", out)
	}
	awaitWorkers(t, c, ns, "digits-worker-0-0", "digits-worker-1-0")
	log := c.Kubectl(t, "-n", ns, "logs", "job/digits", "-c", "main")
	if strings.Contains(log, "trainer lost") {
		t.Errorf("expected that the removed workers leave, found a lost trainer in\n%s", log)
	}
	former := c.leader(t, ns)
	c.Kubectl(t, "-n", ns, "delete", "pod", former)
	c.awaitNextLeader(t, ns, former)
	awaitWorkers(t, c, ns, "digits-worker-0-0", "digits-worker-1-0")
	c.inMaster(t, ns, "scale", "workers=4")
	awaitWorkers(t, c, ns, "digits-worker-0-0", "digits-worker-1-0", "digits-worker-2-1", "digits-worker-3-1")
	if _, err := c.Try("-n", ns, "exec", c.leader(t, ns), "-c", "main", "--", "/master", "scale", "workers=5", "--addr=127.0.0.1:8080"); err == nil ||
		!strings.Contains(err.Error(), "expected 1 to 4, the limits of --workers, found 5") {
		t.Errorf("found %v", err)
	}
	status := c.inMaster(t, ns, "status")
	if text := strings.Join(strings.Fields(status), " "); !strings.Contains(text, "worker pods 4 of 4 running") || !strings.Contains(text, "ps pods 1 of 1 running") {
		t.Errorf("found\n%s", status)
	}
	c.inMaster(t, ns, "scale", "workers=1")
	awaitWorkers(t, c, ns, "digits-worker-0-0")
	c.inMaster(t, ns, "scale", "workers=4") // to the end in less time
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=complete", "job/digits", "--timeout=300s")
	verifyJob(t, c, ns, directory)
}

// statusOf returns the pods of a role in the status of the leader.
func (e *Env) statusOf(t *testing.T, ns, role string) (g podsOfRole) {
	t.Helper()
	var status struct{ Pods []podsOfRole }
	if err := json.Unmarshal([]byte(e.inMaster(t, ns, "status", "-o", "json")), &status); err != nil {
		t.Fatal(err)
	}
	for _, g := range status.Pods {
		if g.Role == role {
			return g
		}
	}
	return podsOfRole{}
}

// podsOfRole is an element of pods in the status of a job.
type podsOfRole struct {
	Role, Reason                    string
	Goal, Running, Pending, Leaving int
}

// F284: workers above MIN that no node takes delay no other pod. The only node takes one worker.
func TestUnschedulableWorkersDelayNoOtherPod(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	directory := startMasterWith(t, c, ns, `      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {trainmaster.io/role: worker}}}
`, "--workers=1:3", "--passes=5", "--ps=1", "--ps-command=master pserver", slowTrainer)
	c.awaitPass(t, ns, 2)
	Until(t, 3*time.Minute, func() error {
		g := c.statusOf(t, ns, "worker")
		if g.Running != 1 || g.Pending != 2 || !strings.Contains(g.Reason, "Unschedulable: ") || !strings.Contains(g.Reason, "anti-affinity") {
			return fmt.Errorf("expected 1 worker that runs and 2 unschedulable workers, found %+v", g)
		}
		return nil
	})
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=complete", "job/digits", "--timeout=240s")
	verifyJob(t, c, ns, directory)
}

// F286: the process of a parameter server is killed, or its pod is deleted by force. The last time, the master ends with it: the next leader has never
// been connected to the server. Its lease of five minutes is revoked with the end of the pod, and the next attempt takes its index.
func TestNextPushAfterAKilledServer(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	startMaster(t, c, ns, "--workers=1", "--ps=2", "--passes=1000", "--checkpoint-every=1s",
		"--ps-command=master pserver --checkpoint-dir=/job/checkpoints --ps-ttl=300s", slowTrainer)
	c.awaitPass(t, ns, 2)
	for attempt, end := range []string{"killed", "deleted by force", "killed with the master"} {
		pod := fmt.Sprintf("digits-ps-0-%d", attempt)
		began := time.Now()
		switch end {
		case "deleted by force":
			c.Kubectl(t, "-n", ns, "delete", "pod", pod, "--force", "--grace-period=0")
		case "killed with the master":
			c.Kubectl(t, "-n", ns, "delete", "pod", c.leader(t, ns), "--wait=false")
			killWorker(t, c, ns, pod)
		default:
			killWorker(t, c, ns, pod)
		}
		next := fmt.Sprintf("digits-ps-0-%d", attempt+1)
		Until(t, 4*time.Minute, func() error { return c.hasPushes(t, ns, next) })
		took := time.Since(began)
		t.Logf("%s: next push after %v", end, took.Round(time.Millisecond))
		if took > 2*time.Minute { // of a lease of five minutes, on a busy machine
			t.Errorf("%s: expected the next push within 2 minutes, found %v", end, took)
		}
	}
}

// describeServer returns the state of a parameter server.
func (e *Env) describeServer(t *testing.T, ns, pod string) (*pb.DescribeReply, error) {
	ip, err := e.Try("-n", ns, "get", "pod", pod, "-o", "jsonpath={.status.podIP}")
	if err != nil || ip == "" {
		return nil, fmt.Errorf("%s has no address: %v", pod, err)
	}
	conn, err := grpc.NewClient(net.JoinHostPort(ip, "9000"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return pb.NewParameterServerClient(conn).Describe(t.Context(), &pb.DescribeRequest{})
}

// hasPushes returns an error until a parameter server has taken a push.
func (e *Env) hasPushes(t *testing.T, ns, pod string) error {
	d, err := e.describeServer(t, ns, pod)
	if err == nil && d.GetCounters().GetBlocksPushed() == 0 {
		err = fmt.Errorf("%s: expected a push, found none", pod)
	}
	return err
}

// F290: the memory limit of a parameter server is lowered to its use. The master raises it in place: the container is not restarted.
func TestServerNearItsMemoryLimitIsResizedInPlace(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	startMaster(t, c, ns, "--workers=1", "--ps=1", "--passes=1000", "--checkpoint-every=never", "--ps-resources=memory=256Mi",
		"--ps-command=master pserver", "--worker-command=master trainer --data '/job/data/digits-0*' --record-delay 300ms")
	const pod = "digits-ps-0-0"
	Until(t, 3*time.Minute, func() error { return c.hasPushes(t, ns, pod) })
	var low uint64
	for range 20 { // 5 s, for the maximum
		d, err := c.describeServer(t, ns, pod)
		if err != nil || d.GetMemoryUsed() == 0 || d.GetMemoryLimit() != 256<<20 {
			t.Fatalf("expected memory of a limit of 256 MiB, found %d of %d, %v", d.GetMemoryUsed(), d.GetMemoryLimit(), err)
		}
		low = max(low, d.GetMemoryUsed()*109/100/4096*4096)
		time.Sleep(250 * time.Millisecond) // between two looks at the memory
	}
	c.Kubectl(t, "-n", ns, "patch", "pod", pod, "--subresource", "resize", "-p",
		fmt.Sprintf(`{"spec":{"containers":[{"name":"main","resources":{"requests":{"memory":"%[1]d"},"limits":{"memory":"%[1]d"}}}]}}`, low))
	Until(t, 3*time.Minute, func() error {
		d, err := c.describeServer(t, ns, pod)
		if err == nil && d.GetMemoryLimit() < low*14/10 {
			err = fmt.Errorf("expected 1.5 times %d bytes, found %d", low, d.GetMemoryLimit())
		}
		return err
	})
	c.Await(t, 0, ns, "pod/"+pod, "{.status.containerStatuses[0].restartCount}", "0")
	c.Await(t, 0, ns, "pod/"+pod, "{.status.phase}", "Running")
}
