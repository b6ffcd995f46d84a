package kubernetes

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"trainmaster/master/podmanager"
)

// Config has the settings of the pods.
type Config struct {
	Job           string
	API           *rest.Config // of Connect
	Namespace     string
	Self          string // name of the master's own pod; "": the master runs outside the cluster, and its pods have no owner
	Workers       Pods
	Servers       Pods
	Endpoints     []string      // of etcd, for the pods
	NodeLostAfter time.Duration // a pod of a node that does not answer is replaced after this time
	QPS           float32       // requests to the API a second
	Log           *logrus.Entry // default: the standard logger
}

// Pods has the settings of the pods of one role.
type Pods struct {
	Image     string // "": the image of the master's own pod
	Command   []string
	Resources corev1.ResourceList
	Template  corev1.PodTemplateSpec
	Env       []corev1.EnvVar // settings that the programs of this role share with the master; a variable of the template takes precedence
}

// Main is the name of the container that runs the command.
const Main = "main"

// Variables of a pod, from the downward API.
const (
	NameVariable      = "POD_NAME"
	NamespaceVariable = "POD_NAMESPACE"
)

// InPod reports whether this process runs in a pod with a service account.
func InPod() bool {
	_, err := os.Stat("/var/run/secrets/kubernetes.io/serviceaccount/token")
	return err == nil && os.Getenv("KUBERNETES_SERVICE_HOST") != ""
}

// Connect returns the API of the cluster of this pod or, outside a cluster, of the file that KUBECONFIG names, and the namespace.
func Connect() (api *rest.Config, namespace string, err error) {
	if InPod() {
		if api, err = rest.InClusterConfig(); err != nil {
			return nil, "", err
		}
		if namespace = os.Getenv(NamespaceVariable); namespace == "" {
			b, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
			if err != nil {
				return nil, "", err
			}
			namespace = strings.TrimSpace(string(b))
		}
		return api, namespace, nil
	}
	if os.Getenv(clientcmd.RecommendedConfigPathEnvVar) == "" {
		return nil, "", errors.New("expected a pod with a service account, or KUBECONFIG, found neither")
	}
	loaded := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil)
	if api, err = loaded.ClientConfig(); err != nil {
		return nil, "", err
	}
	namespace, _, err = loaded.Namespace()
	return api, namespace, err
}

// jobName is a name that can begin the name of a pod.
var jobName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`)

// CheckJob returns an error for a job whose name cannot begin the name of a pod.
func CheckJob(name string) error {
	if !jobName.MatchString(name) {
		return fmt.Errorf("expected 1 to 40 lower-case letters, digits and '-' for a job with pods, found %q", name)
	}
	return nil
}

// ReadTemplate reads a file with a PodTemplateSpec. Unknown fields are errors.
func ReadTemplate(path string) (t corev1.PodTemplateSpec, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return t, err
	}
	if t, err = ParseTemplate(b); err != nil {
		return t, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// document begins a document of YAML.
var document = regexp.MustCompile(`(?m)^---(\s|$)`)

// ParseTemplate reads a PodTemplateSpec in YAML. Unknown fields, and fields that the master sets, are errors.
func ParseTemplate(b []byte) (t corev1.PodTemplateSpec, err error) {
	documents := 0
	for _, part := range document.Split(string(b), -1) {
		var content any
		if yaml.Unmarshal([]byte(part), &content) != nil || content != nil {
			documents++
		}
	}
	//guard:template-of-one-document
	if documents > 1 {
		return t, fmt.Errorf("expected one PodTemplateSpec, found %d documents of YAML: use a file for each role", documents)
	}
	text, err := yaml.YAMLToJSONStrict(b)
	if err != nil {
		return t, fmt.Errorf("expected a PodTemplateSpec: %w", err)
	}
	unknown, err := json.UnmarshalStrict(text, &t)
	//guard:template-is-strict
	if err == nil && len(unknown) > 0 {
		err = errors.Join(unknown...)
	}
	if err != nil {
		return t, fmt.Errorf("expected a PodTemplateSpec: %w", err)
	}
	if t.Spec.RestartPolicy != "" && t.Spec.RestartPolicy != corev1.RestartPolicyNever {
		return t, fmt.Errorf("spec.restartPolicy: expected Never, because the master replaces pods, found %s", t.Spec.RestartPolicy)
	}
	if g := t.Spec.TerminationGracePeriodSeconds; g != nil && *g < 1 {
		return t, fmt.Errorf("spec.terminationGracePeriodSeconds: expected at least 1, found %d", *g)
	}
	return t, checkContainers(t.Spec.Containers)
}

// perPod are variables that the master sets for each pod: the queue, the ring and the pods know a trainer by its id.
var perPod = []string{"TRAINMASTER_ID", "TRAINMASTER_JOB"}

func checkContainers(list []corev1.Container) error {
	names := map[string]bool{}
	for i, c := range list {
		switch {
		case c.Name == "":
			return fmt.Errorf("spec.containers[%d].name: expected %s, or the name of another container, found nothing", i, Main)
		case names[c.Name]:
			return fmt.Errorf("spec.containers[%d].name: expected each name once, found %s twice", i, c.Name)
		case c.Name == Main && len(c.Command)+len(c.Args) > 0:
			return fmt.Errorf("spec.containers[%d]: expected no command and args of the container %s: give its command to --worker-command or --ps-command, or worker.command of a TrainingJob", i, Main)
		}
		names[c.Name] = true
		for _, v := range c.Env {
			//guard:identity-of-a-pod-is-its-name
			if c.Name == Main && slices.Contains(perPod, v.Name) {
				return fmt.Errorf("spec.containers[%d].env: expected no %s, which the master sets for each pod", i, v.Name)
			}
		}
	}
	return nil
}

// ParseResources reads resources such as cpu=1,memory=2Gi.
func ParseResources(text string) (corev1.ResourceList, error) {
	if text == "" {
		return nil, nil
	}
	list := corev1.ResourceList{}
	for part := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("expected NAME=QUANTITY, separated by commas, such as cpu=1,memory=2Gi, found %q", part)
		}
		q, err := resource.ParseQuantity(value)
		if err != nil || q.Sign() <= 0 {
			return nil, fmt.Errorf("expected a quantity above 0 of %s, such as 500m or 2Gi, found %q", name, value)
		}
		if _, twice := list[corev1.ResourceName(name)]; twice {
			return nil, fmt.Errorf("expected each resource once, found %s twice", name)
		}
		list[corev1.ResourceName(name)] = q
	}
	return list, nil
}

// Memory returns the memory limit of the container "main" in bytes; 0: it has none.
func (p Pods) Memory() int64 {
	if q, ok := p.Resources[corev1.ResourceMemory]; ok {
		return q.Value()
	}
	if i := slices.IndexFunc(p.Template.Spec.Containers, func(c corev1.Container) bool { return c.Name == Main }); i >= 0 {
		return p.Template.Spec.Containers[i].Resources.Limits.Memory().Value()
	}
	return 0
}

func (c Config) pods(r podmanager.Role) Pods {
	if r == podmanager.Server {
		return c.Servers
	}
	return c.Workers
}

// counting counts the requests to the API.
type counting struct {
	http.RoundTripper
	count func(verb string, code int)
}

func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	reply, err := c.RoundTripper.RoundTrip(r)
	code := 0
	if err == nil {
		code = reply.StatusCode
	}
	verb := strings.ToLower(r.Method)
	if r.URL.Query().Get("watch") != "" {
		verb = "watch"
	}
	c.count(verb, code)
	return reply, err
}

// HasImage reports whether the settings name an image.
func (p Pods) HasImage() bool {
	return p.Image != "" || slices.ContainsFunc(p.Template.Spec.Containers, func(c corev1.Container) bool { return c.Name == Main && c.Image != "" })
}
