package main

import (
	"context"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
	"trainmaster/dataset/convert"
)

func completionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "completion bash|zsh|fish|powershell",
		Short: "Print a shell completion script",
		Long: `Completion prints a script for your shell. Once the shell has read it, the tab key completes commands, flags,
the values of flags that take one of a few words, and the names of a job's trainers.`,
		Example: `  # this shell only
  source <(master completion bash)
  # every new shell
  master completion bash > /etc/bash_completion.d/master
  master completion zsh > "${fpath[1]}/_master"
  master completion fish > ~/.config/fish/completions/master.fish`,
		Args:                  cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs:             []string{"bash", "zsh", "fish", "powershell"},
		DisableFlagsInUseLine: true,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		root, out := cmd.Root(), cmd.OutOrStdout()
		switch args[0] {
		case "bash":
			return root.GenBashCompletionV2(out, true)
		case "zsh":
			return root.GenZshCompletion(out)
		case "fish":
			return root.GenFishCompletion(out, true)
		}
		return root.GenPowerShellCompletionWithDesc(out)
	}
	return cmd
}

// completionTimeout bounds the wait of a shell for the names of trainers.
const completionTimeout = 2 * time.Second

// trainerNames completes the names of the trainers that have a session. A job that does not answer has none.
func trainerNames(cmd *cobra.Command, open func(context.Context) (*admin.Leader, error)) []string {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	if err := cli.ApplySettings(cmd); err != nil { // the command itself reports it
		return nil
	}
	cmd.SetErr(io.Discard) // the line that is being completed is not written over
	l, err := open(ctx)
	if err != nil {
		return nil
	}
	defer l.Close()
	list, _ := admin.AskTrainers(ctx, l) // an incomplete list is useful as well
	var names []string
	for _, t := range list {
		if t.Joined {
			names = append(names, t.ID)
		}
	}
	return names
}

// completePrefixes completes the values of a flag with the prefixes of converted datasets, or with files where there are none.
func completePrefixes(cmd *cobra.Command, flag string) {
	err := cmd.RegisterFlagCompletionFunc(flag, func(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		found, err := filepath.Glob(begun + convert.DescriptionPath("*"))
		if err != nil || len(found) == 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		for i := range found {
			found[i] = strings.TrimSuffix(found[i], convert.DescriptionPath(""))
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // the flag was added a line ago
	}
}
