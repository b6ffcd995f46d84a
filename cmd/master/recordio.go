package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/dataset/tfrecord"
	"trainmaster/recordio"
	"trainmaster/recordio/tool"
)

// recordioCommand groups what is done with files of records, without any job.
func recordioCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "recordio",
		Short: "Create, check and inspect RecordIO files",
		Long: `Recordio makes, checks and looks into RecordIO files, the form in which training data is read. All layouts of the format
are read; recordio/FORMAT.md in the source draws their bytes. Stat, verify, index and cat also read TFRecord files, plain or
compressed by gzip or zlib, which they recognize by the content (docs/formats/tfrecord.md), and objects in a store:
"s3://bucket/key", "s3://bucket/prefix/" or a quoted glob.`,
		Example: `  # shards of the digits, a fifth of them held out
  master recordio convert --format csv --held-out 0.2 testdata/digits.csv.gz data/digits
  # are they whole?
  master recordio verify data/digits-*`,
	}
	cmd.AddCommand(
		recordioConvertCommand(),
		recordioWriteCommand(),
		recordioStatCommand(),
		recordioVerifyCommand(),
		recordioIndexCommand(),
		recordioCatCommand(),
	)
	return cmd
}

// chunkFlags are the flags of commands that write.
type chunkFlags struct {
	compression *string
	layout      *string
	bytes       *int
	records     *int
}

// addChunkFlags gives cmd the flags. usual is the default of --records-per-chunk.
func addChunkFlags(cmd *cobra.Command, usual string) chunkFlags {
	return chunkFlags{
		compression: cli.AddChoice(cmd, "compression", "", "how chunks are stored", "none", "snappy", "gzip"),
		bytes:       cmd.Flags().Int("chunk-bytes", 0, "end a chunk before it grows past that many `bytes` (default 1 MiB, or no limit with --records-per-chunk)"),
		records:     cmd.Flags().Int("records-per-chunk", 0, "end a chunk at that many `records` (default "+usual+")"),
	}
}

func (f chunkFlags) options() (recordio.WriterOptions, error) {
	o := recordio.WriterOptions{ChunkBytes: *f.bytes, RecordsPerChunk: *f.records}
	if o.ChunkBytes < 0 || o.ChunkBytes > recordio.DefaultMaxChunkBytes {
		return o, cli.UsageErrorf("--chunk-bytes is %d, expected 1 to %d", o.ChunkBytes, recordio.DefaultMaxChunkBytes)
	}
	if o.RecordsPerChunk < 0 {
		return o, cli.UsageErrorf("--records-per-chunk is %d, expected 1 or more", o.RecordsPerChunk)
	}
	if f.layout != nil && *f.layout == recordio.Second.String() {
		o.Layout = recordio.Second
	}
	var err error
	o.Compression, err = recordio.ParseCompression(*f.compression)
	return o, err
}

func recordioStatCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "stat FILE...",
		Short: "Show the number of chunks and records",
		Long:  "Stat says which layout and compression files have and how many chunks and records. It reads the headers of chunks only,\nor of records of a TFRecord file. The layout of a TFRecord file is tfrecord.\nThe chunks of a Parquet file are its row groups.",
		Example: `  master recordio stat data/digits-*
  master recordio stat -o json data/digits-00000-of-00004`,
		Args: cobra.MinimumNArgs(1),
	}
	format := cli.AddOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, paths []string) error {
		stats, err := tool.StatFiles(cmd.Context(), paths)
		if len(stats) == 0 {
			return err
		}
		return errors.Join(err, cli.Render(cmd.OutOrStdout(), *format, stats, func(w io.Writer) {
			fmt.Fprintln(w, "PATH\tLAYOUT\tCOMPRESSION\tCHUNKS\tRECORDS\tBYTES")
			for _, s := range stats {
				fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%d\n", recordio.DisplayName(s.Path), s.Layout, s.Compression, s.Chunks, s.Records, s.Bytes)
			}
		}))
	}
	return cmd
}

func recordioVerifyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify FILE...",
		Short: "Verify the checksums of all chunks",
		Long: `Verify reads files from beginning to end, checks the checksum of every chunk and the length of every record, and reports
the result. Of a TFRecord file it checks both checksums of every record. It exits with 1 if any file is damaged, naming the file
and the byte offset of the chunk, or record number and byte offset in a TFRecord file.`,
		Example: `  master recordio verify data/digits-*`,
		Args:    cobra.MinimumNArgs(1),
	}
	format := cli.AddOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, paths []string) error {
		checks, err := tool.VerifyFiles(cmd.Context(), paths)
		if cmd.Context().Err() != nil {
			return err
		}
		return errors.Join(err, cli.Render(cmd.OutOrStdout(), *format, checks, func(w io.Writer) {
			fmt.Fprintln(w, "PATH\tRESULT\tRECORDS")
			for _, c := range checks {
				result := "ok"
				switch {
				case c.OK:
				case c.Offset == nil:
					result = "unreadable"
				default:
					result = "damaged"
				}
				fmt.Fprintf(w, "%s\t%s\t%d\n", recordio.DisplayName(c.Path), result, c.Records)
			}
		}))
	}
	return cmd
}

func recordioIndexCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "index FILE...",
		Short: "List the chunks of files",
		Long: `Index lists the chunks of files: where each begins, how large its payload is as stored, and how many records it holds.
TFRecord files have no chunks of their own. Index makes them of whole records, as --chunk-bytes and --records-per-chunk say;
their size includes lengths and checksums. A compressed TFRecord file is one chunk. The chunks of a Parquet file are its row groups.`,
		Example: `  master recordio index data/digits-00000-of-00004
  master recordio index -o yaml data/digits-*
  master recordio index --records-per-chunk 1000 data/digits.tfrecord-00000-of-00004`,
		Args: cobra.MinimumNArgs(1),
	}
	format := cli.AddOutput(cmd)
	var o tfrecord.IndexOptions
	cmd.Flags().Int64Var(&o.ChunkBytes, "chunk-bytes", 0, "end a chunk of a TFRecord file before it grows past that many `bytes` (default 1 MiB, or no limit with --records-per-chunk)")
	cmd.Flags().Int64Var(&o.RecordsPerChunk, "records-per-chunk", 0, "end a chunk of a TFRecord file at that many `records` (default no limit)")
	cmd.RunE = func(cmd *cobra.Command, paths []string) error {
		if o.ChunkBytes < 0 {
			return cli.UsageErrorf("--chunk-bytes is %d, expected 1 or more", o.ChunkBytes)
		}
		if o.RecordsPerChunk < 0 {
			return cli.UsageErrorf("--records-per-chunk is %d, expected 1 or more", o.RecordsPerChunk)
		}
		rows, err := tool.IndexFiles(cmd.Context(), paths, o)
		if len(rows) == 0 {
			return err
		}
		return errors.Join(err, cli.Render(cmd.OutOrStdout(), *format, rows, func(w io.Writer) {
			fmt.Fprintln(w, "PATH\tCHUNK\tOFFSET\tSIZE\tRECORDS\tCOMPRESSION\tLAYOUT")
			for _, r := range rows {
				fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%s\t%s\n", recordio.DisplayName(r.Path), r.Chunk, r.Offset, r.Size, r.Records, r.Compression, r.Layout)
			}
		}))
	}
	return cmd
}
