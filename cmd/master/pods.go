package main

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/master"
	"trainmaster/master/podmanager"
	"trainmaster/master/podmanager/kubernetes"
	"trainmaster/master/pods"
	"trainmaster/master/progress"
	"trainmaster/master/store"
)

// podFlags are the flags about pods.
type podFlags struct {
	need      bool
	workers   string
	worker    roleFlags
	server    roleFlags
	plan      podmanager.Config
	maxMemory string
	lostAfter time.Duration
	qps       float32
	clean     *string
	annotate  bool

	cluster kubernetes.Config // nil API: the master creates no pods
	owner   *kubernetes.Cluster
}

// roleFlags are the flags of one role.
type roleFlags struct {
	command, image, resources, template string
}

const (
	defaultWorkerCommand = "master trainer"
	defaultServerCommand = "master pserver"
)

func (p *podFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&p.need, "need-pod-manager", false, "create the pods of --workers and --ps in Kubernetes and replace them (default: with --workers, in a pod with a service account)")
	flags.StringVar(&p.workers, "workers", "", "number of workers `N`, or MIN:MAX: with fewer than MIN left, the job fails. It is the default of --trainers (default: the master creates no workers)")
	flags.IntVar(&p.plan.Workers.Size, "group-size", 1, "`number` of pods of each worker: a group of pods is created, replaced and given up together, and its pod of rank 0 is the trainer")
	flags.IntVar(&p.plan.Workers.Begin, "initial-workers", 0, "`number` of worker pods to begin with, with --workers MIN:MAX (0: MAX)")
	for _, r := range []struct {
		name, command string
		flags         *roleFlags
	}{{"worker", defaultWorkerCommand, &p.worker}, {"ps", defaultServerCommand, &p.server}} {
		flags.StringVar(&r.flags.command, r.name+"-command", r.command, "`command` of the pods of this role, with quotes as in a shell; a first word master is the entry point of the image of the master")
		flags.StringVar(&r.flags.image, r.name+"-image", "", "`image` of these pods (default: of the template, else of the master's pod)")
		flags.StringVar(&r.flags.resources, r.name+"-resources", "", "requests and limits of these pods, such as cpu=1,memory=2Gi")
		flags.StringVar(&r.flags.template, r.name+"-template", "", "YAML `file` with a PodTemplateSpec for these pods: volumes, tolerations, other containers; the command is of the container main")
	}
	flags.IntVar(&p.plan.MaxRelaunch, "max-relaunch", 3, "maximum charged relaunches of a pod; evictions and lost nodes do not count")
	flags.Float64Var(&p.plan.OOMFactor, "oom-memory-factor", 1.5, "memory of the next pod after a pod that ran out of memory, as a `factor`")
	flags.StringVar(&p.maxMemory, "max-memory", "", "`quantity` of memory that a pod gets at most after it ran out of memory, such as 8Gi (default: 4 times the configured memory)")
	flags.DurationVar(&p.lostAfter, "node-lost-after", 30*time.Second, "a pod is replaced if its node does not answer for longer")
	flags.Float32Var(&p.qps, "kube-qps", 50, "maximum requests to the Kubernetes API a second")
	flags.BoolVar(&p.annotate, "annotate-job", false, "write the progress to the annotation "+progress.Annotation+" of the Job of the master's pod, and apply the number of workers in "+progress.WorkersAnnotation)
	p.clean = cli.AddChoice(cmd, "clean-pods", "", "which pods to delete at the end of the job", string(podmanager.CleanRunning), string(podmanager.CleanAll), string(podmanager.CleanNone))
}

// onlyWithPods are the flags that need the pod manager.
var onlyWithPods = []string{"worker-command", "worker-image", "worker-resources", "worker-template", "ps-command", "ps-image", "ps-resources", "ps-template",
	"group-size", "initial-workers", "max-relaunch", "oom-memory-factor", "max-memory", "node-lost-after", "kube-qps", "clean-pods", "annotate-job"}

// check reads the flags. Without --workers and --need-pod-manager, the master creates no pods.
func (p *podFlags) check(cmd *cobra.Command, s *daemonSettings) (err error) {
	chosen := cmd.Flags().Changed("need-pod-manager")
	if !chosen {
		p.need = p.workers != "" && kubernetes.InPod()
	}
	switch {
	case !p.need && p.workers != "" && chosen:
		return cli.SettingErrorf(cmd, "workers", "expected none with --need-pod-manager=false")
	case !p.need && p.workers != "":
		return cli.SettingErrorf(cmd, "workers", "expected it in a pod with a service account, or with --need-pod-manager and KUBECONFIG: the workers are pods; on one machine, use master run")
	case !p.need:
		return refuse(cmd, onlyWithPods, "expected --workers, or --need-pod-manager: this master creates no pods")
	case p.workers == "" && s.ps == 0:
		return cli.SettingErrorf(cmd, "need-pod-manager", "expected --workers or --ps with the number of pods")
	}
	if err := kubernetes.CheckJob(s.etcd.Job); err != nil {
		return cli.SettingErrorf(cmd, "job", "%v", err)
	}
	if p.workers != "" {
		if p.plan.Workers.Min, p.plan.Workers.Count, err = parseLimits(p.workers, podmanager.MaxPods); err != nil {
			return cli.SettingErrorf(cmd, "workers", "%v", err)
		}
	}
	p.plan.Job, p.plan.Servers.Count = s.etcd.Job, s.ps
	if n := p.plan.Workers.Count; n > 0 && !cmd.Flags().Changed("trainers") {
		s.config.Trainers = n
	}
	if p.lostAfter < time.Second {
		return cli.SettingErrorf(cmd, "node-lost-after", "expected at least 1s")
	}
	if !(p.qps >= 1 && p.qps <= 10_000) {
		return cli.SettingErrorf(cmd, "kube-qps", "expected 1 to 10000")
	}
	if p.maxMemory != "" {
		list, err := kubernetes.ParseResources("memory=" + p.maxMemory)
		if err != nil {
			return cli.SettingErrorf(cmd, "max-memory", "expected a quantity such as 8Gi")
		}
		p.plan.MaxMemory = list.Memory().Value()
	}
	if p.cluster.Workers, err = p.worker.pods(cmd, "worker"); err != nil {
		return err
	}
	if p.cluster.Servers, err = p.server.pods(cmd, "ps"); err != nil {
		return err
	}
	p.plan.Workers.Memory, p.plan.Servers.Memory = p.cluster.Workers.Memory(), p.cluster.Servers.Memory()
	if err := p.checkGroups(cmd, s); err != nil {
		return err
	}
	if p.plan.Workers.Min != p.plan.Workers.Count && s.config.Deterministic {
		return cli.SettingErrorf(cmd, "workers", "expected N without MIN, because a job with --deterministic needs all its workers")
	}
	if err := p.plan.Validate(); err != nil {
		return cli.UsageErrorf("--%w", err)
	}
	if p.cluster.API, p.cluster.Namespace, err = kubernetes.Connect(); err != nil {
		return cli.SettingErrorf(cmd, "need-pod-manager", "%v", err)
	}
	p.cluster.Self = os.Getenv(kubernetes.NameVariable)
	if kubernetes.InPod() && p.cluster.Self == "" {
		if p.cluster.Self, err = os.Hostname(); err != nil {
			return fmt.Errorf("name of the pod of the master: set the variable %s: %w", kubernetes.NameVariable, err)
		}
	}
	if !kubernetes.InPod() {
		if p.annotate {
			return cli.SettingErrorf(cmd, "annotate-job", "expected it in a pod of a Job: this master runs outside the cluster")
		}
		p.cluster.Self = ""
		for _, r := range []struct {
			count int
			name  string
			pods  kubernetes.Pods
		}{{p.plan.Workers.Count, "worker", p.cluster.Workers}, {p.plan.Servers.Count, "ps", p.cluster.Servers}} {
			if r.count > 0 && !r.pods.HasImage() {
				return cli.SettingErrorf(cmd, r.name+"-image", "expected an image: this master runs outside the cluster")
			}
		}
	}
	return nil
}

// checkGroups refuses groups of programs that cannot train in them.
func (p *podFlags) checkGroups(cmd *cobra.Command, s *daemonSettings) error {
	switch size := p.plan.Workers.Size; {
	case size < 1:
		return cli.SettingErrorf(cmd, "group-size", "expected 1 or more")
	case size == 1:
		return nil
	case p.workers == "":
		return cli.SettingErrorf(cmd, "group-size", "expected --workers with the number of groups")
	case isTrainer(p.cluster.Workers.Command):
		return cli.SettingErrorf(cmd, "group-size", "expected --worker-command with a program that trains in groups: master trainer trains in one pod")
	case s.ring.members != "" || s.parts.distribution == allReduce:
		return cli.SettingErrorf(cmd, "group-size", "expected 1 with a ring (--ring, --distribution-strategy allreduce): its members are pods with ranks of their own")
	}
	return nil
}

// parseLimits reads N or MIN:MAX with numbers from 1 to most.
func parseLimits(text string, most int) (low, high int, err error) {
	first, last, elastic := strings.Cut(text, ":")
	if !elastic {
		last = first
	}
	if low, err = strconv.Atoi(first); err == nil {
		high, err = strconv.Atoi(last)
	}
	switch {
	case err != nil, low < 1, high > most:
		return low, high, fmt.Errorf("expected N or MIN:MAX with numbers from 1 to %d", most)
	case low > high:
		return low, high, fmt.Errorf("expected MIN:MAX with MIN at most MAX, found MIN %d and MAX %d", low, high)
	}
	return low, high, nil
}

// pods reads the flags of a role.
func (r *roleFlags) pods(cmd *cobra.Command, name string) (p kubernetes.Pods, err error) {
	p.Image = r.image
	if p.Command, err = splitWords(r.command); err != nil {
		return p, cli.SettingErrorf(cmd, name+"-command", "%v", err)
	}
	if p.Resources, err = kubernetes.ParseResources(r.resources); err != nil {
		return p, cli.SettingErrorf(cmd, name+"-resources", "%v", err)
	}
	if r.template != "" {
		if p.Template, err = kubernetes.ReadTemplate(r.template); err != nil {
			return p, cli.UsageErrorf("--%s-template: %w", name, err)
		}
	}
	return p, nil
}

// isTrainer reports whether a command is the trainer of this program.
func isTrainer(command []string) bool {
	return len(command) > 1 && command[0] == "master" && command[1] == "trainer"
}

// splitWords splits a command into words. Quotes and backslashes are as in a shell; variables are not replaced.
func splitWords(text string) (words []string, err error) {
	var word strings.Builder
	var quote rune
	inWord, escaped := false, false
	for _, r := range text {
		switch {
		case escaped:
			word.WriteRune(r)
			escaped = false
		case r == '\\' && quote != '\'':
			escaped, inWord = true, true
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, inWord = r, true
		case r == ' ' || r == '\t' || r == '\n':
			if inWord {
				words = append(words, word.String())
				word.Reset()
			}
			inWord = false
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	if quote != 0 || escaped {
		return nil, errors.New("expected an end of each quote")
	}
	if inWord {
		words = append(words, word.String())
	}
	if len(words) == 0 {
		return nil, errors.New("expected a command, found nothing")
	}
	return words, nil
}

// missingServers says where to look for the reason of missing parameter servers.
func (p *podFlags) missingServers() string {
	return fmt.Sprintf("pods of this master, which must reach etcd at %s: kubectl logs -l %s=%s,%s=%s",
		strings.Join(p.cluster.Endpoints, ","), kubernetes.JobLabel, p.plan.Job, kubernetes.RoleLabel, podmanager.Server)
}

// manager returns the component; nil: this master creates no pods. endpoints are of the etcd of the job.
func (p *podFlags) manager(config *master.Config, registry store.Servers, endpoints []string, log *logrus.Entry) (*pods.Manager, error) {
	if !p.need {
		return nil, nil
	}
	if slices.ContainsFunc(endpoints, isLoopback) {
		return nil, cli.UsageErrorf("--endpoints: expected an etcd that the pods of --workers and --ps reach, found %s: give the address of an etcd, or open the embedded etcd with --etcd-listen 0.0.0.0:2379", strings.Join(endpoints, ","))
	}
	p.cluster.Job, p.cluster.Endpoints, p.cluster.Log = p.plan.Job, endpoints, log
	p.cluster.NodeLostAfter, p.cluster.QPS = p.lostAfter, p.qps
	cluster, err := kubernetes.New(p.cluster)
	if err != nil {
		return nil, err
	}
	p.owner = cluster
	settings := pods.Config{Pods: p.plan, Clean: podmanager.CleanPolicy(*p.clean), Cluster: cluster, Store: config.Store, Registry: registry, Log: log}
	if config.Ring != nil {
		settings.Ended = config.Ring.Ended
	}
	return pods.New(settings), nil
}

// isLoopback reports whether an endpoint, host:port or a URL, is an address of this machine only.
func isLoopback(endpoint string) bool {
	host := endpoint
	if u, err := url.Parse(endpoint); err == nil && u.Host != "" {
		host = u.Host
	}
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
