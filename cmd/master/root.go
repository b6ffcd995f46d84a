package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
)

// The groups under which `master --help` lists the commands.
var (
	groupJob   = &cobra.Group{ID: "job", Title: "Run a job:"}
	groupLook  = &cobra.Group{ID: "look", Title: "Show a job:"}
	groupSteer = &cobra.Group{ID: "steer", Title: "Control a job:"}
	groupData  = &cobra.Group{ID: "data", Title: "Prepare data:"}
	groupTools = &cobra.Group{ID: "tools", Title: "Measure and help:"}
)

// rootCommand is the whole tree of commands.
func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "master",
		Short: "Run a distributed training job",
		Long: `Master runs a distributed training job: it splits a dataset into tasks, dispatches them to trainers, and manages the
parameter servers. The state of the job is in etcd and survives the crash of any process.

Without a command it is the job's master, a daemon: it keeps the queue of tasks in etcd and serves trainers until all passes
are done. If several masters use the same etcd, one leads and the others are standbys. Without --endpoints it starts an
embedded etcd under --data-dir.

Every flag can also be set by an environment variable (--lease-ttl is TRAINMASTER_LEASE_TTL) and by a key in the file
that --config names (lease-ttl: 5s). The flag wins over the environment, the environment over the file.`,
		Example: `  # a whole job on this machine: etcd, master, parameter servers and trainers
  master run
  # the master of a job whose state is in this etcd
  master --endpoints 127.0.0.1:2379 --listen 127.0.0.1:8080 --passes 10 --ps 1
  # its parameter server, and one of its trainers
  master pserver --endpoints 127.0.0.1:2379 --checkpoint-dir checkpoints
  master trainer --endpoints 127.0.0.1:2379 --data 'data/digits-0*' --model mlp \
    --save-model digits.safetensors
  # a master with an etcd of its own, for trainers that keep their parameters themselves;
  # with --ps 1 for those above
  master --data-dir /var/lib/trainmaster --passes 10`,
		Version:           readVersion().Version,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.PersistentFlags().String("config", "", "YAML `file` of settings: its keys are flag names")
	cli.AddLogging(root)
	cli.AddExitCodes(root)
	addDaemon(root)
	root.SetFlagErrorFunc(cli.FlagError)
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if strings.HasPrefix(cmd.Name(), cobra.ShellCompRequestCmd) {
			return nil // completion must work whatever the settings are
		}
		if err := cli.ApplySettings(cmd); err != nil {
			return err
		}
		if err := cli.CheckPaths(cmd); err != nil {
			return err
		}
		for _, text := range cli.UnknownVariables(root, os.Environ()) {
			cli.NewLogger(cmd).Warn(text)
		}
		return nil
	}

	addCommands(root, groupJob, runCommand(), trainerCommand(), pserverCommand(), workerCommand(), agentCommand(), dataproxyCommand(), operatorCommand())
	addCommands(root, groupLook, statusCommand(), queuesCommand(), trainersCommand(), podsCommand(), ringCommand(), tasksCommand(), evaluationsCommand(), verifyCommand())
	addCommands(root, groupSteer, evaluateCommand(), pauseCommand(), resumeCommand(), drainCommand(), scaleCommand(), jobCommand(), datasetCommand(), checkpointCommand(), snapshotCommand())
	addCommands(root, groupData, recordioCommand(), modelCommand())
	addCommands(root, groupTools, benchCommand(), drillCommand(), installCommand(), versionCommand(), completionCommand())

	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages ", fmt.Sprintf(".FlagUsagesWrapped %d ", cli.HelpWidth)))
	root.SetHelpCommandGroupID(groupTools.ID)
	root.InitDefaultHelpCmd()
	cli.FinishTree(root)
	return root
}

func addCommands(root *cobra.Command, group *cobra.Group, cmds ...*cobra.Command) {
	if !root.ContainsGroup(group.ID) {
		root.AddGroup(group)
	}
	for _, cmd := range cmds {
		cmd.GroupID = group.ID
	}
	root.AddCommand(cmds...)
}
