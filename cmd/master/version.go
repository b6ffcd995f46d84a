package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
)

// version is set by the Makefile: -ldflags "-X main.version=...".
var version = "dev"

// buildVersion says which build this is.
type buildVersion struct {
	Version string `json:"version"`
	Commit  string `json:"commit"` // "unknown" in a build outside a git checkout; "+dirty" after it when files had changed
	Go      string `json:"go"`
}

func readVersion() buildVersion {
	v := buildVersion{Version: version, Commit: "unknown", Go: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	dirty := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			v.Commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+dirty"
		}
	}
	v.Commit += dirty
	return v
}

func versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print version, commit and Go release",
		Long:  "Version prints the version of this binary, the commit it was built from and the Go release that built it.",
		Example: `  master version
  master version -o json`,
		Args: cobra.NoArgs,
	}
	format := cli.AddOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		v := readVersion()
		return cli.Render(cmd.OutOrStdout(), *format, v, func(w io.Writer) {
			fmt.Fprintf(w, "VERSION\tCOMMIT\tGO\n%s\t%s\t%s\n", v.Version, v.Commit, v.Go)
		})
	}
	return cmd
}
