package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/recordio"
	"trainmaster/recordio/tool"
)

func recordioWriteCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "write FILE [INPUT...]",
		Short: "Write records from lines or files",
		Long: `Write makes a RecordIO file whose records are the lines of the inputs, without their line feeds;
without inputs, of the standard input. With --per-file each input is one record, whole. With --shards
the records are distributed to FILE-00000-of-00004 and so on, one after another. A file appears only
when it is complete. Existing files are kept unless --force is given.`,
		Example: `  seq 1000 | master recordio write numbers.rec
  master recordio write --compression snappy --records-per-chunk 100 words.rec /usr/share/dict/words
  # each picture is a record; about 4 tasks for each of 3 trainers
  master recordio write --per-file --shards 4 --records-per-chunk 20 data/pictures pictures/*.png`,
		Args: cobra.MinimumNArgs(1),
	}
	chunks := addChunkFlags(cmd, "no limit")
	chunks.layout = cli.AddChoice(cmd, "layout", "", "layout of the chunks' headers", recordio.First.String(), recordio.Second.String())
	perFile := cmd.Flags().Bool("per-file", false, "make one record of each input")
	shards := cmd.Flags().Int("shards", 0, "`number` of files FILE-00000-of-... (0 = one file FILE)")
	force := cmd.Flags().Bool("force", false, "replace the file if it exists")
	format := cli.AddOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		options, err := chunks.options()
		if err != nil {
			return err
		}
		path, inputs := args[0], args[1:]
		switch {
		case *shards < 0 || *shards > tool.MostShards:
			return cli.SettingErrorf(cmd, "shards", "expected 0 (one file) to %d", tool.MostShards)
		case *perFile && len(inputs) == 0:
			return cli.UsageErrorf("--per-file: expected the files to write after %s, found none", path)
		}
		if err := tool.CheckOpenFiles(*shards); err != nil {
			return cli.UsageErrorf("--shards %d: %w", *shards, err)
		}
		result, err := tool.WriteFiles(cmd.Context(), tool.Output{
			Path: path, Shards: *shards, Inputs: inputs, PerFile: *perFile, Stdin: cmd.InOrStdin(), Force: *force, Options: options,
		})
		if err != nil {
			return err
		}
		warnOfFewTasks(cmd.ErrOrStderr(), result.Chunks, smallerChunks(int(result.Records)))
		return cli.Render(cmd.OutOrStdout(), *format, result, func(out io.Writer) {
			fmt.Fprintf(out, "PATH\tRECORDS\tCHUNKS\tBYTES\n%s\t%d\t%d\t%d\n", recordio.DisplayName(path), result.Records, result.Chunks, result.Bytes)
		})
	}
	return cmd
}
