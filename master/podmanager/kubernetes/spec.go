package kubernetes

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"trainmaster/master/podmanager"
)

// Labels of the pods of a job.
const (
	JobLabel      = "trainmaster.io/job"
	RoleLabel     = "trainmaster.io/role"
	IndexLabel    = "trainmaster.io/index"
	AttemptLabel  = "trainmaster.io/attempt"
	RankLabel     = "trainmaster.io/rank"       // in the group
	SizeLabel     = "trainmaster.io/group-size" // pods of the group
	InstanceLabel = "trainmaster.io/instance"   // random id of the job
)

// Ports of the pods. Each pod has an address of its own.
const (
	ServerPort  = 9000  // trainers and the master dial parameter servers
	ControlPort = 9100  // the master dials TrainerControl
	RingPort    = 9200  // the workers of an all-reduce dial each other
	GroupPort   = 29500 // the program of rank 0 of a group takes it, as PyTorch does
)

const (
	workerGrace = 30
	serverGrace = 45 // it waits up to 30 s for its last checkpoint set
)

// own is what the master's own pod determines.
type own struct {
	owner  []metav1.OwnerReference
	target corev1.ObjectReference // of events; Name "": none
	image  string
	policy corev1.PullPolicy
	pull   []corev1.LocalObjectReference
}

// owns reports whether a pod has the owner of this job's pods.
func (o own) owns(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.OwnerReferences, func(of metav1.OwnerReference) bool {
		return len(o.owner) > 0 && of.UID == o.owner[0].UID
	})
}

// spec returns the pod of a create.
func (c Config) spec(a podmanager.Action, instance string, o own) *corev1.Pod {
	settings := c.pods(a.Role)
	template := settings.Template.DeepCopy()
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Name, pod.Namespace, pod.OwnerReferences = a.Name, c.Namespace, o.owner
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	maps.Copy(pod.Labels, map[string]string{
		JobLabel: c.Job, RoleLabel: string(a.Role), IndexLabel: strconv.Itoa(a.Index), AttemptLabel: strconv.Itoa(a.Attempt), InstanceLabel: instance,
		RankLabel: strconv.Itoa(a.Rank), SizeLabel: strconv.Itoa(max(1, a.Size)),
	})
	s := &pod.Spec
	if a.Size > 1 {
		s.Hostname, s.Subdomain = a.Name, serviceName(c.Job)
	}
	s.RestartPolicy = corev1.RestartPolicyNever
	if s.AutomountServiceAccountToken == nil {
		s.AutomountServiceAccountToken = new(bool)
	}
	if s.TerminationGracePeriodSeconds == nil {
		grace := int64(workerGrace)
		if a.Role == podmanager.Server {
			grace = serverGrace
		}
		s.TerminationGracePeriodSeconds = &grace
	}
	c.tolerate(s)
	i := slices.IndexFunc(s.Containers, func(c corev1.Container) bool { return c.Name == Main })
	if i < 0 {
		s.Containers = slices.Insert(s.Containers, 0, corev1.Container{Name: Main})
		i = 0
	}
	c.main(&s.Containers[i], a, settings, o)
	if settings.Image == "" && len(s.ImagePullSecrets) == 0 {
		s.ImagePullSecrets = o.pull
	}
	return pod
}

// main fills the container of the command.
func (c Config) main(m *corev1.Container, a podmanager.Action, settings Pods, o own) {
	if settings.Image != "" {
		m.Image = settings.Image
	}
	if m.Image == "" {
		m.Image = o.image
		if m.ImagePullPolicy == "" {
			m.ImagePullPolicy = o.policy
		}
	}
	command := settings.Command
	if len(command) > 0 && command[0] == "master" && settings.Image == "" {
		m.Args = command[1:] // master is the entry point of its image
	} else if len(command) > 0 {
		m.Command = command
	}
	if m.TerminationMessagePolicy == "" {
		m.TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
	}
	m.Env = c.env(m.Env, a, settings.Env)
	for name, q := range settings.Resources {
		c.limit(m, name, q)
	}
	if a.Memory > 0 {
		c.limit(m, corev1.ResourceMemory, *resource.NewQuantity(a.Memory, resource.BinarySI))
	}
	port := corev1.ContainerPort{Name: "control", ContainerPort: ControlPort}
	if a.Role == podmanager.Server {
		port = corev1.ContainerPort{Name: "ps", ContainerPort: ServerPort}
	}
	if !slices.ContainsFunc(m.Ports, func(p corev1.ContainerPort) bool { return p.ContainerPort == port.ContainerPort || p.Name == port.Name }) {
		m.Ports = append(m.Ports, port)
	}
}

// limit sets request and limit of a resource.
func (Config) limit(m *corev1.Container, name corev1.ResourceName, q resource.Quantity) {
	for _, list := range []*corev1.ResourceList{&m.Resources.Requests, &m.Resources.Limits} {
		if *list == nil {
			*list = corev1.ResourceList{}
		}
		(*list)[name] = q
	}
}

// env adds the variables of a pod. A variable of the template takes precedence.
func (c Config) env(env []corev1.EnvVar, a podmanager.Action, more []corev1.EnvVar) []corev1.EnvVar {
	add := []corev1.EnvVar{
		{Name: "POD_IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}},
		{Name: "TRAINMASTER_ENDPOINTS", Value: strings.Join(c.Endpoints, ",")},
		{Name: "TRAINMASTER_JOB", Value: c.Job},
		{Name: "TRAINMASTER_ID", Value: a.Name},
		{Name: "TRAINMASTER_EXIT_CODES", Value: "pod"},
	}
	if a.Role == podmanager.Server {
		add = append(add, corev1.EnvVar{Name: "TRAINMASTER_LISTEN", Value: fmt.Sprintf("0.0.0.0:%d", ServerPort)}, corev1.EnvVar{Name: "TRAINMASTER_DATA_SOCKET", Value: "off"})
	} else {
		add = append(add, corev1.EnvVar{Name: "TRAINMASTER_CONTROL_LISTEN", Value: fmt.Sprintf(":%d", ControlPort)},
			corev1.EnvVar{Name: "TRAINMASTER_RING_LISTEN", Value: fmt.Sprintf(":%d", RingPort)})
	}
	if a.Size > 1 {
		rank, size := strconv.Itoa(a.Rank), strconv.Itoa(a.Size)
		first := podmanager.Name(c.Job, a.Role, a.Index, a.Attempt) + "." + serviceName(c.Job)
		add = append(add, corev1.EnvVar{Name: "TRAINMASTER_GROUP_RANK", Value: rank}, corev1.EnvVar{Name: "TRAINMASTER_GROUP_SIZE", Value: size},
			corev1.EnvVar{Name: "RANK", Value: rank}, corev1.EnvVar{Name: "WORLD_SIZE", Value: size},
			corev1.EnvVar{Name: "MASTER_ADDR", Value: first}, corev1.EnvVar{Name: "MASTER_PORT", Value: strconv.Itoa(GroupPort)})
	}
	for _, v := range append(add, more...) {
		if !slices.ContainsFunc(env, func(e corev1.EnvVar) bool { return e.Name == v.Name }) {
			env = append(env, v)
		}
	}
	return env
}

// tolerate sets the time after which a pod is deleted from a node that does not answer.
func (c Config) tolerate(s *corev1.PodSpec) {
	seconds := int64(c.NodeLostAfter / time.Second)
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		if !slices.ContainsFunc(s.Tolerations, func(t corev1.Toleration) bool {
			return t.Key == key && (t.Effect == "" || t.Effect == corev1.TaintEffectNoExecute)
		}) {
			s.Tolerations = append(s.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds})
		}
	}
}
