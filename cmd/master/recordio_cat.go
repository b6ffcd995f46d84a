package main

import (
	"bufio"
	"errors"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/recordio/tool"
)

func recordioCatCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cat FILE...",
		Short: "Print the records of files",
		Long: `Cat prints the records of files in order. As a table each record is its bytes and a line feed, which write reads back;
JSON and YAML also have the position of each record. Records that are not UTF-8 are base64. Files can be RecordIO or TFRecord.`,
		Example: `  master recordio cat words.rec
  master recordio cat -o json --limit 3 data/digits-00000-of-00004`,
		Args: cobra.MinimumNArgs(1),
	}
	format := cli.AddOutput(cmd)
	limit := cmd.Flags().Int64("limit", 0, "stop after that many `records` (default all)")
	cmd.RunE = func(cmd *cobra.Command, paths []string) error {
		if *limit < 0 {
			return cli.UsageErrorf("--limit is %d, expected 1 or more", *limit)
		}
		out := bufio.NewWriterSize(cmd.OutOrStdout(), 64<<10)
		printer := tool.NewPrinter(out, *format)
		err := tool.Cat(cmd.Context(), paths, *limit, printer.Record)
		return errors.Join(err, printer.End(), out.Flush())
	}
	return cmd
}
