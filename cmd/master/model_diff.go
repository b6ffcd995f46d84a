package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/cmd/internal/view"
	"trainmaster/pserver/checkpoint/modelfile"
)

func modelDiffCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diff A B",
		Short: "Compare two models",
		Long: `Diff compares parameters element by element, bit by bit except the sign of 0. A and B are folders or URLs of checkpoints, files of
sets, or safetensors files of float32. It prints the largest absolute difference and the relative L2 difference of each tensor that
differs, and exits with 1 when there is one. Tables of embeddings are compared row by row, by id.`,
		Example: `  # does the exported model have what the newest set has
  master model diff checkpoints model.safetensors`,
		Args: cobra.ExactArgs(2),
	}
	format := cli.AddOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var models [2]modelfile.Weights
		for i, arg := range args {
			var err error
			var done func()
			if models[i], done, err = modelfile.OpenWeights(cmd.Context(), arg); err != nil {
				return err
			}
			defer done()
		}
		diffs, err := modelfile.Diff(models[0], models[1])
		if err != nil {
			return err
		}
		if err := cli.Render(cmd.OutOrStdout(), *format, diffs, func(w io.Writer) { view.DiffTable(w, diffs) }); err != nil {
			return err
		}
		if len(diffs) > 0 {
			return fmt.Errorf("%s and %s differ in %s", args[0], args[1], cli.Counted(len(diffs), "tensor")+" or tables")
		}
		return nil
	}
	return cmd
}
