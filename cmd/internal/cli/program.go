package cli

import (
	"cmp"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The names of the program: in the Python package, it has its own.
const (
	program  = "master"
	packaged = "trainmaster"
)

// Rename lets help and errors name the program as the user has called it, if this is the name in the Python package.
func Rename(root *cobra.Command, called string) {
	if filepath.Base(called) != packaged {
		return
	}
	root.Use = packaged
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		named := renamer(root)
		cmd.Long, cmd.Example = reflowed(named(cmd.Long), HelpWidth), named(cmd.Example)
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { f.Usage = named(f.Usage) })
		help(cmd, args)
	})
}

// Renamed returns a text in which the commands of the program have the name of root.
func Renamed(root *cobra.Command, text string) string {
	if root.Name() == program {
		return text
	}
	return renamer(root)(text)
}

func renamer(root *cobra.Command) func(text string) string {
	var names []string
	for _, cmd := range root.Commands() {
		names = append(names, regexp.QuoteMeta(cmd.Name()))
	}
	command := regexp.MustCompile(`(?m)\b` + program + `( (?:` + strings.Join(names, "|") + `)\b)|^(\s*)` + program + `( -|$)|(: )` + program + `( -)`)
	return func(text string) string {
		return command.ReplaceAllStringFunc(text, func(found string) string {
			m := command.FindStringSubmatch(found)
			return m[2] + m[4] + root.Name() + cmp.Or(m[1], m[3], m[5])
		})
	}
}
