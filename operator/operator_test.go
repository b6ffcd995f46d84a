package operator

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"trainmaster/master/podmanager"
	"trainmaster/master/progress"
	"trainmaster/operator/api/v1alpha1"
)

// digits is a job as the API server stores it, with its defaults.
func digits() *v1alpha1.TrainingJob {
	return &v1alpha1.TrainingJob{
		ObjectMeta: metav1.ObjectMeta{Name: "digits", Namespace: "ns", UID: "u", Generation: 3},
		Spec: v1alpha1.TrainingJobSpec{
			Image: "trainmaster:1", ImagePullPolicy: corev1.PullIfNotPresent, Storage: v1alpha1.Storage{ClaimName: "claim"}, Data: &v1alpha1.Data{Sample: "digits"},
			Passes: 30, Workers: 3, ParameterServers: new(int32(2)),
		},
	}
}

// jobOf returns the Job and the templates among the objects.
func jobOf(t *testing.T, of *v1alpha1.TrainingJob) (job *batchv1.Job, templates map[string]string) {
	t.Helper()
	list, err := objects(of)
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range list {
		if object.GetNamespace() != "ns" || object.GetLabels()[NameLabel] != "digits" {
			t.Errorf("%s: namespace %q, labels %v", object.GetName(), object.GetNamespace(), object.GetLabels())
		}
		switch o := object.(type) {
		case *batchv1.Job:
			job = o
		case *corev1.ConfigMap:
			templates = o.Data
		}
	}
	return job, templates
}

func TestMasterHasTheFlagsOfTheSpec(t *testing.T) {
	of := digits()
	of.Spec.MinWorkers, of.Spec.MaxWorkers, of.Spec.Model, of.Spec.CheckpointEvery = new(int32(2)), new(int32(5)), "mlp", "10s"
	of.Spec.Master = &v1alpha1.Master{Args: []string{"--seed=7"}}
	job, _ := jobOf(t, of)
	args := job.Spec.Template.Spec.Containers[0].Args
	for _, want := range []string{
		"--annotate-job", "--passes=30", "--workers=2:5", "--initial-workers=3", "--group-size=1", "--ps=2", "--checkpoint-every=10s", "--etcd-advertise=digits-master:2379", "--data-dir=/job/digits/etcd",
		"--worker-command=master trainer --data=/job/digits/data/digits --model=mlp --save-model=/job/digits/model.safetensors",
		"--evaluation-data=/job/digits/data/digits-test-0*", "--best-metric=accuracy:max",
	} {
		if !slices.Contains(args, want) {
			t.Errorf("expected %s in %q", want, args)
		}
	}
	if args[len(args)-1] != "--seed=7" {
		t.Errorf("expected the flags of the user at the end, found %q", args)
	}
	if first := job.Spec.Template.Spec.InitContainers; len(first) != 1 || !slices.Contains(first[0].Args, "--sample=digits") {
		t.Errorf("init containers: found %+v", first)
	}
	of.Spec.Data = &v1alpha1.Data{ClaimName: "data", Files: []string{"s3://bucket/a*", "/data/b"}}
	of.Spec.Worker = &v1alpha1.Pods{Command: []string{"python3", "my train.py", "--name=it's"}}
	of.Spec.ParameterServers = new(int32(0))
	job, _ = jobOf(t, of)
	args = job.Spec.Template.Spec.Containers[0].Args
	for _, want := range []string{`--worker-command=python3 'my train.py' '--name=it'\''s'`, "--data-roots=s3://bucket", "--data-roots=/job", "--data-roots=/data"} {
		if !slices.Contains(args, want) {
			t.Errorf("expected %s in %q", want, args)
		}
	}
	if text := strings.Join(args, " "); strings.Contains(text, "--ps") || strings.Contains(text, "--evaluation-data") {
		t.Errorf("a job without servers and held-out files: found %s", text)
	}
}

func TestGroupSizeIsAFlagOfTheMaster(t *testing.T) {
	of := digits()
	of.Spec.GroupSize, of.Spec.Worker = 4, &v1alpha1.Pods{Command: []string{"/group"}}
	job, _ := jobOf(t, of)
	if args := job.Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, "--group-size=4") {
		t.Errorf("expected --group-size=4 in %q", args)
	}
	if s := statusOf(of, observation{job: job}); s.Selector != "trainmaster.io/job=digits,trainmaster.io/role=worker,trainmaster.io/rank=0" {
		t.Errorf("expected a selector of one pod for each worker, found %s", s.Selector)
	}
}

func TestGroupsAreLimitedAsByTheMaster(t *testing.T) {
	crd, err := os.ReadFile(filepath.Join("..", "deploy", "operator", "crd", "trainmaster.io_trainingjobs.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("<= %d", podmanager.MaxPods); !strings.Contains(strings.Join(strings.Fields(string(crd)), " "), want) {
		t.Errorf("expected a rule with %q", want)
	}
}

func TestTemplateOfTheUserIsMerged(t *testing.T) {
	of := digits()
	of.Labels = map[string]string{queueLabel: "team"}
	of.Spec.Worker = &v1alpha1.Pods{
		Image: "other:2", Resources: &corev1.ResourceRequirements{},
		Template: &runtime.RawExtension{Raw: []byte(`{"metadata":{"labels":{"a":"b"}},"spec":{"tolerations":[{"key":"gpu","operator":"Exists"}],"containers":[{"name":"main","env":[{"name":"X","value":"1"}]},{"name":"side","image":"s"}]}}`)},
	}
	_, templates := jobOf(t, of)
	var worker corev1.PodTemplateSpec
	if err := yaml.UnmarshalStrict([]byte(templates["worker.yaml"]), &worker); err != nil {
		t.Fatal(err)
	}
	main := worker.Spec.Containers[slices.IndexFunc(worker.Spec.Containers, func(c corev1.Container) bool { return c.Name == "main" })]
	if worker.Labels["a"] != "b" || worker.Labels[queueLabel] != "team" || len(worker.Spec.Tolerations) != 1 || len(worker.Spec.Containers) != 2 {
		t.Errorf("found %+v", worker)
	}
	if main.Image != "other:2" || len(main.Env) != 1 || len(main.VolumeMounts) != 2 || !*main.SecurityContext.ReadOnlyRootFilesystem {
		t.Errorf("the container main: found %+v", main)
	}
}

// F315: an unknown field is not ignored.
func TestUnknownFieldOfATemplateIsNamed(t *testing.T) {
	for role, set := range map[string]func(*v1alpha1.TrainingJob, *runtime.RawExtension){
		"spec.worker.template": func(of *v1alpha1.TrainingJob, r *runtime.RawExtension) { of.Spec.Worker = &v1alpha1.Pods{Template: r} },
		"spec.server.template": func(of *v1alpha1.TrainingJob, r *runtime.RawExtension) { of.Spec.Server = &v1alpha1.Pods{Template: r} },
		"spec.master.template": func(of *v1alpha1.TrainingJob, r *runtime.RawExtension) {
			of.Spec.Master = &v1alpha1.Master{Template: r}
		},
	} {
		of := digits()
		set(of, &runtime.RawExtension{Raw: []byte(`{"spec":{"tolerationz":[]}}`)})
		if _, err := objects(of); err == nil || !strings.Contains(err.Error(), role) || !strings.Contains(err.Error(), "spec.tolerationz") {
			t.Errorf("%s: expected an error with the field, found %v", role, err)
		}
	}
}

var now = time.Date(2026, 11, 26, 10, 0, 0, 0, time.UTC)

// observed returns the status of a job whose master's Job has a state and a report.
func observed(of *v1alpha1.TrainingJob, job batchv1.JobStatus, report string, o observation) v1alpha1.TrainingJobStatus {
	o.job = &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: of.Name}, Status: job}
	if report != "" {
		o.job.Annotations = map[string]string{progress.Annotation: report}
	}
	o.now = now
	return statusOf(of, o)
}

func isTrue(s v1alpha1.TrainingJobStatus, kind string) bool {
	return meta.IsStatusConditionTrue(s.Conditions, kind)
}

const half = `{"format":1,"status":"running","pass":16,"passes":30,"done":240,"tasks":480,"workers":3,"servers":2,"figure":"accuracy","value":0.95833}`

func TestStatusMirrorsTheJob(t *testing.T) {
	of := digits()
	s := observed(of, batchv1.JobStatus{Active: 1}, "", observation{words: "pod digits-x: Unschedulable: no node"})
	if s.Phase != v1alpha1.Pending || !isTrue(s, "Created") || isTrue(s, "Running") || !strings.Contains(meta.FindStatusCondition(s.Conditions, "Running").Message, "no node") {
		t.Errorf("pending: found %+v", s)
	}
	s = observed(of, batchv1.JobStatus{Active: 1, Ready: new(int32(1))}, half, observation{previous: s})
	if s.Phase != v1alpha1.Running || s.Progress.Summary != "50%" || s.Workers != 3 || s.ParameterServers != 2 || s.Accuracy != "0.9583" || !isTrue(s, "Running") || s.StartTime == nil {
		t.Errorf("running: found %+v", s)
	}
	ended := strings.Replace(half, `"running"`, `"ended"`, 1)
	s = observed(of, batchv1.JobStatus{Active: 1}, ended, observation{previous: s})
	if s.Phase != v1alpha1.Running {
		t.Errorf("while the pods of an ended job end: found %+v", s)
	}
	end := metav1.NewTime(now.Add(-time.Minute))
	complete := batchv1.JobStatus{Conditions: []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue, LastTransitionTime: end}}}
	s = observed(of, complete, ended, observation{previous: s})
	if s.Phase != v1alpha1.Complete || s.Progress.Summary != "100%" || s.Workers != 0 || s.Accuracy != "0.9583" || !isTrue(s, "Complete") || isTrue(s, "Running") || !s.CompletionTime.Equal(&end) {
		t.Errorf("complete: found %+v", s)
	}
	of.Status = s
	if finished(of) == nil {
		t.Error("expected the job to be finished")
	}
}

// F316: the reason of a failure is in the status.
func TestFailedJobHasItsReason(t *testing.T) {
	failed := batchv1.JobStatus{Conditions: []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: "PodFailurePolicy", Message: "rule at index 0", LastTransitionTime: metav1.NewTime(now)}}}
	for want, s := range map[string]v1alpha1.TrainingJobStatus{
		"worker 1 given up": observed(digits(), failed, `{"format":1,"status":"failed","reason":"worker 1 given up"}`, observation{words: "exit code 65"}),
		"exit code 64: bad": observed(digits(), failed, "", observation{words: "exit code 64: bad"}),
		"rule at index 0":   observed(digits(), failed, half, observation{}),
	} {
		if c := meta.FindStatusCondition(s.Conditions, "Failed"); s.Phase != v1alpha1.Failed || c == nil || c.Message != want || c.Reason != "PodFailurePolicy" {
			t.Errorf("expected %q, found %+v", want, s)
		}
	}
	s := statusOf(digits(), observation{now: now, problem: &problem{reason: "InvalidSpec", message: "spec.worker.template: x", final: true}})
	if s.Phase != v1alpha1.Failed || s.CompletionTime == nil || isTrue(s, "Created") {
		t.Errorf("invalid: found %+v", s)
	}
	s = statusOf(digits(), observation{now: now, problem: &problem{reason: "NameInUse", message: "x"}})
	if s.Phase != v1alpha1.Pending || isTrue(s, "Failed") {
		t.Errorf("name in use: found %+v", s)
	}
}

// F317: a suspended job has no pods, and its servers outlive its master.
func TestSuspendedJobEndsItsMasterFirst(t *testing.T) {
	of := digits()
	of.Spec.Suspend = true
	pods := []corev1.Pod{
		{ObjectMeta: metav1.ObjectMeta{Name: "runs"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}},
		{ObjectMeta: metav1.ObjectMeta{Name: "ends", DeletionTimestamp: new(metav1.NewTime(now))}, Status: corev1.PodStatus{Phase: corev1.PodRunning}},
		{ObjectMeta: metav1.ObjectMeta{Name: "done"}, Status: corev1.PodStatus{Phase: corev1.PodSucceeded}},
	}
	for _, s := range []batchv1.JobStatus{{Active: 1}, {Terminating: new(int32(1))}} {
		if left, surplus := podsToEnd(&batchv1.Job{Status: s}, pods); left != 2 || len(surplus) != 0 {
			t.Errorf("%+v: expected 2 pods and none to delete, found %d and %v", s, left, surplus)
		}
		if s := observed(of, s, half, observation{}); s.Phase != v1alpha1.Suspending || isTrue(s, "Suspended") {
			t.Errorf("found %+v", s)
		}
	}
	left, surplus := podsToEnd(&batchv1.Job{}, pods)
	if left != 2 || len(surplus) != 1 || surplus[0].Name != "runs" {
		t.Errorf("expected to delete the running pod, found %d and %v", left, surplus)
	}
	if s := observed(of, batchv1.JobStatus{}, half, observation{pods: left}); s.Phase != v1alpha1.Suspending || isTrue(s, "Suspended") {
		t.Errorf("found %+v", s)
	}
	s := observed(of, batchv1.JobStatus{}, half, observation{})
	if s.Phase != v1alpha1.Suspended || !isTrue(s, "Suspended") || s.Workers != 0 || s.Progress.Summary != "50%" {
		t.Errorf("found %+v", s)
	}
}

// F318: a job is deleted after its time only.
func TestTimeToLiveBeginsWithTheEnd(t *testing.T) {
	of := digits()
	of.Spec.TTLSecondsAfterFinished = new(int32(60))
	of.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour))
	of.Status.CompletionTime = new(metav1.NewTime(now.Add(-20 * time.Second)))
	if rest := timeLeft(of, now); rest != 40*time.Second {
		t.Errorf("expected 40s, found %v", rest)
	}
}

// F319: an object of another owner stays.
func TestObjectOfAnotherOwnerIsRefused(t *testing.T) {
	of := digits()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "digits-master"}}
	if err := checkOwner(of, service); err == nil || !strings.Contains(err.Error(), "Service digits-master: expected none") {
		t.Errorf("without an owner: found %v", err)
	}
	service.OwnerReferences = []metav1.OwnerReference{{UID: "earlier", Name: "digits", Controller: new(true)}}
	if err := checkOwner(of, service); err == nil {
		t.Error("expected an error for the object of an earlier job")
	}
	service.OwnerReferences[0].UID = of.UID
	if err := checkOwner(of, service); err != nil {
		t.Error(err)
	}
}

func TestLastWordsNameThePod(t *testing.T) {
	terminated := func(code int32, message string) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: "main", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Message: message}}}
	}
	pods := []corev1.Pod{
		{ObjectMeta: metav1.ObjectMeta{Name: "a", CreationTimestamp: metav1.NewTime(now)}, Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{terminated(64, "first\nmaster: --ps: bad\nSee 'master --help'.\n")}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "b", CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))}, Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{terminated(1, "old")}}},
	}
	if found := wordsOf(pods); found != "pod a: exit code 64 (usage): master: --ps: bad" {
		t.Errorf("found %q", found)
	}
	waiting := corev1.ContainerStatus{Name: "data", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such image"}}}
	pods[0].Status = corev1.PodStatus{InitContainerStatuses: []corev1.ContainerStatus{waiting}}
	if found := wordsOf(pods); found != "pod a: ErrImagePull: no such image" {
		t.Errorf("found %q", found)
	}
	ended := corev1.ContainerStatus{Name: "data", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: "convert\ndisk full\n"}}}
	pods[0].Status = corev1.PodStatus{Phase: corev1.PodFailed, InitContainerStatuses: []corev1.ContainerStatus{ended}}
	if found := wordsOf(pods); found != "pod a: container data: exit code 1: disk full" {
		t.Errorf("found %q", found)
	}
}

func TestSummaryOfProgress(t *testing.T) {
	for want, text := range map[string]string{
		"0%": `{"format":1,"status":"running"}`, "50%": half, "pass 4": `{"format":1,"status":"running","pass":4}`, "100%": `{"format":1,"status":"ended","pass":4,"done":7,"tasks":9}`,
	} {
		var p progress.Progress
		if err := json.Unmarshal([]byte(text), &p); err != nil {
			t.Fatal(err)
		}
		if found := summary(p); found != want {
			t.Errorf("%s: expected %s, found %s", text, want, found)
		}
	}
}

// The rights of a master are the same without the controller, except for the progress in the annotation of its Job. A controller grants only rights that it has.
func TestRightsOfMastersAreEqual(t *testing.T) {
	list, err := objects(digits())
	if err != nil {
		t.Fatal(err)
	}
	var ofMaster []rbacv1.PolicyRule
	for _, object := range list {
		if role, ok := object.(*rbacv1.Role); ok {
			ofMaster = role.Rules
		}
	}
	ofJob := len(ofMaster) - 1
	if overlay := rulesIn(t, "base/rights.yaml", "kind: Role\n"); !reflect.DeepEqual(overlay, ofMaster[:ofJob]) || ofMaster[ofJob].Resources[0] != "jobs" {
		t.Errorf("deploy/base/rights.yaml: expected %v, found %v", ofMaster[:ofJob], overlay)
	}
	controller := rulesIn(t, "operator/rights.yaml", "kind: ClusterRole\n")
	for _, rule := range ofMaster {
		if !slices.ContainsFunc(controller, func(r rbacv1.PolicyRule) bool {
			contains := func(list, part []string) bool {
				return !slices.ContainsFunc(part, func(word string) bool { return !slices.Contains(list, word) })
			}
			return slices.Equal(r.APIGroups, rule.APIGroups) && contains(r.Resources, rule.Resources) && contains(r.Verbs, rule.Verbs)
		}) {
			t.Errorf("deploy/operator/rights.yaml: expected the right %v of the masters", rule)
		}
	}
	chart, err := os.ReadFile("../deploy/helm/trainmaster/templates/rights.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, chartRules, _ := strings.Cut(string(chart), "rules:\n")
	chartRules, _, _ = strings.Cut(chartRules, "{{-")
	var found struct{ Rules []rbacv1.PolicyRule }
	if err := yaml.Unmarshal([]byte("rules:\n"+chartRules), &found); err != nil || !reflect.DeepEqual(found.Rules, controller) {
		t.Errorf("deploy/helm: expected the rules of deploy/operator/rights.yaml, found %v, %v", found.Rules, err)
	}
}

// rulesIn returns the rules of the first object of a kind in a file of deploy.
func rulesIn(t *testing.T, file, kind string) []rbacv1.PolicyRule {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "deploy", filepath.FromSlash(file)))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range strings.Split(string(b), "\n---\n") {
		if strings.Contains(text, kind) {
			var found struct{ Rules []rbacv1.PolicyRule }
			if err := yaml.Unmarshal([]byte(text), &found); err != nil {
				t.Fatal(err)
			}
			return found.Rules
		}
	}
	t.Fatalf("%s: no %s", file, kind)
	return nil
}

// F326: Kubernetes expands $(POD_IP) in the arguments of the master, where the workers would have the address of the master.
func TestVariablesOfCommandsAreOfTheirPods(t *testing.T) {
	of := digits()
	of.Spec.Worker = &v1alpha1.Pods{Command: []string{"python3", "train.py", "--host=$(POD_IP)"}}
	of.Spec.Server = &v1alpha1.Pods{Command: []string{"serve", "--host=$(POD_IP)"}}
	of.Spec.Master = &v1alpha1.Master{Args: []string{"--advertise=$(POD_IP):8080"}}
	job, _ := jobOf(t, of)
	args := job.Spec.Template.Spec.Containers[0].Args
	for _, want := range []string{"--worker-command=python3 train.py --host=$$(POD_IP)", "--ps-command=serve --host=$$(POD_IP)", "--advertise=$(POD_IP):8080"} {
		if !slices.Contains(args, want) {
			t.Errorf("expected %s in %v", want, args)
		}
	}
}

// F329: words are shown on terminals, and the reason of the end of a container is often its only message.
func TestLastWordsAreSafeAndHaveTheReasonOfTheContainer(t *testing.T) {
	of := func(code int32, reason, message string) string {
		ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message}}
		return wordsOf([]corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "main", State: ended}}}}})
	}
	if found := of(137, "OOMKilled", ""); found != "pod a: the container exceeded its memory: raise the memory in spec.master.resources" {
		t.Errorf("found %q", found)
	}
	if found := of(137, "Error", ""); found != "pod a: ended by signal 9" {
		t.Errorf("found %q", found)
	}
	if found := of(1, "Error", "\x1b[31mred\a\xff"); found != "pod a: exit code 1: [31mred?" {
		t.Errorf("found %q", found)
	}
}

// F360: the Job of the master cannot create its pod, for example because of a quota.
func TestJobWithoutAPodHasTheReasonOfTheCluster(t *testing.T) {
	if found := withoutPod(nil); found != "" {
		t.Errorf("without events: found %q", found)
	}
	event := func(message string, age time.Duration) corev1.Event {
		return corev1.Event{Message: message, LastTimestamp: metav1.NewTime(now.Add(-age))}
	}
	found := withoutPod([]corev1.Event{event("Error creating: old", time.Hour), event(`Error creating: pods "digits-x" is forbidden: exceeded quota: q`, time.Minute)})
	if found != `the Job has created no pod: pods "digits-x" is forbidden: exceeded quota: q` {
		t.Errorf("found %q", found)
	}
}

// F361: the master runs, and its workers do not.
func TestConditionNamesThePodsThatDoNotRun(t *testing.T) {
	waiting := strings.Replace(half, `"status"`, `"waiting":"0 of 1 worker pods run: digits-worker-0-0: ErrImagePull","status"`, 1)
	s := observed(digits(), batchv1.JobStatus{Active: 1, Ready: new(int32(1))}, waiting, observation{})
	const want = "the master is ready; 0 of 1 worker pods run: digits-worker-0-0: ErrImagePull"
	if c := meta.FindStatusCondition(s.Conditions, "Running"); c == nil || c.Status != metav1.ConditionTrue || c.Message != want {
		t.Errorf("expected %q, found %+v", want, c)
	}
}

// F325: an object that the API refuses is in the status and in an event. An invalid object fails the job.
func TestRefusedObjectIsShown(t *testing.T) {
	object := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "digits"}}
	jobs := schema.GroupResource{Group: "batch", Resource: "jobs"}
	for name, c := range map[string]struct {
		err    error
		reason string
		phase  v1alpha1.Phase
	}{
		"invalid":  {apierrors.NewInvalid(schema.GroupKind{Group: "batch", Kind: "Job"}, "digits", nil), "InvalidSpec", v1alpha1.Failed},
		"quota":    {apierrors.NewForbidden(jobs, "digits", errors.New("exceeded quota")), "Refused", v1alpha1.Pending},
		"webhook":  {apierrors.NewInternalError(errors.New("failed calling webhook")), "Refused", v1alpha1.Pending},
		"conflict": {apierrors.NewConflict(jobs, "digits", errors.New("x")), "", ""},
		"none":     {nil, "", ""},
	} {
		p := refusal(object, c.err)
		if c.reason == "" {
			if p != nil {
				t.Errorf("%s: expected no problem, found %+v", name, p)
			}
			continue
		}
		if p == nil || p.reason != c.reason || !strings.Contains(p.message, "Job digits: ") || !strings.Contains(p.message, c.err.Error()) {
			t.Errorf("%s: expected %s and the words of the API, found %+v", name, c.reason, p)
			continue
		}
		of := digits()
		before := of.Status
		of.Status = statusOf(of, observation{now: now, problem: p})
		kind, reason, message := eventOf(before, of)
		if of.Status.Phase != c.phase || kind != corev1.EventTypeWarning || reason != c.reason || message != p.message {
			t.Errorf("%s: found phase %s, event %s %s %s", name, of.Status.Phase, kind, reason, message)
		}
		if _, reason, _ := eventOf(of.Status, of); reason != "" {
			t.Errorf("%s: expected one event, found another: %s", name, reason)
		}
	}
}

// F328: the pods of a job that the cluster has ended, and not its master, are deleted.
func TestPodsOfAJobThatTheClusterHasEndedAreDeleted(t *testing.T) {
	failed := batchv1.JobStatus{Conditions: []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue}}}
	for _, c := range []struct {
		status batchv1.JobStatus
		report string
		want   bool
	}{
		{failed, "", true},
		{failed, half, true},
		{failed, `{"format":1,"status":"failed","reason":"x"}`, false}, // the master has deleted pods by --clean-pods
		{batchv1.JobStatus{}, half, false},
	} {
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{progress.Annotation: c.report}}, Status: c.status}
		if found := endedByCluster(job); found != c.want {
			t.Errorf("%+v, %q: expected %v", c.status, c.report, c.want)
		}
	}
}
