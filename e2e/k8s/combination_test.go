//go:build k8s

package k8s

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// separate are trainers and a parameter server that other programs than the master start.
const separate = `
apiVersion: v1
kind: Pod
metadata: {name: server, labels: {trainmaster.io/role: separate}}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: IMAGE
    imagePullPolicy: Never
    args: [pserver, --job=digits, --endpoints=master:2379, "--listen=0.0.0.0:9000", --data-socket=off]
    env: [{name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: trainers}
spec:
  completions: 2
  parallelism: 2
  template:
    spec:
      restartPolicy: OnFailure
      containers:
      - name: main
        image: IMAGE
        imagePullPolicy: Never
        args: [trainer, --job=digits, --endpoints=master:2379, --data=/job/data/digits-0*]
        volumeMounts: [{name: job, mountPath: /job}]
      volumes: [{name: job, hostPath: {path: DIRECTORY}}]
`

// ringOfTwo are trainers of a ring that other programs than the master start.
const ringOfTwo = `
apiVersion: batch/v1
kind: Job
metadata: {name: trainers}
spec:
  completions: 2
  parallelism: 2
  template:
    spec:
      restartPolicy: OnFailure
      containers:
      - name: main
        image: IMAGE
        imagePullPolicy: Never
        args: [trainer, --job=digits, --endpoints=master:2379, --data=/job/data/digits-0*, --distribution-strategy=allreduce, "--ring-listen=:9200"]
        env: [{name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]
        volumeMounts: [{name: job, mountPath: /job}]
      volumes: [{name: job, hostPath: {path: DIRECTORY}}]
`

// F345, F346: each combination of the parts of a master starts, does its work and ends with exit code 0. docs/combinations.md has the table.
func TestEachCombinationStartsWorksAndEnds(t *testing.T) {
	t.Parallel()
	const trainer = "--worker-command=master trainer --data '/job/data/digits-0*'"
	for _, c := range []struct {
		name string
		args []string
		also string   // manifests
		pods []string // of the job at its end, without attempts
		logs string   // of the master
	}{
		{name: "1 tasks without fault tolerance", args: []string{"--need-pod-manager=false", "--task-fault-tolerance=false", "--ps=1"}, also: separate, logs: "done: the job ended after 1 pass"},
		{name: "2 pods", args: append(foreign("sleep 1s"), "--need-task-manager=false", "--workers=2", "--ps=1", "--ps-image=localhost/probe:1", "--ps-command=/probe sleep 10m"),
			pods: []string{"worker-0 Succeeded", "worker-1 Succeeded"}, logs: "done: the job ended: 2 workers have completed"},
		{name: "3 pods and ring", args: []string{"--need-task-manager=false", "--workers=2", "--distribution-strategy=allreduce", "--worker-command=master worker -- /master version"},
			pods: []string{"worker-0 Succeeded", "worker-1 Succeeded"}, logs: "done: the job ended: "},
		{name: "4 pods and tasks", args: []string{"--need-training-service=false", "--workers=2", "--ps=1", trainer},
			pods: []string{"worker-0 Succeeded", "worker-1 Succeeded"}, logs: "done: the job ended after 1 pass"},
		{name: "5 pods, tasks and ring", args: []string{"--need-training-service=false", "--workers=2", "--distribution-strategy=allreduce", trainer},
			pods: []string{"worker-0 Succeeded", "worker-1 Succeeded"}, logs: "done: the job ended after 1 pass"},
		{name: "7 all, with all-reduce", args: []string{"--workers=3", "--distribution-strategy=allreduce", trainer + " --model mlp"},
			pods: []string{"worker-0 Succeeded", "worker-1 Succeeded", "worker-2 Succeeded"}, logs: "done: the job ended after 1 pass"},
		{name: "6 pods, tasks and training service", args: []string{"--workers=2", "--ps=1", trainer}, pods: []string{"worker-0 Succeeded", "worker-1 Succeeded"}, logs: "done: the job ended after 1 pass"},
		{name: "tasks and ring", args: []string{"--need-pod-manager=false", "--distribution-strategy=allreduce", "--ring=2"}, also: ringOfTwo, logs: "done: the job ended after 1 pass"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := Cluster(t)
			ns := e.Namespace(t)
			directory := startMaster(t, e, ns, c.args...)
			if c.also != "" {
				e.Apply(t, ns, strings.NewReplacer("DIRECTORY", directory, "IMAGE", e.Image).Replace(c.also))
			}
			e.Kubectl(t, "-n", ns, "wait", "--for=condition=complete", "job/digits", "--timeout=180s")
			Until(t, 3*time.Minute, func() error {
				var found []string
				for _, role := range []string{"worker", "ps"} {
					for name, phase := range podsOf(t, e, ns, role) {
						name = strings.TrimPrefix(name, "digits-")
						found = append(found, name[:strings.LastIndex(name, "-")]+" "+phase)
					}
				}
				if slices.Sort(found); !slices.Equal(found, c.pods) {
					return fmt.Errorf("expected the pods %v, found %v", c.pods, found)
				}
				return nil
			})
			if log := e.Kubectl(t, "-n", ns, "logs", masterOf(t, e, ns)); !strings.Contains(log, c.logs) {
				t.Errorf("log of the master: expected %q, found:\n%s", c.logs, log)
			}
			verifyJob(t, e, ns, directory)
		})
	}
}
