package main

import (
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// The groups under which `master --help` lists the commands.
var (
	groupJob   = &cobra.Group{ID: "job", Title: "Run a job:"}
	groupLook  = &cobra.Group{ID: "look", Title: "Look at a job:"}
	groupSteer = &cobra.Group{ID: "steer", Title: "Steer a job:"}
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
	addLogging(root)
	addDaemon(root)
	root.SetFlagErrorFunc(flagError)
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if strings.HasPrefix(cmd.Name(), cobra.ShellCompRequestCmd) {
			return nil // completion must work whatever the settings are
		}
		if err := applySettings(cmd); err != nil {
			return err
		}
		if err := checkPaths(cmd); err != nil {
			return err
		}
		for _, text := range unknownVariables(root, os.Environ()) {
			newLogger(cmd).Warn(text)
		}
		return nil
	}

	addCommands(root, groupJob, runCommand(), trainerCommand(), pserverCommand())
	addCommands(root, groupLook, statusCommand(), queuesCommand(), trainersCommand(), tasksCommand(), verifyCommand())
	addCommands(root, groupSteer, pauseCommand(), resumeCommand(), drainCommand(), scaleCommand(), checkpointCommand(), snapshotCommand())
	addCommands(root, groupData, recordioCommand(), modelCommand())
	addCommands(root, groupTools, benchCommand(), drillCommand(), versionCommand(), completionCommand())

	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages ", fmt.Sprintf(".FlagUsagesWrapped %d ", helpWidth)))
	root.SetHelpCommandGroupID(groupTools.ID)
	root.InitDefaultHelpCmd()
	finishTree(root)
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

// finishTree applies the common rules to all commands: errors carry exit codes, a command that declares no Args takes
// no arguments, and a command that only groups others rejects an unknown name.
func finishTree(root *cobra.Command) {
	for cmd := range commands(root) {
		if cmd.Name() == "help" {
			cmd.Example = "  master help recordio convert"
			cmd.Args = helpTopic
			continue
		}
		switch {
		case cmd == root: // cobra itself refuses an unknown command, with a suggestion
		case cmd.HasSubCommands() && !cmd.Runnable():
			cmd.Args = cobra.ArbitraryArgs
			cmd.RunE = runGroup
		case cmd.Args == nil:
			cmd.Args = cobra.NoArgs
		}
		cmd.Long = reflowed(cmd.Long, helpWidth)
		showUse(cmd)
		markFailures(cmd)
	}
}

// helpTopic refuses to help with a command that there is not.
func helpTopic(cmd *cobra.Command, args []string) error {
	found, rest, err := cmd.Root().Find(args)
	if err == nil && len(rest) == 0 {
		return nil
	}
	var names []string
	for _, sub := range found.Commands() {
		names = append(names, sub.Name())
	}
	if len(rest) == 0 {
		rest = args
	}
	return usageErrorf("no help about %q: %s has no command %q%s", strings.Join(args, " "), found.CommandPath(), rest[0], didYouMean(rest[0], names))
}

// showUse says of wrong arguments what they should be; a reason of our own stays behind it, cobra's says nothing more.
func showUse(cmd *cobra.Command) {
	inner := cmd.Args
	if inner == nil {
		return
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		err := inner(cmd, args)
		if err == nil {
			return nil
		}
		if _, ours := errors.AsType[*exitError](err); ours {
			return usageErrorf("expected %s, found %s: %w", cmd.UseLine(), quoted(args), err)
		}
		return usageErrorf("expected %s, found %s", cmd.UseLine(), quoted(args))
	}
}

func quoted(args []string) string {
	if len(args) == 0 {
		return "nothing"
	}
	return strings.Trim(fmt.Sprintf("%q", args), "[]")
}

// runGroup is what a command such as `master recordio` does when no command below it is named.
func runGroup(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	var names []string
	for _, sub := range cmd.Commands() {
		if !sub.Hidden {
			names = append(names, sub.Name())
		}
	}
	return usageErrorf("unknown command %q, expected one of %s%s", args[0], strings.Join(names, ", "), didYouMean(args[0], names))
}

// commands walks the tree from the top.
func commands(root *cobra.Command) iter.Seq[*cobra.Command] {
	return func(yield func(*cobra.Command) bool) {
		for todo := []*cobra.Command{root}; len(todo) > 0; todo = todo[1:] {
			if !yield(todo[0]) {
				return
			}
			todo = append(todo, slices.Clone(todo[0].Commands())...)
		}
	}
}
