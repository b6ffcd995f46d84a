package cli

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// FinishTree applies the common rules to all commands: errors carry exit codes, a command that declares no Args takes
// no arguments, and a command that only groups others rejects an unknown name.
func FinishTree(root *cobra.Command) {
	for cmd := range Commands(root) {
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
		cmd.Long = reflowed(cmd.Long, HelpWidth)
		showUse(cmd)
		markFailures(cmd)
	}
}

// helpTopic returns an error if the arguments of help name no command.
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
	return UsageErrorf("no help about %q: %s has no command %q%s", strings.Join(args, " "), found.CommandPath(), rest[0], didYouMean(rest[0], names))
}

// showUse replaces the error of wrong arguments by the expected arguments. The reason follows if it has an exit code; the reasons of cobra add nothing.
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
		if hasCode(err) {
			return UsageErrorf("expected %s, found %s: %w", cmd.UseLine(), Quoted(args), err)
		}
		return UsageErrorf("expected %s, found %s", cmd.UseLine(), Quoted(args))
	}
}

// Quoted formats arguments for a message; "nothing" if there are none.
func Quoted(args []string) string {
	if len(args) == 0 {
		return "nothing"
	}
	return strings.Trim(fmt.Sprintf("%q", args), "[]")
}

// runGroup runs a command without a function of its own, such as `master recordio`: it shows the help, or refuses an unknown command.
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
	return UsageErrorf("unknown command %q, expected one of %s%s", args[0], strings.Join(names, ", "), didYouMean(args[0], names))
}

// Commands walks the tree from the top.
func Commands(root *cobra.Command) iter.Seq[*cobra.Command] {
	return func(yield func(*cobra.Command) bool) {
		for todo := []*cobra.Command{root}; len(todo) > 0; todo = todo[1:] {
			if !yield(todo[0]) {
				return
			}
			todo = append(todo, slices.Clone(todo[0].Commands())...)
		}
	}
}
