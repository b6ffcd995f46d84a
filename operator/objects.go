package operator

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"trainmaster/master/podmanager/kubernetes"
	"trainmaster/master/progress"
	"trainmaster/operator/api/v1alpha1"
)

// NameLabel is the label of each object of a TrainingJob, with its name.
const NameLabel = "trainmaster.io/training-job"

// queueLabel is the label with which Kueue admits pods. The pods of the job inherit it from the TrainingJob.
const queueLabel = "kueue.x-k8s.io/queue-name"

const (
	masterRole = "master"
	volumePath = "/job"  // of the claim of the storage
	dataPath   = "/data" // of the claim of the data
	settings   = "/etc/trainmaster"
	user       = 65532
)

// masterName is the name of the objects of the master, except its Job.
func masterName(job string) string { return job + "-master" }

// podsName is the name of the ConfigMap with the templates of the pods.
func podsName(job string) string { return job + "-pods" }

// directory is the directory of the job on its volume.
func directory(t *v1alpha1.TrainingJob) string { return path.Join(volumePath, t.Name) }

// objects returns the objects of a job. The last object is the Job of its master. An error names a field of the spec.
func objects(t *v1alpha1.TrainingJob) ([]client.Object, error) {
	worker, err := podTemplate(t, t.Spec.Worker, "worker")
	if err != nil {
		return nil, err
	}
	server, err := podTemplate(t, t.Spec.Server, "server")
	if err != nil {
		return nil, err
	}
	templates := map[string]string{}
	for name, template := range map[string]*corev1.PodTemplateSpec{"worker.yaml": worker, "server.yaml": server} {
		text, err := yaml.Marshal(template)
		if err != nil {
			return nil, err
		}
		templates[name] = string(text)
	}
	job, err := masterJob(t)
	if err != nil {
		return nil, err
	}
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Namespace: t.Namespace, Labels: map[string]string{NameLabel: t.Name}}
	}
	name := masterName(t.Name)
	ofJob := map[string]string{kubernetes.JobLabel: t.Name}
	immutable := true
	return []client.Object{
		&corev1.ServiceAccount{ObjectMeta: meta(name)},
		&rbacv1.Role{ObjectMeta: meta(name), Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "watch", "create", "delete"}},
			{APIGroups: []string{""}, Resources: []string{"pods/resize"}, Verbs: []string{"patch"}},
			{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"get", "create"}}, // one, with --group-size
			{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create"}},
			{APIGroups: []string{"batch"}, Resources: []string{"jobs"}, ResourceNames: []string{t.Name}, Verbs: []string{"patch"}},
		}},
		&rbacv1.RoleBinding{
			ObjectMeta: meta(name), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: t.Namespace}},
		},
		&corev1.Service{ObjectMeta: meta(name), Spec: corev1.ServiceSpec{
			ClusterIP: corev1.ClusterIPNone, PublishNotReadyAddresses: true, Selector: map[string]string{kubernetes.JobLabel: t.Name, kubernetes.RoleLabel: masterRole},
			Ports: []corev1.ServicePort{{Name: "trainers", Port: 8080}, {Name: "http", Port: 8081}, {Name: "etcd", Port: 2379}},
		}},
		&networkingv1.NetworkPolicy{ObjectMeta: meta(name), Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: ofJob}, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: ofJob}}}}},
		}},
		&corev1.ConfigMap{ObjectMeta: meta(podsName(t.Name)), Data: templates, Immutable: &immutable},
		job,
	}, nil
}

// restricted is the security context of each container, as the policy "restricted" of Kubernetes requires it.
func restricted() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

// basePod is the part of the pod that all roles share.
func basePod(t *v1alpha1.TrainingJob) *corev1.PodTemplateSpec {
	p := &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		TerminationGracePeriodSeconds: new(int64(60)),
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: new(true), RunAsUser: new(int64(user)), RunAsGroup: new(int64(user)), FSGroup: new(int64(user)),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{container(t, kubernetes.Main)},
		Volumes: []corev1.Volume{
			{Name: "job", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: t.Spec.Storage.ClaimName}}},
			{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		},
	}}
	if d := t.Spec.Data; d != nil && d.ClaimName != "" {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: d.ClaimName, ReadOnly: true},
		}})
	}
	return p
}

// container is a container with the volumes of the job.
func container(t *v1alpha1.TrainingJob, name string) corev1.Container {
	c := corev1.Container{
		Name: name, ImagePullPolicy: t.Spec.ImagePullPolicy, Env: slices.Clone(t.Spec.Env),
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError, SecurityContext: restricted(),
		VolumeMounts: []corev1.VolumeMount{{Name: "job", MountPath: volumePath}, {Name: "tmp", MountPath: "/tmp"}},
	}
	if d := t.Spec.Data; d != nil && d.ClaimName != "" {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "data", MountPath: dataPath, ReadOnly: true})
	}
	return c
}

// podTemplate returns the template of a role: its part of all roles, changed by the template of the user.
func podTemplate(t *v1alpha1.TrainingJob, p *v1alpha1.Pods, role string) (*corev1.PodTemplateSpec, error) {
	base := basePod(t)
	base.Spec.AutomountServiceAccountToken = new(false)
	if queue := t.Labels[queueLabel]; queue != "" {
		base.Labels = map[string]string{queueLabel: queue}
	}
	if p == nil {
		return base, nil
	}
	main := &base.Spec.Containers[0]
	main.Image = p.Image
	if p.Resources != nil {
		main.Resources = *p.Resources
	}
	return merged(base, p.Template, "spec."+role+".template")
}

// merged applies a template of the user, as kubectl applies a strategic merge patch.
func merged(base *corev1.PodTemplateSpec, template *runtime.RawExtension, field string) (*corev1.PodTemplateSpec, error) {
	if template == nil || len(template.Raw) == 0 {
		return base, nil
	}
	//guard:template-of-a-training-job-is-strict
	if _, err := kubernetes.ParseTemplate(template.Raw); err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	original, err := json.Marshal(base)
	if err != nil {
		return nil, err
	}
	result, err := strategicpatch.StrategicMergePatch(original, template.Raw, corev1.PodTemplateSpec{})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	var out corev1.PodTemplateSpec
	if err := json.Unmarshal(result, &out); err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	return &out, nil
}

// masterJob returns the Job of the master.
func masterJob(t *v1alpha1.TrainingJob) (*batchv1.Job, error) {
	pod := basePod(t)
	pod.Labels = map[string]string{NameLabel: t.Name, kubernetes.JobLabel: t.Name, kubernetes.RoleLabel: masterRole}
	s := &pod.Spec
	s.RestartPolicy, s.ServiceAccountName = corev1.RestartPolicyNever, masterName(t.Name)
	main := &s.Containers[0]
	main.Image, main.Args = t.Spec.Image, masterArgs(t)
	main.Env = append([]corev1.EnvVar{
		{Name: "TRAINMASTER_EXIT_CODES", Value: "pod"}, {Name: "TRAINMASTER_JOB", Value: t.Name},
		fromField(kubernetes.NameVariable, "metadata.name"), fromField(kubernetes.NamespaceVariable, "metadata.namespace"), fromField("POD_IP", "status.podIP"),
	}, main.Env...)
	main.Ports = []corev1.ContainerPort{{Name: "trainers", ContainerPort: 8080}, {Name: "http", ContainerPort: 8081}, {Name: "etcd", ContainerPort: 2379}}
	main.StartupProbe = probe("/healthz", 1, 120) // the first start waits for the volume, a later one reads the state
	main.LivenessProbe, main.ReadinessProbe = probe("/healthz", 10, 6), probe("/readyz", 2, 3)
	main.Resources = corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("256Mi")},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")},
	}
	main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: "pods", MountPath: settings})
	s.Volumes = append(s.Volumes, corev1.Volume{Name: "pods", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: podsName(t.Name)}},
	}})
	if d := t.Spec.Data; d != nil && d.Sample != "" {
		first := container(t, "data")
		first.Image, first.Args = t.Spec.Image, []string{"recordio", "convert", "--sample=" + d.Sample, "--exit-codes=pod", samplePrefix(t)}
		s.InitContainers = append(s.InitContainers, first)
	}
	if m := t.Spec.Master; m != nil {
		if m.Resources != nil {
			main.Resources = *m.Resources
		}
		var err error
		if pod, err = merged(pod, m.Template, "spec.master.template"); err != nil {
			return nil, err
		}
	}
	code := batchv1.PodFailurePolicyOnExitCodesOpIn
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: t.Name, Namespace: t.Namespace, Labels: map[string]string{NameLabel: t.Name}, Annotations: map[string]string{progress.WorkersAnnotation: strconv.Itoa(int(t.Spec.Workers))}},
		Spec: batchv1.JobSpec{
			Suspend: new(t.Spec.Suspend), BackoffLimit: new(int32(1000)), Template: *pod,
			PodFailurePolicy: &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{ // exit codes of --exit-codes pod
				{Action: batchv1.PodFailurePolicyActionFailJob, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: code, Values: []int32{64, 65}}},
				{Action: batchv1.PodFailurePolicyActionIgnore, OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}},
				{Action: batchv1.PodFailurePolicyActionIgnore, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: code, Values: []int32{143}}},
			}},
		},
	}, nil
}

func fromField(name, field string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: field}}}
}

func probe(path string, period, failures int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("http")}}, PeriodSeconds: period, FailureThreshold: failures,
	}
}

// groupSize returns the number of pods of each worker.
func groupSize(t *v1alpha1.TrainingJob) int { return max(1, int(t.Spec.GroupSize)) }

// samplePrefix is the prefix of the files of a sample.
func samplePrefix(t *v1alpha1.TrainingJob) string {
	return path.Join(directory(t), "data", t.Spec.Data.Sample)
}

// trainingFiles are the values of the flag --data of the workers.
func trainingFiles(t *v1alpha1.TrainingJob) []string {
	if t.Spec.Data.Sample != "" {
		return []string{samplePrefix(t)}
	}
	return t.Spec.Data.Files
}

// evaluationFiles are the held-out files; nil: the job has no evaluation.
func evaluationFiles(t *v1alpha1.TrainingJob) []string {
	switch {
	case t.Spec.Evaluation != nil:
		return t.Spec.Evaluation.Files
	case t.Spec.Data != nil && t.Spec.Data.Sample != "":
		return []string{samplePrefix(t) + "-test-0*"}
	}
	return nil
}

// masterArgs returns the flags of the master. The flags of the user are the last, which take precedence. In them, $(NAME) is a variable of the
// master, as in the arguments of any container. In all others $ has no meaning for the container of the master: $(NAME) in a command is a variable
// of the pod that runs it.
func masterArgs(t *v1alpha1.TrainingJob) []string {
	s := &t.Spec
	dir := directory(t)
	low, high := s.Workers, s.Workers
	if s.MaxWorkers != nil {
		low, high = 1, *s.MaxWorkers
	}
	if s.MinWorkers != nil {
		low = *s.MinWorkers
	}
	args := []string{
		"--listen=0.0.0.0:8080", "--http=0.0.0.0:8081",
		"--data-dir=" + path.Join(dir, "etcd"), "--etcd-listen=0.0.0.0:2379", "--etcd-advertise=" + masterName(t.Name) + ":2379",
		"--annotate-job",
		"--passes=" + strconv.Itoa(int(s.Passes)),
		fmt.Sprintf("--workers=%d:%d", low, high), fmt.Sprintf("--initial-workers=%d", s.Workers),
		"--group-size=" + strconv.Itoa(groupSize(t)),
		"--worker-command=" + workerCommand(t),
		"--worker-template=" + path.Join(settings, "worker.yaml"),
	}
	if n := *s.ParameterServers; n > 0 {
		command := []string{"master", "pserver", "--checkpoint-dir=" + path.Join(dir, "checkpoints"), "--ps-ttl=60s"}
		if s.Server != nil && len(s.Server.Command) > 0 {
			command = s.Server.Command
		}
		args = append(args, "--ps="+strconv.Itoa(int(n)), "--ps-command="+quoted(command), "--ps-template="+path.Join(settings, "server.yaml"))
		if s.CheckpointEvery != "" {
			args = append(args, "--checkpoint-every="+s.CheckpointEvery)
		}
	}
	held := evaluationFiles(t)
	if len(held) > 0 {
		for _, file := range held {
			args = append(args, "--evaluation-data="+file)
		}
		args = append(args, "--best-metric=accuracy:max")
		if s.Evaluation != nil && s.Evaluation.Every != "" {
			args = append(args, "--evaluate-every="+s.Evaluation.Every)
		}
	}
	for _, root := range roots(t, held) {
		args = append(args, "--data-roots="+root)
	}
	for i, arg := range args {
		//guard:variables-of-commands
		args[i] = strings.ReplaceAll(arg, "$", "$$")
	}
	if s.Master != nil {
		args = append(args, s.Master.Args...)
	}
	return args
}

// roots returns the directories and buckets of the files, if a file is in an object store: the master reads no object store without a root.
func roots(t *v1alpha1.TrainingJob, held []string) []string {
	if t.Spec.Data == nil {
		return nil
	}
	var buckets []string
	for _, file := range slices.Concat(t.Spec.Data.Files, held) {
		if scheme, rest, isURL := strings.Cut(file, "://"); isURL {
			bucket, _, _ := strings.Cut(rest, "/")
			buckets = append(buckets, scheme+"://"+bucket)
		}
	}
	if len(buckets) == 0 {
		return nil
	}
	slices.Sort(buckets)
	list := append(slices.Compact(buckets), volumePath)
	if t.Spec.Data.ClaimName != "" {
		list = append(list, dataPath)
	}
	return list
}

// workerCommand returns the value of the flag --worker-command.
func workerCommand(t *v1alpha1.TrainingJob) string {
	if w := t.Spec.Worker; w != nil && len(w.Command) > 0 {
		return quoted(w.Command)
	}
	command := []string{"master", "trainer"}
	for _, file := range trainingFiles(t) {
		command = append(command, "--data="+file)
	}
	if t.Spec.Model != "" {
		command = append(command, "--model="+t.Spec.Model)
	}
	return quoted(append(command, "--save-model="+path.Join(directory(t), "model.safetensors")))
}

// quoted joins the words of a command for the flags of the master.
func quoted(words []string) string {
	var out []string
	for _, word := range words {
		if word == "" || strings.ContainsAny(word, " \t\n'\"\\") {
			word = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
		out = append(out, word)
	}
	return strings.Join(out, " ")
}
