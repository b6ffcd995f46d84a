package main

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"trainmaster/cmd/internal/cli"
	"trainmaster/dataset/convert"
	"trainmaster/dataset/sample"
	"trainmaster/local"
	"trainmaster/master"
	"trainmaster/recordio"
	"trainmaster/recordio/tool"
)

func recordioConvertCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:                   "convert {--format NAME TABLE | --format idx IMAGES LABELS | --sample NAME} PREFIX",
		DisableFlagsInUseLine: true, // the usage line is long without it
		Short:                 "Convert CSV, JSON lines and idx files to shards",
		Long: `Convert turns a CSV table, or images and labels in MNIST's idx format, into RecordIO shards
PREFIX-00000-of-00004 and so on, and describes the dataset in PREFIX.dataset.json. Inputs may be
gzipped. Each row of a table is a sample. The label is in the last column, or in that of --label. The
other columns are numbers: pixels if all are whole and from 0 to 255, else numbers that are scaled
as --scaling says. With --format categorical they are the texts of categories, of which the shards
keep an id. A heading in line 1 is recognized and skipped; --header decides where that is not clear.

A table can also have JSON lines. Each line is an object with the keys of the first line, such as
{"width": 1.5, "height": 2, "label": 0}. The keys are the heading, and true and false mean 1 and 0. CSV and JSON lines are
recognized by the content; --format jsonl refuses CSV.

With --like PREFIX the new dataset has the labels and the scaling of the earlier dataset in PREFIX, as its
description PREFIX.dataset.json has them: a model of one can then be evaluated on the other. The table must have
the same features in the same order. A label that the other dataset lacks is an error.

The samples are permuted by --seed. With --held-out the first part of them goes to PREFIX-test-00000-of-00001 and so on,
which training must not open: name the other shards by PREFIX-0*, not by PREFIX-*. Existing shards are kept unless
--force is given.

With --sample the table is in the program, with the shards, the scaling and the held-out records of
'master run'. Files that have this content already are kept, so the command can be repeated, also by several processes.

With --shard-format tfrecord the shards are TFRecord files with the same records. Jobs train on them, and other programs can read
them. A shard has a chunk for each MiB.`,
		Example: `  master recordio convert --format csv --shards 4 --held-out 0.2 testdata/digits.csv.gz data/digits
  # the digits that are in the program, as 'master run' trains on them
  master recordio convert --sample digits data/sample
  # a table with a heading; the column "species" has the label, as a text
  master recordio convert --label species --text-labels --held-out 0.2 iris.csv data/iris
  # the same with lines such as {"width": 1.5, "height": 2, "species": "setosa"}
  master recordio convert --format jsonl --label species --text-labels iris.jsonl data/flowers
  # flowers that were found later, to evaluate a model on
  master recordio convert --like data/iris later.csv data/later
  master recordio convert --format idx --shards 8 --compression snappy \
    train-images-idx3-ubyte train-labels-idx1-ubyte data/mnist
  # flights by origin, destination, hour and weekday; was it more than 15 minutes late?
  master recordio convert --format categorical --label-above 15 --held-out 0.2 \
    testdata/flights.csv.gz data/flights
  # TFRecord files data/digits.tfrecord-00000-of-00004 and so on
  master recordio convert --shard-format tfrecord --shards 4 \
    testdata/digits.csv.gz data/digits.tfrecord`,
	}
	input := cli.AddChoice(cmd, "format", "", "form of the input", "csv", "jsonl", "idx", "categorical")
	chunks := addChunkFlags(cmd, fmt.Sprintf("chosen for %d to %d chunks", convert.LeastChunks, convert.MostChunks))
	var o convert.Options
	cmd.Flags().IntVar(&o.Shards, "shards", 1, "number of `shards` to train on")
	cmd.Flags().Float64Var(&o.HeldOut, "held-out", 0, "`part` of the samples, 0 to below 1, for test shards")
	cmd.Flags().Uint64Var(&o.Seed, "seed", 0, "`number` that determines the order and the held-out records")
	cmd.Flags().Uint8Var(&o.MaxPixel, "max-pixel", 0, "`value` in a CSV table that becomes 1 (default the largest in the table)")
	above := cmd.Flags().Float64("label-above", 0, "make two classes of the labels of a table: 1 above this `number`, and 0")
	header := cli.AddChoice(cmd, "header", "", "whether line 1 of a table is a heading", convert.HeadingAuto, convert.HeadingYes, convert.HeadingNo)
	cmd.Flags().StringVar(&o.Label, "label", "", "`column` of a table with the label: its number, from 1, or its name in the heading (default the last)")
	cmd.Flags().BoolVar(&o.TextLabels, "text-labels", false, "number the labels of a table in the order of their texts")
	scaling := cli.AddChoice(cmd, "scaling", "", "of numbers that are not pixels: mean 0 and deviation 1 (standard), or as they are", convert.ScalingStandard, convert.ScalingNone)
	cmd.Flags().StringVar(&o.Like, "like", "", "`prefix` of a converted dataset with the labels and the scaling to take")
	completePrefixes(cmd, "like")
	shards := cli.AddChoice(cmd, "shard-format", "", "format of the shards", convert.ShardRecordIO, convert.ShardTFRecord)
	inside := cmd.Flags().String("sample", "", "convert a table that is in the program instead of a file: `digits` or flights")
	cli.CompleteWords(cmd, "sample", local.Samples)
	force := cmd.Flags().Bool("force", false, "replace shards that exist")
	format := cli.AddOutput(cmd)
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if *inside != "" {
			if len(args) != 1 {
				return cli.UsageErrorf("expected the prefix of the shards with --sample %s, found %d arguments", *inside, len(args))
			}
			return nil
		}
		if want := map[string]int{"csv": 2, "jsonl": 2, "idx": 3, "categorical": 2}[*input]; len(args) != want {
			return cli.UsageErrorf("expected %d arguments with --format %s, found %d", want, *input, len(args))
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *inside != "" {
			return convertSample(cmd, *inside, args[0], *force, *format)
		}
		w, err := chunks.options()
		if err != nil {
			return err
		}
		o.Prefix, o.Heading = args[len(args)-1], *header
		if cmd.Flags().Changed("scaling") || o.Like == "" {
			o.Scaling = *scaling
		}
		if cmd.Flags().Changed("label-above") {
			o.LabelAbove = above
		}
		o.ShardFormat = *shards
		o.Compression, o.ChunkBytes, o.RecordsPerChunk = w.Compression, w.ChunkBytes, w.RecordsPerChunk
		if err := checkConversion(cmd, &o, input, *force); err != nil {
			return err
		}
		return convertTo(cmd, *input, args[:len(args)-1], o, *format)
	}
	return cmd
}

// checkConversion names the first flag that does not go with the others. With --like it sets the format of the input.
func checkConversion(cmd *cobra.Command, o *convert.Options, input *string, force bool) error {
	if o.ShardFormat == convert.ShardTFRecord {
		if err := checkTFRecord(cmd, o); err != nil {
			return err
		}
	}
	for _, flag := range []string{"label-above", "header", "label", "text-labels"} {
		if *input == "idx" && cmd.Flags().Changed(flag) {
			return cli.UsageErrorf("--%s: expected --format csv, jsonl or categorical, found idx", flag)
		}
	}
	for _, flag := range []string{"scaling", "max-pixel"} {
		if *input != "csv" && *input != "jsonl" && cmd.Flags().Changed(flag) {
			return cli.UsageErrorf("--%s: expected --format csv or jsonl, found %s", flag, *input)
		}
	}
	if o.Like != "" {
		if err := checkLike(cmd, o.Like, input); err != nil {
			return err
		}
	}
	if o.LabelAbove != nil && o.TextLabels {
		return cli.UsageErrorf("--label-above: expected labels that are numbers, found --text-labels")
	}
	return validateConversion(cmd, *o, force)
}

// checkTFRecord names the first flag that does not go with --shard-format tfrecord.
func checkTFRecord(cmd *cobra.Command, o *convert.Options) error {
	for _, flag := range []string{"records-per-chunk", "chunk-bytes"} {
		if cmd.Flags().Changed(flag) {
			return cli.UsageErrorf("--%s: expected --shard-format recordio, found tfrecord, whose chunks are made by an index", flag)
		}
	}
	if o.Compression == recordio.Snappy {
		return cli.UsageErrorf("--compression: expected none or gzip with --shard-format tfrecord, found snappy")
	}
	return nil
}

// convertTo converts files, with progress on a terminal, and prints the result.
func convertTo(cmd *cobra.Command, input string, paths []string, o convert.Options, format string) error {
	progress := cli.NewProgress(cmd.ErrOrStderr())
	o.Progress = progress.Update
	result, err := tool.Convert(cmd.Context(), input, paths, o)
	progress.End()
	if err != nil {
		return err
	}
	return printConverted(cmd, result, o, format)
}

// convertSample converts a table of the program. Only --force and the flags of the output apply to it.
func convertSample(cmd *cobra.Command, name, prefix string, force bool, format string) error {
	if !slices.Contains(local.Samples, name) {
		return cli.SettingErrorf(cmd, "sample", "expected one of %s", strings.Join(local.Samples, ", "))
	}
	var other string
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Changed && !slices.Contains([]string{"sample", "force", "output"}, f.Name) && cmd.InheritedFlags().Lookup(f.Name) == nil {
			other = f.Name
		}
	})
	if other != "" {
		return cli.UsageErrorf("--%s: expected it without --sample: the shards are as master run writes them", other)
	}
	o := convert.Options{Prefix: prefix, Repeat: !force}
	result, err := local.ConvertSample(cmd.Context(), name, o)
	if err != nil {
		return err
	}
	return printConverted(cmd, result, o, format)
}

// printConverted prints what was converted.
func printConverted(cmd *cobra.Command, result convert.Result, o convert.Options, format string) error {
	fmt.Fprintln(cmd.ErrOrStderr(), aboutDataset(result))
	remedy := smallerChunks(result.Train.Records)
	if o.ShardFormat == convert.ShardTFRecord {
		remedy = fmt.Sprintf(": write more shards, with --shards %d", tasksForTrainer*usualTrainers)
	}
	warnOfFewTasks(cmd.ErrOrStderr(), result.Train.Chunks, remedy)
	tasks := usualTasks(result.Train.Chunks)
	fmt.Fprintf(cmd.ErrOrStderr(), "%s in each pass of `master run` with %d trainers\n", cli.Counted(tasks, "task"), usualTrainers)
	return cli.Render(cmd.OutOrStdout(), format, converted{result, tasks}, func(w io.Writer) {
		fmt.Fprintln(w, "SPLIT\tRECORDS\tCHUNKS\tSHARDS\tFIRST")
		printSplit(w, "train", result.Train)
		printSplit(w, "test", result.Test)
	})
}

// checkLike refuses flags whose values --like takes from a dataset, and takes the format of that dataset if none is given.
func checkLike(cmd *cobra.Command, prefix string, input *string) error {
	for _, flag := range []string{"scaling", "max-pixel", "text-labels"} {
		if cmd.Flags().Changed(flag) {
			return cli.UsageErrorf("--%s: expected it without --like, which takes it from %s", flag, prefix)
		}
	}
	like, err := convert.ReadDescription(prefix)
	if err != nil {
		return fmt.Errorf("--like: %w", err)
	}
	categories := like.Kind == sample.Categories
	switch {
	case cmd.Flags().Changed("format") && categories != (*input == "categorical"):
		return cli.UsageErrorf("--format %s: expected the format of %s, which has %s: omit --format", *input, prefix, like.Kind)
	case categories:
		*input = "categorical"
	}
	return nil
}

// converted is the result of a conversion.
type converted struct {
	convert.Result
	Tasks int `json:"tasks"` // of a pass of `master run` with usualTrainers
}

// validateConversion names the first flag with a value that makes no sense, and refuses to write over shards.
func validateConversion(cmd *cobra.Command, o convert.Options, force bool) error {
	switch {
	case o.Shards < 1 || o.Shards > tool.MostShards:
		return cli.SettingErrorf(cmd, "shards", "expected 1 to %d", tool.MostShards)
	case !(o.HeldOut >= 0 && o.HeldOut < 1):
		return cli.SettingErrorf(cmd, "held-out", "expected 0 or more and less than 1")
	case force:
		return nil
	}
	for _, pattern := range []string{o.Prefix + "-[0-9]*-of-[0-9]*", o.Prefix + "-test-[0-9]*-of-[0-9]*"} {
		if there, err := filepath.Glob(pattern); err == nil && len(there) > 0 {
			return fmt.Errorf("%s exists: expected no shards of an earlier conversion; --force replaces them", there[0])
		}
	}
	return nil
}

func printSplit(w io.Writer, name string, s convert.Split) {
	if len(s.Paths) > 0 {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\n", name, s.Records, s.Chunks, len(s.Paths), recordio.DisplayName(s.Paths[0]))
	}
}

// aboutDataset says in a line what was converted.
func aboutDataset(r convert.Result) string {
	var b strings.Builder
	if len(r.Columns) > 0 {
		fmt.Fprintf(&b, "names from line 1: label %q, features %.200q\n", r.LabelColumn, strings.Join(r.Columns, ","))
	}
	fmt.Fprintf(&b, "%s: %s, %s", r.Kind, cli.Counted(r.Features, "feature"), cli.Counted(r.Classes, "class"))
	if len(r.Labels) > 0 {
		fmt.Fprintf(&b, " (%.200s)", strings.Join(r.Labels, ", "))
	}
	if r.Classes > r.Train.Records {
		fmt.Fprintf(&b, "; more classes than samples: is another column the label? See --label and --label-above")
	}
	return b.String()
}

// The number of tasks that keep each trainer busy to the end of a pass, and the trainers of `master run` by default.
const (
	tasksForTrainer = 4
	usualTrainers   = 3
)

// usualTasks returns how many tasks `master run` makes of a dataset by default.
func usualTasks(chunks int) int { return master.Config{Trainers: usualTrainers}.Tasks(chunks) }

// smallerChunks is the remedy for few tasks from chunks whose size the writer sets; none if the records are too few.
func smallerChunks(records int) string {
	if smaller := records / (tasksForTrainer * usualTrainers); smaller > 0 {
		return fmt.Sprintf(": write smaller chunks, with --records-per-chunk %d", smaller)
	}
	return ""
}

// warnOfFewTasks writes a warning with a remedy if a dataset has too few tasks for the default number of trainers.
func warnOfFewTasks(w io.Writer, chunks int, remedy string) {
	tasks := usualTasks(chunks)
	if tasks >= tasksForTrainer*usualTrainers {
		return
	}
	fmt.Fprintf(w, "warning: %s: expected at least %d for each trainer, %d for %d trainers%s\n", cli.Counted(tasks, "task"), tasksForTrainer, tasksForTrainer*usualTrainers, usualTrainers, remedy)
}
