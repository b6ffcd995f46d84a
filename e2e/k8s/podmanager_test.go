//go:build k8s

package k8s

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// masterJob is a master as a Job, with an embedded etcd in a directory of the node, and a place for more arguments.
const masterJob = `
apiVersion: v1
kind: ConfigMap
metadata: {name: template}
data:
  pod.yaml: |
    spec:
      containers:
      - name: main
        imagePullPolicy: IfNotPresent
        volumeMounts: [{name: job, mountPath: /job}]
      volumes: [{name: job, hostPath: {path: DIRECTORY}}]
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
        - --data-dir=/job/etcd
        - --etcd-listen=0.0.0.0:2379
        - --etcd-advertise=master:2379
        - --worker-template=/etc/template/pod.yaml
        - --ps-template=/etc/template/pod.yaml
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
func startMaster(t *testing.T, c *Env, ns string, more ...string) {
	t.Helper()
	directory := c.Directory(t)
	c.Kubectl(t, "-n", ns, "apply", "-k", filepath.Join(c.root, "deploy", "base"))
	for i, arg := range more {
		more[i] = fmt.Sprintf("        - %q", arg)
	}
	c.Apply(t, ns, strings.NewReplacer("DIRECTORY", directory, "IMAGE", c.Image, "MORE", strings.Join(more, "\n")).Replace(masterJob))
}

// awaitPhase waits until a pod has a phase.
func awaitPhase(t *testing.T, c *Env, ns, pod, phase string) {
	t.Helper()
	c.Await(t, time.Minute, ns, "pod/"+pod, "{.status.phase}", phase)
}

// foreign are the flags of workers that run the test program of the cluster.
func foreign(command string) []string {
	return []string{"--worker-image=localhost/probe:1", "--worker-command=/probe " + command}
}

// F273: a container that exceeds its memory gets more of it.
func TestPodThatRunsOutOfMemoryGetsMore(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	startMaster(t, c, ns, append(foreign("alloc 64 10m"), "--workers=1", "--worker-resources=memory=48Mi", "--oom-memory-factor=2.5")...)
	awaitPhase(t, c, ns, "digits-worker-0-1", "Running")
	if limit := c.Get(t, ns, "pod/digits-worker-0-1", "{.spec.containers[0].resources.limits.memory}"); limit != "120Mi" {
		t.Errorf("memory of the next attempt: expected 120Mi, found %s", limit)
	}
	if events := c.Kubectl(t, "-n", ns, "get", "events", "-o", "jsonpath={.items[*].reason}"); !strings.Contains(events, "PodMemoryRaised") {
		t.Errorf("expected an event PodMemoryRaised, found %s", events)
	}
}

// F274: exit code 64 fails the job with the last words of the pod.
func TestUsageErrorOfAPodFailsTheJob(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	startMaster(t, c, ns, append(foreign("exit 64 'no such model'"), "--workers=2")...)
	c.Await(t, time.Minute, ns, "job/digits", Condition("Failed", "status"), "True")
	message := c.Kubectl(t, "-n", ns, "get", "pods", "-l", "trainmaster.io/role=master", "-o", "jsonpath={.items[*].status.containerStatuses[0].state.terminated.message}")
	if !strings.Contains(message, "exit code 64 (usage): no such model") {
		t.Errorf("found %q", message)
	}
}
