package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// choice is a flag whose value is one of a few words.
type choice struct {
	value   string
	allowed []string
}

func (c *choice) String() string { return c.value }

func (c *choice) Type() string { return strings.Join(c.allowed, "|") }

func (c *choice) Set(value string) error {
	if !slices.Contains(c.allowed, value) {
		return fmt.Errorf("expected one of %s", strings.Join(c.allowed, ", "))
	}
	c.value = value
	return nil
}

// AddChoice gives cmd a flag that takes one of the allowed words, the first being the default, and completes them.
func AddChoice(cmd *cobra.Command, name, shorthand, usage string, allowed ...string) *string {
	c := &choice{value: allowed[0], allowed: allowed}
	cmd.Flags().VarP(c, name, shorthand, usage)
	CompleteWords(cmd, name, allowed)
	return &c.value
}

// CompleteWords completes the values of a flag with words.
func CompleteWords(cmd *cobra.Command, flag string, words []string) {
	err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err) // the flag exists: it was added a line ago
	}
}

// AddOutput gives cmd the flag -o, validated; render takes its value.
func AddOutput(cmd *cobra.Command) *string {
	return AddChoice(cmd, "output", "o", "output format", "table", "json", "yaml")
}

// Render writes v in the given format. JSON and YAML have the same fields, named by v's json tags; table writes
// tab-separated cells, which are aligned.
func Render(w io.Writer, format string, v any, table func(w io.Writer)) error {
	switch format {
	case "json":
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(v)
	case "yaml":
		data, err := yaml.Marshal(v)
		if err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	case "table":
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		table(tw)
		return tw.Flush()
	}
	return UsageErrorf("output format %q: expected one of table, json, yaml", format)
}
