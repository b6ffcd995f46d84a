package main

import (
	"regexp"
	"testing"

	"github.com/spf13/pflag"

	"trainmaster/cmd/internal/cli"
)

// Each flag that the text of a command names is a flag of a command.
func TestHelpNamesExistingFlags(t *testing.T) {
	known := map[string]bool{}
	for cmd := range cli.Commands(rootCommand()) {
		for _, flags := range []*pflag.FlagSet{cmd.Flags(), cmd.PersistentFlags()} {
			flags.VisitAll(func(f *pflag.Flag) { known[f.Name] = true })
		}
	}
	name := regexp.MustCompile(`(?:^|[\s"'(\x60])--([a-z][a-z0-9-]+)`)
	for cmd := range cli.Commands(rootCommand()) {
		for _, m := range name.FindAllStringSubmatch(cmd.Long+"\n"+cmd.Example, -1) {
			if !known[m[1]] {
				t.Errorf("%s --help names --%s: expected a flag of a command", cmd.CommandPath(), m[1])
			}
		}
	}
}
