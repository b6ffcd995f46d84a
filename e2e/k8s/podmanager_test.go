//go:build k8s

package k8s

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// masterJob is a master as a Job, with an embedded etcd in a directory of the node, and a place for more arguments.
const masterJob = `
apiVersion: v1
kind: ConfigMap
metadata: {name: template}
data:
  ps.yaml: |
    spec:
      containers: [{name: main, imagePullPolicy: IfNotPresent, volumeMounts: [{name: job, mountPath: /job}]}]
      volumes: [{name: job, hostPath: {path: DIRECTORY}}]
  worker.yaml: |
    spec:
      containers: [{name: main, imagePullPolicy: IfNotPresent, volumeMounts: [{name: job, mountPath: /job}]}]
      volumes: [{name: job, hostPath: {path: DIRECTORY}}]
WORKER
---
apiVersion: batch/v1
kind: Job
metadata: {name: digits}
spec:
  backoffLimit: 100
  podFailurePolicy:
    rules:
    - {action: FailJob, onExitCodes: {operator: In, values: [64, 65]}}
    - {action: Ignore, onPodConditions: [{type: DisruptionTarget}]}
  template:
    metadata: {labels: {trainmaster.io/job: digits, trainmaster.io/role: master}}
    spec:
      restartPolicy: Never
      serviceAccountName: trainmaster
      initContainers:
      - name: data
        image: IMAGE
        imagePullPolicy: Never
        args: [recordio, convert, --sample=digits, /job/data/digits]
        volumeMounts: [{name: job, mountPath: /job}]
      containers:
      - name: main
        image: IMAGE
        imagePullPolicy: Never
        terminationMessagePolicy: FallbackToLogsOnError
        args:
        - --job=digits
        - --exit-codes=pod
        - --listen=0.0.0.0:8080
        - --http=0.0.0.0:8081
        - --data-dir=/job/etcd
        - --etcd-listen=0.0.0.0:2379
        - --etcd-advertise=master:2379
MORE
        env:
        - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        - {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
        - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
        volumeMounts: [{name: job, mountPath: /job}, {name: template, mountPath: /etc/template}]
      volumes:
      - {name: job, hostPath: {path: DIRECTORY}}
      - {name: template, configMap: {name: template}}
`

// startMaster applies the rights of deploy/base and a master with more arguments.
func startMaster(t *testing.T, c *Env, ns string, more ...string) (directory string) {
	t.Helper()
	return startMasterWith(t, c, ns, "", more...)
}

// startMasterWith is startMaster with more lines below the spec of the template of workers.
func startMasterWith(t *testing.T, c *Env, ns, worker string, more ...string) (directory string) {
	t.Helper()
	return startMasterFrom(t, c, ns, strings.Replace(masterJob, "WORKER\n", worker, 1), more...)
}

// startMasterFrom is startMaster with other manifests.
func startMasterFrom(t *testing.T, c *Env, ns, manifests string, more ...string) (directory string) {
	t.Helper()
	if !slices.Contains(more, "--need-pod-manager=false") {
		more = append(more, "--worker-template=/etc/template/worker.yaml", "--ps-template=/etc/template/ps.yaml")
	}
	directory = c.Directory(t)
	c.Kubectl(t, "-n", ns, "apply", "-k", filepath.Join(c.root, "deploy", "base"))
	for i, arg := range more {
		more[i] = fmt.Sprintf("        - %q", arg)
	}
	c.Apply(t, ns, strings.NewReplacer("DIRECTORY", directory, "IMAGE", c.Image, "MORE", strings.Join(more, "\n")).Replace(manifests))
	return directory
}

// inMaster runs a command of the program in the pod of the master, which leads.
func (e *Env) inMaster(t *testing.T, ns string, args ...string) string {
	t.Helper()
	return e.Kubectl(t, append([]string{"-n", ns, "exec", e.leader(t, ns), "-c", "main", "--", "/master"}, append(args, "--addr=127.0.0.1:8080")...)...)
}

// awaitWorkers waits until the workers that have not ended are these, and run.
func awaitWorkers(t *testing.T, c *Env, ns string, names ...string) {
	t.Helper()
	Until(t, 2*time.Minute, func() error {
		var alive []string
		for name, phase := range podsOf(t, c, ns, "worker") {
			switch phase {
			case "Running":
				alive = append(alive, name)
			case "Pending":
				return fmt.Errorf("%s is pending", name)
			}
		}
		if slices.Sort(alive); !slices.Equal(alive, names) {
			return fmt.Errorf("expected the workers %v, found %v", names, alive)
		}
		return nil
	})
}

// podsOf returns the names of the pods of a role, with their phases.
func podsOf(t *testing.T, c *Env, ns, role string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for line := range strings.Lines(c.Kubectl(t, "-n", ns, "get", "pods", "-l", "trainmaster.io/role="+role, "-o", `jsonpath={range .items[*]}{.metadata.name} {.status.phase}{"\n"}{end}`)) {
		if name, phase, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			found[name] = phase
		}
	}
	return found
}

// awaitPhase waits until a pod has a phase.
func awaitPhase(t *testing.T, c *Env, ns, pod, phase string) {
	t.Helper()
	c.Await(t, 3*time.Minute, ns, "pod/"+pod, "{.status.phase}", phase)
}

// F276, F280: a worker is killed, another worker and the pod of the master are deleted in the middle of a pass. The job ends, each index has
// completed once, and the deletion of the Job leaves no pod.
func TestJobOfPodsOutlivesItsPods(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	directory := startMaster(t, c, ns, "--workers=3", "--ps=2", "--passes=40", "--checkpoint-every=2s",
		"--ps-command=master pserver --checkpoint-dir=/job/checkpoints",
		"--worker-command=master trainer --data '/job/data/digits-0*' --record-delay 3ms")
	for i := range 3 {
		awaitPhase(t, c, ns, fmt.Sprintf("digits-worker-%d-0", i), "Running")
	}
	killWorker(t, c, ns, "digits-worker-0-0")
	awaitPhase(t, c, ns, "digits-worker-0-1", "Running")
	c.Kubectl(t, "-n", ns, "delete", "pod", "digits-worker-1-0", "--wait=false")
	awaitPhase(t, c, ns, "digits-worker-1-1", "Running")
	master := masterOf(t, c, ns)
	workers := podsOf(t, c, ns, "worker")
	c.Kubectl(t, "-n", ns, "delete", "pod", master)
	for name := range workers {
		if found := podsOf(t, c, ns, "worker"); found[name] == "" {
			t.Errorf("%s went with the pod of the master", name)
		}
	}
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=complete", "job/digits", "--timeout=240s")
	Until(t, 3*time.Minute, func() error {
		completed := 0
		for name, phase := range podsOf(t, c, ns, "worker") {
			switch {
			case phase == "Succeeded":
				completed++
			case name != "digits-worker-0-0":
				return fmt.Errorf("%s is %s", name, phase)
			}
		}
		for name, phase := range podsOf(t, c, ns, "ps") { // a server that lost its lease with the master's pod has failed, and keeps its log
			if phase == "Running" || phase == "Pending" {
				return fmt.Errorf("%s is %s", name, phase)
			}
		}
		if completed != 3 {
			return fmt.Errorf("expected 3 completed workers, found %d", completed)
		}
		return nil
	})
	verifyJob(t, c, ns, directory)
	c.Kubectl(t, "-n", ns, "delete", "job", "digits")
	Until(t, 3*time.Minute, func() error {
		if left := podsOf(t, c, ns, "worker"); len(left) > 0 {
			return fmt.Errorf("the deleted Job left %v", left)
		}
		return nil
	})
}

// verifyJob runs master verify on the directory of a job that has ended.
func verifyJob(t *testing.T, c *Env, ns, directory string) {
	t.Helper()
	c.Apply(t, ns, strings.NewReplacer("DIRECTORY", directory, "IMAGE", c.Image).Replace(`
apiVersion: v1
kind: Pod
metadata: {name: verify}
spec:
  restartPolicy: Never
  containers:
  - {name: main, image: IMAGE, imagePullPolicy: Never, args: [verify, --job=digits, --data-dir=/job/etcd], volumeMounts: [{name: job, mountPath: /job}]}
  volumes: [{name: job, hostPath: {path: DIRECTORY}}]
`))
	awaitPhase(t, c, ns, "verify", "Succeeded")
}

// masterOf returns the name of the pod of the master.
func masterOf(t *testing.T, c *Env, ns string) string {
	t.Helper()
	return c.Kubectl(t, "-n", ns, "get", "pods", "-l", "trainmaster.io/role=master", "-o", "jsonpath={.items[0].metadata.name}")
}

// scrape returns the metrics of a master.
func scrape(t *testing.T, ip string) string {
	t.Helper()
	reply, err := http.Get("http://" + ip + ":8081/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// killWorker kills the process of a pod.
func killWorker(t *testing.T, c *Env, ns, pod string) {
	t.Helper()
	if err := syscall.Kill(processOf(t, c, ns, pod), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// processOf finds the process of a pod by the UID of the pod, which is in the cgroup of the process.
func processOf(t *testing.T, c *Env, ns, pod string) (pid int) {
	t.Helper()
	uid := strings.ReplaceAll(c.Get(t, ns, "pod/"+pod, "{.metadata.uid}"), "-", "_")
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		groups, err := os.ReadFile(file)
		if err != nil || !strings.Contains(strings.ReplaceAll(string(groups), "-", "_"), uid) {
			continue
		}
		if _, err := fmt.Sscanf(file, "/proc/%d/cgroup", &pid); err != nil {
			t.Fatal(err)
		}
		command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if name, _, _ := bytes.Cut(command, []byte{0}); err != nil || !slices.Contains([]string{"master", "group"}, path.Base(string(name))) {
			continue
		}
		return pid
	}
	t.Fatalf("pod %s: expected a process, found none", pod)
	return 0
}

// foreign are the flags of workers that run the test program of the cluster.
func foreign(command string) []string {
	return []string{"--worker-image=localhost/probe:1", "--worker-command=/probe " + command}
}

// F324: the API refuses the deletions at the end of a job. The pod of the master ends with 75, and the next pod of the Job repeats them.
func TestPodsOfAnEndedJobAreCleanedByTheNextMaster(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	startMaster(t, c, ns, append(foreign("sleep 20s"), "--need-task-manager=false", "--workers=1", "--ps=1", "--ps-image=localhost/probe:1", "--ps-command=/probe sleep 30m")...)
	c.Kubectl(t, "-n", ns, "wait", "--for=create", "--timeout=180s", "pod/digits-worker-0-0")
	rights := func(verbs string) {
		t.Helper()
		c.Kubectl(t, "-n", ns, "patch", "role/trainmaster", "--type=json", "-p", `[{"op":"replace","path":"/rules/0/verbs","value":[`+verbs+`]}]`)
	}
	rights(`"get","list","watch","create"`)
	const code = "{.items[*].status.containerStatuses[0].state.terminated.exitCode}"
	Until(t, 4*time.Minute, func() error {
		if found := c.Kubectl(t, "-n", ns, "get", "pods", "-l", "trainmaster.io/role=master", "-o", "jsonpath="+code); found != "75" {
			return fmt.Errorf("exit code of the first master: expected 75, found %q", found)
		}
		return nil
	})
	rights(`"get","list","watch","create","delete"`)
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=complete", "job/digits", "--timeout=180s")
	Until(t, 3*time.Minute, func() error {
		if found := podsOf(t, c, ns, "ps"); len(found) > 0 {
			return fmt.Errorf("expected no server of the complete job, found %v", found)
		}
		return nil
	})
}

// F273: a container that exceeds its memory gets more of it.
func TestPodThatRunsOutOfMemoryGetsMore(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	startMaster(t, c, ns, append(foreign("alloc 64 10m"), "--workers=1", "--worker-resources=memory=48Mi", "--oom-memory-factor=2.5")...)
	// The runtime may report an end before it knows that memory was the reason. Such an end is a signal 9, and the next attempt has as much memory.
	attempt, limit := 0, ""
	for ; ; attempt++ {
		pod := fmt.Sprintf("digits-worker-0-%d", attempt)
		c.Kubectl(t, "-n", ns, "wait", "--for=create", "--timeout=180s", "pod/"+pod)
		if limit = c.Get(t, ns, "pod/"+pod, "{.spec.containers[0].resources.limits.memory}"); limit != "48Mi" {
			break
		}
		awaitPhase(t, c, ns, pod, "Failed")
	}
	if attempt == 0 || limit != "120Mi" {
		t.Errorf("expected 48Mi for the first attempts and 120Mi for the next, found %s for attempt %d", limit, attempt)
	}
	awaitPhase(t, c, ns, fmt.Sprintf("digits-worker-0-%d", attempt), "Running")
	if events := c.Kubectl(t, "-n", ns, "get", "events", "-o", "jsonpath={.items[*].reason}"); !strings.Contains(events, "PodMemoryRaised") {
		t.Errorf("expected an event PodMemoryRaised, found %s", events)
	}
}

// F364: a template that the API refuses fails the job with the words of the API.
func TestInvalidTemplateFailsTheJob(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	startMasterWith(t, c, ns, "      dnsPolicy: Wrong\n", append(foreign("sleep 20s"), "--workers=2")...)
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=failed", "job/digits", "--timeout=120s")
	if log := c.Kubectl(t, "-n", ns, "logs", "job/digits", "-c", "main"); !strings.Contains(log, "the cluster refuses the pod as invalid") || !strings.Contains(log, "spec.dnsPolicy") {
		t.Errorf("expected the words of the API, found\n%s", log)
	}
}

// F274: exit code 64 fails the job with the last words of the pod.
func TestUsageErrorOfAPodFailsTheJob(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	startMaster(t, c, ns, append(foreign("exit 64 'no such model'"), "--workers=2")...)
	c.Await(t, 3*time.Minute, ns, "job/digits", Condition("Failed", "status"), "True")
	message := c.Kubectl(t, "-n", ns, "get", "pods", "-l", "trainmaster.io/role=master", "-o", "jsonpath={.items[*].status.containerStatuses[0].state.terminated.message}")
	if !strings.Contains(message, "exit code 64 (usage): no such model") {
		t.Errorf("found %q", message)
	}
}

// F278: the refusal of a quota is in the log in the words of the cluster. Other pods continue, and the refused pods follow later.
func TestPodsThatCannotStartDelayNoOtherPod(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	c.Apply(t, ns, "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: two}\nspec: {hard: {pods: '3'}}")
	startMaster(t, c, ns, append(foreign("sleep 10m"), "--workers=2:4")...)
	running := func(want int) {
		t.Helper()
		Until(t, 2*time.Minute, func() error {
			found := podsOf(t, c, ns, "worker")
			for _, phase := range found {
				if phase != "Running" {
					return fmt.Errorf("found %v", found)
				}
			}
			if len(found) != want {
				return fmt.Errorf("expected %d running workers, found %v", want, found)
			}
			return nil
		})
	}
	running(2)
	logs := func(words string) {
		t.Helper()
		Until(t, 3*time.Minute, func() error {
			log, err := c.Try("-n", ns, "logs", "job/digits", "-c", "main")
			if err == nil && !strings.Contains(log, words) {
				err = fmt.Errorf("expected %q in the log of the master, found\n%s", words, log)
			}
			return err
		})
	}
	logs("exceeded quota")
	list := c.Kubectl(t, "-n", ns, "exec", "job/digits", "-c", "main", "--", "/master", "pods", "--addr", "127.0.0.1:8080")
	if n := strings.Count(list, " Running "); n != 2 || strings.Count(list, " Waiting ") != 2 || !strings.Contains(list, "exceeded quota: two") {
		t.Errorf("expected two pods that run and two that wait with the reason, found\n%s", list)
	}
	metrics := scrape(t, c.Get(t, ns, "pod/"+masterOf(t, c, ns), "{.status.podIP}"))
	for _, line := range []string{
		`trainmaster_pods{phase="Running",role="worker"} 2`, `trainmaster_pods{phase="Waiting",role="worker"} 2`, `trainmaster_kube_requests_total{code="201",verb="post"} `,
	} {
		if !strings.Contains(metrics, line) {
			t.Errorf("expected %q, found\n%s", line, metrics)
		}
	}
	c.Kubectl(t, "-n", ns, "delete", "resourcequota", "two")
	running(4)
}

// F277: the API server is down for 30 s, and a worker is killed after it. Not parallel: other tests need the API server.
func TestJobContinuesWithoutTheAPIServer(t *testing.T) {
	c := Cluster(t)
	ns := c.Namespace(t)
	startMaster(t, c, ns, "--workers=2", "--ps=1", "--passes=60", "--checkpoint-every=5s",
		"--ps-command=master pserver --checkpoint-dir=/job/checkpoints",
		"--worker-command=master trainer --data '/job/data/digits-0*' --record-delay 2ms")
	awaitPhase(t, c, ns, "digits-worker-0-0", "Running")
	awaitPhase(t, c, ns, "digits-worker-1-0", "Running")
	master := podsOf(t, c, ns, "master")
	c.Control(t, "kill", "kube-apiserver")
	time.Sleep(30 * time.Second) // the outage
	for _, component := range []string{"kube-scheduler", "kube-controller-manager"} {
		c.Control(t, "kill", component) // after an outage of 30 s, these and the kubelet can pause for a minute
	}
	c.Control(t, "kubelet", "kill")
	c.Start(t, "control")
	c.ReturnNode(t)
	killWorker(t, c, ns, "digits-worker-1-0")
	awaitPhase(t, c, ns, "digits-worker-1-1", "Running")
	if found := podsOf(t, c, ns, "master"); len(found) != 1 || len(master) != 1 {
		t.Errorf("the master was replaced: expected %v, found %v", master, found)
	}
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=complete", "job/digits", "--timeout=240s")
}
