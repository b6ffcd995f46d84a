package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/recordio/tool"
)

func benchRecordioCommand() *cobra.Command {
	var b tool.Bench
	cmd := &cobra.Command{
		Use:   "recordio",
		Short: "Measure writing, scanning and indexing of RecordIO files",
		Long: `Bench recordio writes files of 1 KB records of text, scans them with every checksum verified and every record split off,
and lists and indexes many files of many chunks, all of it from and to the page cache. Speeds are per second of processor time,
user and system, of this process, and per second of the clock.`,
		Example: `  master bench recordio
  master bench recordio -o json --files 10000 --chunks-per-file 64`,
	}
	flags := cmd.Flags()
	flags.StringVar(&b.Folder, "dir", "", "`directory` for the files, removed afterwards (default a temporary one)")
	flags.IntVar(&b.Records, "records", 256<<10, "`records` of 1 KB to write and scan")
	flags.IntVar(&b.Runs, "runs", 5, "`times` that each measurement is repeated; the median counts")
	flags.IntVar(&b.Files, "files", 10_000, "`files` to index")
	flags.IntVar(&b.ChunksPerFile, "chunks-per-file", 64, "`chunks` of one record in each of them")
	format := cli.AddOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if min(b.Records, b.Runs, b.Files, b.ChunksPerFile) < 1 {
			return cli.UsageErrorf("--records, --runs, --files and --chunks-per-file must be 1 or more")
		}
		figures, err := b.Run(cmd.Context())
		if err != nil {
			return err
		}
		return cli.Render(cmd.OutOrStdout(), *format, figures, func(w io.Writer) {
			fmt.Fprintln(w, "WHAT\tCOMPRESSION\tGB/CPU-S\tGB/S\tRATIO")
			for _, s := range figures.Write {
				fmt.Fprintf(w, "write\t%s\t%.2f\t%.2f\t%.2f\n", s.Compression, s.GBPerCPUSecond, s.GBPerSecond, s.Ratio)
			}
			for _, s := range figures.Scan {
				fmt.Fprintf(w, "scan\t%s\t%.2f\t%.2f\t%.2f\n", s.Compression, s.GBPerCPUSecond, s.GBPerSecond, s.Ratio)
			}
			x := figures.Index
			fmt.Fprintf(w, "\nWHAT\tFILES\tCHUNKS\tSECONDS\tCHUNKS/S\nindex\t%d\t%d\t%.2f\t%.0f\n", x.Files, x.Chunks, x.Seconds, x.ChunksPerSecond)
		})
	}
	return cmd
}
