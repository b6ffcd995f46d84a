package main

import (
	"maps"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"trainmaster/cmd/internal/cli"
	"trainmaster/local"
)

// ofThisCall are the flags of `master run` that are no settings of the run.
var ofThisCall = []string{"dir", "resume", "output", "help"}

// runSettings are the settings of a run, by flag.
func runSettings(cmd *cobra.Command) map[string]string {
	settings := map[string]string{}
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if !slices.Contains(ofThisCall, f.Name) {
			settings[f.Name] = f.Value.String()
		}
	})
	return settings
}

// continueRun takes the settings of the run to resume. args is the command on the command line, which must equal the command of the run.
func (r *runFlags) continueRun(cmd *cobra.Command, args []string) error {
	c := &r.config
	c.Resume = true
	dir, began, err := takeSettings(cmd, r.resume)
	if err != nil {
		return err
	}
	c.Dir = dir
	switch {
	case len(args) > 0 && len(began) == 0:
		return cli.UsageErrorf("command %s: expected no command, since the run in %s has built-in trainers: omit the command, or begin another run with --data", cli.Quoted(args), dir)
	case len(args) > 0 && !slices.Equal(c.Command, began):
		return cli.UsageErrorf("command %s: the run in %s began with %s: omit the command, or begin another run", cli.Quoted(args), dir, cli.Quoted(began))
	}
	c.Command, err = ownCommand(began)
	return err
}

// takeSettings sets the flags of cmd from the run in a directory. A flag on the command line that differs is an error.
// It returns the directory and the command of own trainers.
func takeSettings(cmd *cobra.Command, dir string) (_ string, command []string, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return "", nil, cli.UsageErrorf("--resume: %w", err)
	}
	if cmd.Flags().Changed("dir") {
		return "", nil, cli.UsageErrorf("--dir: expected no --dir with --resume, which names the directory")
	}
	began, command, err := local.Settings(dir)
	if err != nil {
		return "", nil, cli.UsageErrorf("--resume %q: %w", dir, err)
	}
	for _, name := range slices.Sorted(maps.Keys(began)) {
		flag := cmd.Flags().Lookup(name)
		if flag == nil {
			return "", nil, cli.UsageErrorf("--resume %q: the run has a setting %q, which this version does not know", dir, name)
		}
		if flag.Changed && flag.Value.String() != began[name] {
			return "", nil, cli.UsageErrorf("--%s cannot change on resume: expected %s, which the run in %s has, found %s: omit it, or begin another run", name, settingText(flag, began[name]), dir, settingText(flag, flag.Value.String()))
		}
		if flag.Value.String() == began[name] {
			continue // a choice takes no empty value, which is its default
		}
		if err := flag.Value.Set(began[name]); err != nil {
			return "", nil, cli.UsageErrorf("--resume %q: setting %q: %w", dir, name, err)
		}
	}
	return dir, command, nil
}

// settingText formats the value of a setting for a message. If 0 or "" is the default, the data chooses the value.
func settingText(f *pflag.Flag, value string) string {
	if value == f.DefValue && (value == "0" || value == "") {
		return "the default"
	}
	return strconv.Quote(value)
}
