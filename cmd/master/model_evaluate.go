package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/dataset/convert"
	"trainmaster/local"
	"trainmaster/recordio"
)

// evaluated is the result of `master model evaluate`.
type evaluated struct {
	File     string   `json:"file"`
	Model    string   `json:"model"`
	Version  uint64   `json:"version"`
	Records  int      `json:"records"`
	Accuracy float64  `json:"accuracy"`
	Loss     float64  `json:"loss"`
	AUC      *float64 `json:"auc"`
}

func modelEvaluateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "evaluate FILE --data PREFIX|GLOB",
		Short: "Measure a saved model on records",
		Long: `Evaluate computes the accuracy and the mean loss of a model on the records of files, and for a model of
two classes that gives scores the area under the ROC curve. FILE is a model that 'master trainer --save-model'
or 'master run' saved. No process of a job has to run. The records must have the features of the model. If
their labels or scaling are known to differ from the labels or scaling of the training data, evaluate fails.

With --data PREFIX of a dataset that 'master recordio convert' wrote, evaluate reads the held-out shards
PREFIX-test-00000-of-00001 and so on, or all shards if none are held out. The same holds for a glob that
matches both kinds of shards.`,
		Example: `  master model evaluate trainmaster-run/001/digits-softmax.safetensors --data data/digits`,
		Args:    cobra.ExactArgs(1),
	}
	data := cmd.Flags().StringSlice("data", nil, "`prefix` of a converted dataset, or paths and globs of RecordIO or TFRecord files to measure on")
	completePrefixes(cmd, "data")
	format := cli.AddOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(*data) == 0 {
			return cli.UsageErrorf("--data: expected the RecordIO files to measure on, found nothing")
		}
		var files []string
		for _, name := range *data { // one may have held-out shards, and another none
			all, heldOut, err := convert.Resolve(cmd.Context(), name)
			if err != nil {
				return err
			}
			if len(heldOut) > 0 {
				all = heldOut
			}
			files = append(files, all...)
		}
		saved, found, err := local.EvaluateSaved(cmd.Context(), args[0], files)
		if err != nil {
			return err
		}
		e := evaluated{args[0], saved.Kind, saved.Version, found.Records, found.Accuracy(), found.Loss(), found.AUC}
		return cli.Render(cmd.OutOrStdout(), *format, e, func(w io.Writer) {
			fmt.Fprintf(w, "model\t%s\ndata\t%s\naccuracy\t%.4f (%s)\n", e.Model, firstOf(files), e.Accuracy, cli.Counted(e.Records, "record"))
			if e.AUC != nil {
				fmt.Fprintf(w, "area under the ROC curve\t%.4f\n", *e.AUC)
			}
			fmt.Fprintf(w, "loss\t%.4f\n", e.Loss)
		})
	}
	return cmd
}

// firstOf names files in a few words.
func firstOf(files []string) string {
	text := recordio.DisplayName(files[0])
	if here, err := os.Getwd(); err == nil {
		if relative, err := filepath.Rel(here, files[0]); err == nil && filepath.IsLocal(relative) {
			text = recordio.DisplayName(relative)
		}
	}
	if len(files) > 1 {
		text += fmt.Sprintf(" and %d more", len(files)-1)
	}
	return text
}
