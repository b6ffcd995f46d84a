package main

import (
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"trainmaster/cmd/internal/cli"
	"trainmaster/master"
)

// combination has the flags that select the parts of a master. The pod manager has its flag in podFlags.
type combination struct {
	tasks        bool // the task manager: datasets, task queues and their trainers
	service      bool // the training service: the gRPC service Coordinator, evaluation and strategies
	distribution distribution
}

// distribution is how the trainers of a job share a model.
type distribution string

// The strategies of distribution.
const (
	parameterServers distribution = "parameter-server"
	allReduce        distribution = "allreduce"
	eachAlone        distribution = "local"
)

// otherNames are names of strategies in other programs, in lower case and without separators.
var otherNames = map[string]distribution{
	"parameterserver": parameterServers, "parameterserverstrategy": parameterServers,
	"allreduce": allReduce, "allreducestrategy": allReduce,
	"local": eachAlone,
}

// Set implements [pflag.Value].
func (d *distribution) Set(text string) error {
	found, ok := otherNames[strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(text))]
	if !ok {
		return cli.UsageErrorf("expected %s, %s or %s", parameterServers, allReduce, eachAlone)
	}
	*d = found
	return nil
}

// String implements [pflag.Value].
func (d *distribution) String() string { return string(*d) }

// Type implements [pflag.Value].
func (d *distribution) Type() string { return "strategy" }

func (c *combination) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&c.tasks, "need-task-manager", true, "cut datasets into tasks and dispatch them; without it, the job is complete when all workers have completed")
	flags.BoolVar(&c.service, "need-training-service", true, "serve the gRPC service Coordinator, with evaluation and strategies (default: with --need-task-manager); without it, trainers use --protocol netrpc")
	c.distribution = parameterServers
	flags.Var(&c.distribution, "distribution-strategy", "how trainers share a model: parameter-server, allreduce (a ring of the workers), or local (each trains its own)")
	cli.CompleteWords(cmd, "distribution-strategy", []string{string(parameterServers), string(allReduce), string(eachAlone)})
}

// ofTasks are flags that need the task manager. Some flags of the training service are refused before.
var ofTasks = []string{"dataset", "dataset-watch", "prediction-data", "passes", "pass-mode", "shuffle", "seed", "chunks-per-task", "trainers", "data-roots", "data-proxy", "explicit-commit", "speculate",
	"task-timeout-min", "task-timeout-max", "task-max-failures", "max-set-aside", "task-fault-tolerance", "session-ttl", "max-sessions", "allow-trainer-address",
	"update-mode", "backup-workers", "deterministic", "checkpoint-every", "checkpoint-keep", "on-trainer-loss", "resume",
	"evaluation-data", "evaluate-every", "best-metric", "keep-best", "target", "patience", "metrics-out", "diverged-factor", "strategy"}

// refuse returns an error for the first of the flags that the user has set.
func refuse(cmd *cobra.Command, names []string, expected string) error {
	for _, name := range names {
		if cmd.Flags().Changed(name) {
			return cli.SettingErrorf(cmd, name, "%s", expected)
		}
	}
	return nil
}

// check refuses combinations of parts that do nothing or exclude each other.
func (c *combination) check(cmd *cobra.Command, s *daemonSettings) error {
	changed := cmd.Flags().Changed
	if !changed("need-training-service") {
		c.service = c.tasks
	}
	switch {
	case s.ps > 0 && c.distribution != parameterServers:
		return cli.SettingErrorf(cmd, "ps", "expected none with --distribution-strategy %s, whose trainers have the parameters", c.distribution)
	case c.distribution == allReduce && s.config.Queue.ExplicitCommit:
		return cli.SettingErrorf(cmd, "explicit-commit", "expected none with --distribution-strategy allreduce, whose trainers report a task when all of them have its last step")
	case c.service && !c.tasks:
		return cli.SettingErrorf(cmd, "need-training-service", "expected --need-task-manager with it: it serves tasks")
	case !c.service && len(s.evaluation.data) > 0:
		return cli.SettingErrorf(cmd, "evaluation-data", "expected --need-training-service with it")
	case !c.service && s.strategy != "":
		return cli.SettingErrorf(cmd, "strategy", "expected --need-training-service with it")
	case c.tasks:
		return nil
	case !s.pods.need:
		return cli.SettingErrorf(cmd, "need-task-manager", "expected a job with tasks or with pods (--workers), found neither")
	case s.pods.plan.Workers.Count == 0:
		return cli.SettingErrorf(cmd, "workers", "expected the number of workers: a job without tasks is complete when they have completed")
	}
	//guard:flags-of-tasks-are-refused
	return refuse(cmd, ofTasks, "expected --need-task-manager with it")
}

// apply sets what the parts of the master and the workers need.
func (c *combination) apply(config *master.Config, pods *podFlags) {
	config.NoTasks, config.NoTrainingService = !c.tasks, !c.service
	pods.plan.NoTasks = !c.tasks
	if c.distribution != parameterServers {
		pods.cluster.Workers.Env = append(pods.cluster.Workers.Env, corev1.EnvVar{Name: cli.EnvName("distribution-strategy"), Value: string(c.distribution)})
	}
	if c.tasks && !c.service {
		pods.cluster.Workers.Env = append(pods.cluster.Workers.Env, corev1.EnvVar{Name: cli.EnvName("protocol"), Value: "netrpc"})
	}
}
