//go:build k8s

package k8s

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"trainmaster/scripts/prepared"
)

// ringView is a part of the output of `master ring -o json`.
type ringView struct {
	Generation int
	Formed     string
	Members    []struct{ ID string }
}

// ring returns the ring of the leader.
func (e *Env) ring(t *testing.T, ns string) (v ringView, err error) {
	t.Helper()
	out, err := e.Try("-n", ns, "exec", e.leader(t, ns), "-c", "main", "--", "/master", "ring", "--addr=127.0.0.1:8080", "-o", "json")
	if err == nil {
		err = json.Unmarshal([]byte(out), &v)
	}
	return v, err
}

func (v ringView) has(pod string) bool {
	return slices.ContainsFunc(v.Members, func(m struct{ ID string }) bool { return m.ID == pod })
}

// awaitRing waits until a ring is as is says.
func (e *Env) awaitRing(t *testing.T, ns, what string, is func(ringView) bool) (v ringView) {
	t.Helper()
	Until(t, 2*time.Minute, func() (err error) {
		if v, err = e.ring(t, ns); err == nil && !is(v) {
			err = fmt.Errorf("expected %s, found %+v", what, v)
		}
		return err
	})
	return v
}

// elasticJob is masterJob with workers of an image without the program: an init container installs it. The host has Python and PyTorch.
func elasticJob(t *testing.T, c *Env) (manifests, python string) {
	t.Helper()
	script := []string{"import os, sys, torch", "print(sys.executable)", "print(sys.prefix)", "print(sys.base_prefix)", "print(os.path.dirname(torch.__path__[0]))"}
	out, err := exec.CommandContext(t.Context(), prepared.Torch(t), "-c", strings.Join(script, "\n")).Output()
	if err != nil {
		t.Fatal(err)
	}
	found := strings.Fields(string(out))
	python = found[0]
	paths := []string{"/usr", "/lib", "/lib64", "/etc/alternatives", "/etc/ld.so.cache"} // with the programs and libraries of Debian
	for _, dir := range found[1:] {
		if !strings.HasPrefix(dir+"/", "/usr/") && !slices.Contains(paths, dir) {
			paths = append(paths, dir)
		}
	}
	mounts := []string{"{name: job, mountPath: /job}", "{name: trainmaster, mountPath: /trainmaster}", "{name: app, mountPath: /app}"}
	volumes := []string{"{name: job, hostPath: {path: DIRECTORY}}", "{name: trainmaster, emptyDir: {}}", fmt.Sprintf("{name: app, hostPath: {path: %q}}", filepath.Join(c.root, "examples", "elastic"))}
	for i, path := range paths {
		if _, err := os.Stat(path); err == nil {
			mounts = append(mounts, fmt.Sprintf("{name: host-%d, mountPath: %q, readOnly: true}", i, path))
			volumes = append(volumes, fmt.Sprintf("{name: host-%d, hostPath: {path: %q}}", i, path))
		}
	}
	before, rest, _ := strings.Cut(masterJob, "  worker.yaml: |\n")
	_, after, _ := strings.Cut(rest, "WORKER\n")
	return before + `  worker.yaml: |
    spec:
      initContainers:
      - {name: trainmaster, image: IMAGE, imagePullPolicy: Never, args: [install, /trainmaster], volumeMounts: [{name: trainmaster, mountPath: /trainmaster}]}
      containers:
      - name: main
        imagePullPolicy: IfNotPresent
        volumeMounts: [` + strings.Join(mounts, ", ") + `]
      volumes: [` + strings.Join(volumes, ", ") + "]\n" + after, python
}

var elasticStep = regexp.MustCompile(`(?m)^step (\d+) generation (\d+) world (\d+)$`)

// awaitStep waits until a number of processes have made a step, and returns its number and the ring.
func (e *Env) awaitStep(t *testing.T, ns string, world int) (step int, r ringView) {
	t.Helper()
	Until(t, 4*time.Minute, func() (err error) {
		r, err = e.ring(t, ns)
		if err == nil && len(r.Members) != world {
			err = fmt.Errorf("expected %d members, found %+v", world, r)
		}
		if err != nil {
			return err
		}
		log, err := e.Try("-n", ns, "logs", r.Members[0].ID, "-c", "main", "--tail=20")
		if err != nil {
			return err
		}
		for _, m := range elasticStep.FindAllStringSubmatch(log, -1) {
			if m[3] == strconv.Itoa(world) && m[2] == strconv.Itoa(r.Generation) {
				step, err = strconv.Atoi(m[1])
				return err
			}
		}
		return fmt.Errorf("expected a step of generation %d, found\n%s", r.Generation, log)
	})
	return step, r
}

// F301, F308: pods of another image run PyTorch, with 4, 3 and 4 processes. The pod of the coordinator is killed. Each step checks its sum, and the
// steps continue from the checkpoint.
func TestElasticJobOfPyTorchInPods(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	manifests, python := elasticJob(t, c)
	ns := c.Namespace(t)
	directory := startMasterFrom(t, c, ns, manifests, "--need-task-manager=false", "--workers=2:4", "--distribution-strategy=allreduce", "--ring-window=1s",
		"--max-relaunch=0", "--worker-image=localhost/probe:1", "--worker-command=/trainmaster/master worker --stop-grace 2s -- "+python+" /app/train.py /job --steps 1000000")
	first, r := c.awaitStep(t, ns, 4)
	c.Apply(t, ns, "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: none}\nspec: {hard: {pods: '1'}}") // the next attempt waits
	victim := r.Members[0].ID
	killWorker(t, c, ns, victim)
	second, _ := c.awaitStep(t, ns, 3)
	c.Kubectl(t, "-n", ns, "delete", "resourcequota", "none")
	third, r := c.awaitStep(t, ns, 4)
	if first >= second || second >= third {
		t.Errorf("expected steps that continue, found %d, %d and %d", first, second, third)
	}
	next := strings.TrimSuffix(victim, "0") + "1"
	if !r.has(next) || r.has(victim) {
		t.Errorf("expected %s instead of %s, found %+v", next, victim, r)
	}
	if err := os.WriteFile(filepath.Join(directory, "stop"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=complete", "job/digits", "--timeout=120s")
	verifyJob(t, c, ns, directory)
}

const allReduceTrainer = "--worker-command=master trainer --data '/job/data/digits-0*' --distribution-strategy allreduce --model mlp --record-delay 8ms"

// finalModel is the line of a trainer at the end of the job: digest and version of its parameters.
var finalModel = regexp.MustCompile(`msg="job ended".* sha256=([0-9a-f]{64}) .*version=(\d+)`)

// wantSameModel fails the test unless pods have ended with the same version and the same parameters, bit by bit.
func (e *Env) wantSameModel(t *testing.T, ns string, pods ...string) {
	t.Helper()
	want := ""
	for _, pod := range pods {
		awaitPhase(t, e, ns, pod, "Succeeded")
		m := finalModel.FindStringSubmatch(e.Kubectl(t, "-n", ns, "logs", pod, "-c", "main"))
		if m == nil {
			t.Errorf("%s has not logged its model at the end", pod)
			continue
		}
		found := m[2] + " " + m[1]
		if want == "" {
			want = found
		}
		if found != want {
			t.Errorf("%s ends with version and parameters %s, expected %s", pod, found, want)
		}
	}
}

// F308, F334: trainers in pods add their gradients. One is killed, and the pod of another is deleted, in the middle of a pass. The next attempts join the
// ring, each task is counted once, and all end with the same parameters.
func TestAllReduceInPodsOutlivesItsPods(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	directory := startMaster(t, c, ns, "--workers=2:4", "--distribution-strategy=allreduce", "--passes=8", "--ring-window=1s", "--max-relaunch=0", allReduceTrainer)
	c.awaitRing(t, ns, "4 members", func(r ringView) bool { return len(r.Members) == 4 })
	c.awaitPass(t, ns, 1)
	killWorker(t, c, ns, "digits-worker-1-0")
	c.awaitRing(t, ns, "a ring without the killed pod", func(r ringView) bool { return len(r.Members) >= 3 && !r.has("digits-worker-1-0") })
	c.Kubectl(t, "-n", ns, "delete", "pod", "digits-worker-2-0", "--wait=false")
	c.awaitRing(t, ns, "the next attempts", func(r ringView) bool {
		return len(r.Members) == 4 && r.has("digits-worker-1-1") && r.has("digits-worker-2-1")
	})
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=complete", "job/digits", "--timeout=300s")
	c.wantSameModel(t, ns, "digits-worker-0-0", "digits-worker-1-1", "digits-worker-2-1", "digits-worker-3-0")
	verifyJob(t, c, ns, directory)
}

// blockRing drops the packets between a pod and the other trainers. The pod reaches the master.
func (e *Env) blockRing(t *testing.T, ns, pod string) {
	t.Helper()
	const rules = `table inet unreachable {
	chain in { type filter hook input priority 0; tcp dport 9200 drop; tcp sport 9200 drop; }
	chain out { type filter hook output priority 0; tcp dport 9200 drop; tcp sport 9200 drop; }
}`
	if out, err := e.run(rules, "nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", processOf(t, e, ns, pod)), "--", "nft", "-f", "-"); err != nil {
		t.Fatalf("%v %s", err, out)
	}
}

// F338: the other trainers cannot reach a trainer, which is connected to the master. It is excluded, and the others end the job.
func TestUnreachablePodLeavesTheRing(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	directory := startMaster(t, c, ns, "--workers=2:4", "--distribution-strategy=allreduce", "--passes=5", "--ring-window=1s", allReduceTrainer)
	victim := c.awaitRing(t, ns, "4 members", func(r ringView) bool { return len(r.Members) == 4 }).Members[1].ID
	c.blockRing(t, ns, victim)
	r := c.awaitRing(t, ns, "3 members", func(r ringView) bool { return len(r.Members) == 3 })
	if r.has(victim) || !strings.Contains(r.Formed, "cannot reach member "+victim+", which is excluded for 1m0s") {
		t.Errorf("expected a generation without %s and the reason, found %+v", victim, r)
	}
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=complete", "job/digits", "--timeout=300s")
	verifyJob(t, c, ns, directory)
}
