package main

import "github.com/spf13/cobra"

func completionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "completion bash|zsh|fish|powershell",
		Short: "Print a script that completes commands and flags in your shell",
		Long: `Completion prints a script for your shell. Once the shell has read it, the tab key completes commands, flags and the
values of flags that take one of a few words.`,
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
