//go:build k8s

package k8s

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const system = "trainmaster-system" // namespace of the operator

var (
	operatorOnce, crdOnce sync.Once
)

// crd installs the CustomResourceDefinition, once.
func (e *Env) crd(t *testing.T) {
	t.Helper()
	crdOnce.Do(func() {
		e.Kubectl(t, "apply", "--server-side", "-f", filepath.Join(e.root, "deploy", "operator", "crd"))
		e.Await(t, 90*time.Second, "default", "crd/trainingjobs.trainmaster.io", Condition("Established", "status"), "True")
	})
}

// operator installs the operator, once.
func (e *Env) operator(t *testing.T) {
	t.Helper()
	e.crd(t)
	operatorOnce.Do(func() { e.Kubectl(t, "apply", "--server-side", "-k", filepath.Join(e.root, "deploy", "operator")) })
	e.Kubectl(t, "-n", system, "rollout", "status", "deployment/trainmaster-operator", "--timeout=180s")
	t.Cleanup(func() {
		if t.Failed() {
			out, err := e.Try("-n", system, "logs", "deployment/trainmaster-operator", "--tail=40")
			t.Log(out, err)
		}
	})
}

// trainingJob returns the job of deploy/operator/example.yaml, with a number of passes and other changes.
func (e *Env) trainingJob(t *testing.T, passes int, changes ...string) string {
	t.Helper()
	_, job := e.example(t)
	job = strings.Replace(job, "  maxWorkers: 3 # kubectl scale changes workers from minWorkers, 1, up to this number\n", "", 1)
	return strings.NewReplacer(append(changes, "passes: 30", "passes: "+strconv.Itoa(passes))...).Replace(job)
}

// example returns the claim and the job of deploy/operator/example.yaml.
func (e *Env) example(t *testing.T) (claim, job string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(e.root, "deploy", "operator", "example.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	claim, job, _ = strings.Cut(string(text), "---\n")
	return claim, job
}

// claim makes the claim of the example and its volume.
func (e *Env) claim(t *testing.T, namespace string) {
	t.Helper()
	e.volume(t, namespace, "digits")
	claim, _ := e.example(t)
	e.Apply(t, namespace, claim)
}

// awaitPhase waits for a phase of the TrainingJob digits.
func (e *Env) awaitPhase(t *testing.T, namespace, phase string) {
	t.Helper()
	e.Await(t, 4*time.Minute, namespace, "trainingjob/digits", "{.status.phase}", phase)
}

// The columns of kubectl get show a job that trains to the accuracy of master run. Its deletion leaves nothing.
func TestTrainingJobTrainsTheDigits(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	c.operator(t)
	ns := c.Namespace(t)
	c.claim(t, ns)
	c.Apply(t, ns, c.trainingJob(t, 30))
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=Complete", "trainingjob/digits", "--timeout=300s")
	out := c.Kubectl(t, "-n", ns, "get", "trainingjobs")
	if head := strings.Join(strings.Fields(strings.Split(out, "\n")[0]), " "); head != "NAME PHASE PROGRESS WORKERS PS ACCURACY AGE" {
		t.Errorf("columns: found %s", head)
	}
	m := regexp.MustCompile(`digits +Complete +100% +0 +0 +(0\.\d{4}) +\d+`).FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("found %s", out)
	}
	if accuracy, err := strconv.ParseFloat(m[1], 64); err != nil || accuracy < 0.93 {
		t.Errorf("accuracy %s, %v; expected at least 0.93", m[1], err)
	}
	for path, want := range map[string]string{
		"{.status.progress.pass}/{.status.progress.passes} {.status.progress.state}": "30/30 ended",
		Condition("Created", "status") + Condition("Running", "status"):              "TrueFalse",
		Condition("Complete", "reason") + Condition("Suspended", "status"):           "TrainingCompleteFalse",
		`{.metadata.ownerReferences}{.status.selector}`:                              "trainmaster.io/job=digits,trainmaster.io/role=worker",
	} {
		if found := c.Get(t, ns, "trainingjob/digits", path); found != want {
			t.Errorf("%s: expected %s, found %s", path, want, found)
		}
	}
	if times := c.Get(t, ns, "trainingjob/digits", "{.status.startTime} {.status.completionTime}"); len(strings.Fields(times)) != 2 {
		t.Errorf("start and completion: found %q", times)
	}
	c.awaitEnd(t, ns)
	events := c.Kubectl(t, "-n", ns, "get", "events", "--field-selector=involvedObject.kind=TrainingJob", "-o", "jsonpath={.items[*].reason}")
	for _, reason := range []string{"Running", "Complete"} {
		if !slices.Contains(strings.Fields(events), reason) {
			t.Errorf("events: expected %s, found %s", reason, events)
		}
	}
	c.Kubectl(t, "-n", ns, "delete", "trainingjob/digits", "--timeout=180s")
	c.awaitNothing(t, ns)
}

// awaitNothing waits until the namespace has no object of a job.
func (e *Env) awaitNothing(t *testing.T, namespace string) {
	t.Helper()
	Until(t, 2*time.Minute, func() error {
		out, err := e.Try("-n", namespace, "get", "trainingjobs,jobs,pods,services,configmaps,serviceaccounts,roles,rolebindings,networkpolicies", "-o", "name")
		if err != nil {
			return err
		}
		left := slices.DeleteFunc(strings.Fields(out), func(name string) bool {
			return name == "configmap/kube-root-ca.crt" || name == "serviceaccount/default"
		})
		if len(left) > 0 {
			return fmt.Errorf("expected nothing of the job, found %v", left)
		}
		return nil
	})
}

// pods returns the names of the pods of the job digits that have not ended.
func (e *Env) livePods(namespace string) ([]string, error) {
	out, err := e.Try("-n", namespace, "get", "pods", "-l", "trainmaster.io/job=digits", "--field-selector=status.phase!=Succeeded,status.phase!=Failed", "-o", "jsonpath={.items[*].metadata.name}")
	return strings.Fields(out), err
}

// A suspended job has no pods and keeps its progress. It continues, also if the operator was killed in between, and its ledger proves it.
func TestTrainingJobIsSuspendedAndContinues(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	c.operator(t)
	ns := c.Namespace(t)
	c.claim(t, ns)
	c.Apply(t, ns, c.trainingJob(t, 200))
	c.awaitPhase(t, ns, "Running")
	passes := func() (n int, err error) {
		text, err := c.Try("-n", ns, "get", "trainingjob/digits", "-o", "jsonpath={.status.progress.pass}")
		if err == nil && text != "" {
			n, err = strconv.Atoi(text)
		}
		return n, err
	}
	Until(t, 2*time.Minute, func() error { // the status, which is some seconds behind the job
		n, err := passes()
		if err == nil && n < 3 {
			err = fmt.Errorf("expected pass 3, found %d", n)
		}
		return err
	})
	suspend := func(is bool) {
		t.Helper()
		c.Kubectl(t, "-n", ns, "patch", "trainingjob/digits", "--type=merge", "-p", fmt.Sprintf(`{"spec":{"suspend":%v}}`, is))
	}
	suspend(true)
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=Suspended", "trainingjob/digits", "--timeout=120s")
	if pods, err := c.livePods(ns); err != nil || len(pods) > 0 {
		t.Errorf("a suspended job: expected no pods, found %v, %v", pods, err)
	}
	if failed := c.Get(t, ns, "job/digits", "{.status.failed}"); failed != "" && failed != "0" {
		t.Errorf("%s failed pods: expected that a suspension counts none", failed)
	}
	before, err := passes()
	if err != nil {
		t.Fatal(err)
	}
	c.Kubectl(t, "-n", system, "delete", "pods", "-l", "app.kubernetes.io/name=trainmaster-operator", "--grace-period=1", "--wait=false")
	suspend(false)
	c.awaitPhase(t, ns, "Running")
	if after, err := passes(); err != nil || before < 3 || after < before {
		t.Errorf("pass %d, and %d after the suspension, %v", before, after, err)
	}
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=Complete", "trainingjob/digits", "--timeout=300s")
	c.verify(t, ns, "/job/digits/etcd")
}

// F325: an object that the API refuses is in the status and an event, and is created when it is accepted.
func TestTrainingJobAboveAQuotaIsShownUntilItIsRaised(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	c.operator(t)
	ns := c.Namespace(t)
	c.claim(t, ns)
	c.Apply(t, ns, "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: none}\nspec: {hard: {services: '0'}}")
	c.Await(t, 90*time.Second, ns, "resourcequota/none", "{.status.hard.services}", "0")
	c.Apply(t, ns, c.trainingJob(t, 1))
	c.Await(t, 90*time.Second, ns, "trainingjob/digits", Condition("Created", "reason"), "Refused")
	if message := c.Get(t, ns, "trainingjob/digits", Condition("Created", "message")); !strings.Contains(message, "exceeded quota: none") {
		t.Errorf("condition Created: found %q", message)
	}
	if phase := c.Get(t, ns, "trainingjob/digits", "{.status.phase}"); phase != "Pending" {
		t.Errorf("phase: found %q", phase)
	}
	// F360, F361: a quota of pods refuses the pod of the master, then its workers and servers. The condition has the words of the cluster.
	c.Apply(t, ns, "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: pods}\nspec: {hard: {pods: '0'}}")
	c.Await(t, 30*time.Second, ns, "resourcequota/pods", "{.status.hard.pods}", "0")
	c.Kubectl(t, "-n", ns, "delete", "resourcequota", "none")
	running := func(words ...string) {
		t.Helper()
		Until(t, 2*time.Minute, func() error {
			message := c.Get(t, ns, "trainingjob/digits", Condition("Running", "message"))
			for _, w := range words {
				if !strings.Contains(message, w) {
					return fmt.Errorf("condition Running: expected %q, found %q", w, message)
				}
			}
			return nil
		})
	}
	running("the Job has created no pod: pods ", "exceeded quota: pods")
	c.Kubectl(t, "-n", ns, "patch", "resourcequota/pods", "--type=merge", "-p", `{"spec":{"hard":{"pods":"1"}}}`)
	running("the master is ready; 0 of ", "pods run: digits-", "exceeded quota: pods")
	c.Kubectl(t, "-n", ns, "delete", "resourcequota", "pods")
	c.awaitPhase(t, ns, "Complete")
}

// F328: the Job of a TrainingJob fails at a deadline that a policy of the cluster has set. Its workers and servers end.
func TestFailedTrainingJobLeavesNoPods(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	c.operator(t)
	ns := c.Namespace(t)
	c.claim(t, ns)
	c.Apply(t, ns, c.trainingJob(t, 100000, "workers: 3", "workers: 1"))
	c.Await(t, 2*time.Minute, ns, "trainingjob/digits", "{.status.workers}", "1")
	c.Kubectl(t, "-n", ns, "patch", "job/digits", "--type=merge", "-p", `{"spec":{"activeDeadlineSeconds":1}}`)
	c.awaitPhase(t, ns, "Failed")
	Until(t, 2*time.Minute, func() error {
		if pods, err := c.livePods(ns); err != nil || len(pods) > 0 {
			return fmt.Errorf("a failed job: expected no pods, found %v, %v", pods, err)
		}
		return nil
	})
}

// kubectl scale changes the number of workers of a running job, within its limits.
func TestTrainingJobIsScaled(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	c.operator(t)
	ns := c.Namespace(t)
	c.claim(t, ns)
	c.Apply(t, ns, c.trainingJob(t, 100000, "workers: 3", "workers: 2\n  maxWorkers: 3"))
	workers := func(n int) {
		t.Helper()
		c.Await(t, 2*time.Minute, ns, "trainingjob/digits", "{.status.workers}", strconv.Itoa(n))
		Until(t, 3*time.Minute, func() error {
			out, err := c.Try("-n", ns, "get", "pods", "-l", "trainmaster.io/role=worker", "--field-selector=status.phase=Running", "-o", "name")
			if err == nil && len(strings.Fields(out)) != n {
				err = fmt.Errorf("expected %d workers, found %s", n, out)
			}
			return err
		})
	}
	workers(2)
	if all := c.Kubectl(t, "-n", ns, "get", "pods", "-l", "trainmaster.io/role=worker", "-o", "name"); len(strings.Fields(all)) != 2 {
		t.Errorf("expected that the job begins with 2 workers, found %s", all)
	}
	scale := func(n int) error {
		_, err := c.Try("-n", ns, "scale", "trainingjob/digits", fmt.Sprintf("--replicas=%d", n))
		return err
	}
	for _, n := range []int{3, 1} {
		if err := scale(n); err != nil {
			t.Fatal(err)
		}
		workers(n)
	}
	if err := scale(4); err == nil || !strings.Contains(err.Error(), "workers: expected at most maxWorkers") {
		t.Errorf("beyond the limit: found %v", err)
	}
}

// Fields that the API server refuses.
func TestInvalidTrainingJobsAreRefusedWithTheField(t *testing.T) {
	t.Parallel()
	c := ControlPlane(t)
	c.crd(t)
	ns := c.Namespace(t)
	valid := c.trainingJob(t, 2)
	dryRun := func(text string) error {
		_, err := c.run(text, "kubectl", "-n", ns, "create", "--dry-run=server", "--validate=strict", "-f", "-")
		return err
	}
	if err := dryRun(valid); err != nil {
		t.Fatal(err)
	}
	for change, want := range map[[2]string]string{
		{"workers: 3", "workers: 0"}:                                             "spec.workers",
		{"workers: 3", "workers: 3\n  minWorkers: 4"}:                            "minWorkers: expected at most workers",
		{"workers: 3", "workers: 3\n  maxWorkers: 2"}:                            "workers: expected at most maxWorkers",
		{"workers: 3", "workers: 3\n  groupSize: 0"}:                             "spec.groupSize",
		{"workers: 3", "workers: 3\n  groupSize: 2"}:                             "groupSize: expected worker.command",
		{"workers: 3", "workers: 3\n  groupSize: 700\n  worker: {command: [x]}"}: "groupSize: expected at most 2000 pods",
		{"passes: 2", "passes: 0"}:                                               "spec.passes",
		{"parameterServers: 2", "parameterServers: -1"}:                          "spec.parameterServers",
		{"image: localhost/trainmaster:dev", "image: ''"}:                        "spec.image",
		{"image: localhost/trainmaster:dev", "imagePullPolicy: IfNotPresent"}:    "spec.image: Required",
		{"sample: digits", "sample: letters"}:                                    `Unsupported value: "letters"`,
		{"sample: digits", "sample: digits\n    files: [/data/a]"}:               "spec.data",
		{"sample: digits", "claimName: x"}:                                       "expected files or sample, and not both",
		{"data:\n    sample: digits", "suspend: false"}:                          "data: expected it, or worker.command",
		{"workers: 3", "workers: 3\n  wokers: 2"}:                                `unknown field "spec.wokers"`,
		{"name: digits", "name: " + strings.Repeat("a", 41)}:                     "metadata.name: expected 1 to 40",
		{"checkpointEvery: 10s", "checkpointEvery: ''"}:                          "spec.checkpointEvery",
		{"checkpointEvery: 10s", "checkpointEvery: often"}:                       "spec.checkpointEvery",
		{"claimName: digits", "claimName: ''"}:                                   "spec.storage.claimName",
		{"passes: 2", "passes: 2\n  master: {args: [--job=other]}"}:              "spec.master.args: Invalid value",
		{"passes: 2", "passes: 2\n  master: {args: [--listen, ':1']}"}:           "expected none of job, listen",
		{"passes: 2", "passes: 2\n  env: [{name: TRAINMASTER_JOB, value: x}]"}:   "each pod has its own",
	} {
		text := strings.Replace(valid, change[0], change[1], 1)
		if text == valid {
			t.Fatalf("%q is not in the manifest", change[0])
		}
		if err := dryRun(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: expected %q, found %v", change[1], want, err)
		}
	}
	// A paused job without an operator: its fields are compared with the earlier ones.
	c.Apply(t, ns, strings.NewReplacer("name: digits\n", "name: fixed\n", "checkpointEvery: 10s", `checkpointEvery: 10s
  env: [{name: A, value: b}]
  worker: {resources: {limits: {memory: 1Gi}}, template: {metadata: {labels: {a: b}}}}
  master: {args: [--seed=1]}`).Replace(valid))
	for patch, want := range map[string]string{
		`{"spec":{"image":"other"}}`:                                           "spec.image: Invalid value",
		`{"spec":{"workers":2}}`:                                               "expected no change, because the job has no maxWorkers",
		`{"spec":{"groupSize":2}}`:                                             "spec.groupSize",
		`{"spec":{"passes":9}}`:                                                "spec.passes: Invalid value",
		`{"spec":{"parameterServers":3}}`:                                      "spec.parameterServers: Invalid value",
		`{"spec":{"storage":{"claimName":"b"}}}`:                               "spec.storage",
		`{"spec":{"data":{"sample":"flights"}}}`:                               "spec.data",
		`{"spec":{"model":"mlp"}}`:                                             "only suspend, ttlSecondsAfterFinished and workers can be changed",
		`{"spec":{"env":[{"name":"A","value":"c"}]}}`:                          "spec.env",
		`{"spec":{"worker":{"resources":{"limits":{"memory":"2Gi"}}}}}`:        "spec.worker.resources",
		`{"spec":{"worker":{"template":{"metadata":{"labels":{"a":"c"}}}}}}`:   "spec.worker.template",
		`{"spec":{"worker":{"template":{"spec":{"nodeSelector":{"a":"c"}}}}}}`: "spec.worker.template",
		`{"spec":{"worker":{"command":["x"]}}}`:                                "expected no field that is added or removed",
		`{"spec":{"master":{"args":["--seed=2"]}}}`:                            "spec.master.args",
		`{"spec":{"server":{"image":"x"}}}`:                                    "only suspend, ttlSecondsAfterFinished and workers can be changed",
		`{"spec":{"worker":{"image":"x"}}}`:                                    "expected no field that is added or removed",
		`{"spec":{"suspend":true,"ttlSecondsAfterFinished":5}}`:                "",
	} {
		_, err := c.Try("-n", ns, "patch", "trainingjob/fixed", "--type=merge", "-p", patch)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: expected %q, found %v", patch, want, err)
		}
	}
}

// The operator names what it cannot start, and deletes a job after its time.
func TestTrainingJobsThatCannotStart(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	c.operator(t)
	ns := c.Namespace(t)
	c.claim(t, ns)
	// Another object has a name of the job.
	c.Kubectl(t, "-n", ns, "create", "service", "clusterip", "digits-master", "--tcp=80")
	c.Apply(t, ns, c.trainingJob(t, 1, "workers: 3", "workers: 3\n  ttlSecondsAfterFinished: 0"))
	c.Await(t, 3*time.Minute, ns, "trainingjob/digits", Condition("Created", "reason"), "NameInUse")
	if uid := c.Get(t, ns, "service/digits-master", "{.spec.ports[0].port}"); uid != "80" {
		t.Errorf("the Service of another owner: found port %s", uid)
	}
	c.Kubectl(t, "-n", ns, "delete", "service", "digits-master")
	// It completes then, and is deleted immediately, with its pods.
	c.awaitNothing(t, ns)

	for name, of := range map[string]struct{ change, phase, kind, words string }{
		"unknown":   {"worker: {template: {spec: {tolerationz: []}}}", "Failed", "Failed", `spec.worker.template: expected a PodTemplateSpec: unknown field "spec.tolerationz"`},
		"usage":     {"master: {args: [--no-such-flag]}", "Failed", "Failed", "--no-such-flag"},
		"memory":    {"master: {resources: {requests: {memory: 2Gi}, limits: {memory: 1Gi}}}", "Failed", "Created", "must be less than or equal to memory limit"},
		"label":     {`master: {template: {metadata: {labels: {"a b": c}}}}`, "Failed", "Failed", "a b"},
		"no-volume": {"storage: {claimName: absent}", "Pending", "Running", `persistentvolumeclaim "absent" not found`},
	} {
		text := c.trainingJob(t, 1, "name: digits\n", "name: "+name+"\n", "checkpointEvery: 10s", of.change)
		if name == "no-volume" {
			text = c.trainingJob(t, 1, "name: digits\n", "name: "+name+"\n", "claimName: digits", "claimName: absent")
		}
		c.Apply(t, ns, text)
		c.Await(t, 2*time.Minute, ns, "trainingjob/"+name, "{.status.phase}", of.phase)
		Until(t, 3*time.Minute, func() error {
			if message := c.Get(t, ns, "trainingjob/"+name, Condition(of.kind, "message")); !strings.Contains(message, of.words) {
				return fmt.Errorf("%s: expected %q, found %q", name, of.words, message)
			}
			return nil
		})
	}
}
