package main

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"trainmaster/cmd/internal/cli"
	"trainmaster/local"
)

// ofOwnTrainers are the flags of `master run` that have a meaning for the user's own trainers. The others set the built-in
// trainers.
var ofOwnTrainers = []string{
	"dir", "resume", "output", "help", "dataset", "data", "passes", "masters", "ps", "trainers", "max-relaunch", "seed",
	"update-mode", "backup-workers", "checkpoint-every", "on-trainer-loss", "drillable", "strategy",
}

// onlyAfterDash accepts arguments only after --.
func onlyAfterDash(cmd *cobra.Command, args []string) error {
	if len(args) > 0 && cmd.ArgsLenAtDash() != 0 {
		return cli.UsageErrorf("the command of your own trainers follows --, as in: master run --data data/digits -- %s", strings.Join(args, " "))
	}
	return nil
}

// ownCommand finds the program of a command, so that a resumed run finds it from another directory. An empty command stays empty.
func ownCommand(args []string) ([]string, error) {
	if len(args) == 0 {
		return nil, nil
	}
	program, err := exec.LookPath(args[0])
	if err != nil {
		return nil, cli.UsageErrorf("command %q: expected a program that can be executed: %w", args[0], err)
	}
	if program, err = filepath.Abs(program); err != nil {
		return nil, err
	}
	return append([]string{program}, args[1:]...), nil
}

// takeOwn checks the flags that are given with a command. Without --ps the job has no parameter servers.
func takeOwn(cmd *cobra.Command, c *local.Config) (err error) {
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if err == nil && f.Changed && !slices.Contains(ofOwnTrainers, f.Name) {
			err = cli.SettingErrorf(cmd, f.Name, "expected it without a command: it sets the built-in trainers")
		}
	})
	if err != nil {
		return err
	}
	if !c.Resume && !cmd.Flags().Changed("ps") {
		c.Servers = 0
	}
	return nil
}
