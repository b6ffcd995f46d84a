package main

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
func (c *choice) Type() string   { return strings.Join(c.allowed, "|") }

func (c *choice) Set(value string) error {
	if !slices.Contains(c.allowed, value) {
		return fmt.Errorf("expected one of %s", strings.Join(c.allowed, ", "))
	}
	c.value = value
	return nil
}

// addChoice gives cmd a flag that takes one of the allowed words, the first being the default, and completes them.
func addChoice(cmd *cobra.Command, name, shorthand, usage string, allowed ...string) *string {
	c := &choice{value: allowed[0], allowed: allowed}
	cmd.Flags().VarP(c, name, shorthand, usage)
	completeWords(cmd, name, allowed)
	return &c.value
}

func completeWords(cmd *cobra.Command, flag string, words []string) {
	err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err) // the flag exists: it was added a line ago
	}
}

// addOutput gives cmd the flag -o, validated; render takes its value.
func addOutput(cmd *cobra.Command) *string {
	return addChoice(cmd, "output", "o", "output format", "table", "json", "yaml")
}

// render writes v in the given format. JSON and YAML have the same fields, named by v's json tags; table writes
// tab-separated cells, which are aligned.
func render(w io.Writer, format string, v any, table func(w io.Writer)) error {
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
	return usageErrorf("output format %q: expected one of table, json, yaml", format)
}

// counted is a number with its noun: 1 task, 2 tasks, 3 classes.
func counted(n int, noun string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case strings.HasSuffix(noun, "s"):
		return fmt.Sprintf("%d %ses", n, noun)
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
