package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/local/bench"
)

func benchPSCommand() *cobra.Command {
	var b bench.PS
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "Measure what parameter servers cost",
		Long: `Bench ps pushes the gradients of a model to parameter servers and gets its parameters back, between processes of this machine,
and reports the processor time of all of them for each GB: 10^9 bytes of float32, both directions counted, also where
bfloat16 carries them. In turns with it the same is measured in memory, as a limit, and by gRPC with a field of bytes and
net/rpc with []float32, over TCP. Then come more servers and trainers, by the unix socket and over TCP, with float32 and
bfloat16; the time of a step while checkpoints are written, and between them; the optimizers alone, against a copy of the arrays that they work on; and a table of embeddings on one server,
rows of 16 floats, by one trainer over the unix socket.`,
		Example: `  master bench ps -o json
  master bench ps --mib 20 --runs 3 --shards 1 --trainers 1,4 --most-rows 1000000`,
	}
	flags := cmd.Flags()
	flags.IntVar(&b.MiB, "mib", 100, "size of the model in `MiB`")
	flags.IntVar(&b.Steps, "steps", 60, "`steps` during checkpoints in each of the runs, and as many between them")
	flags.IntVar(&b.TableMiB, "table-mib", 1000, "size in `MiB` of the embedding table during checkpoints (0 = none)")
	flags.StringVar(&b.Folder, "dir", "", "`directory` for the checkpoints, on a real disk (default that of temporary files)")
	flags.IntVar(&b.Rows, "rows", 1_000_000, "`rows` of a table of embeddings while lookups and updates are measured")
	flags.IntVar(&b.MostRows, "most-rows", 10_000_000, "`rows` of it while memory is measured; a row takes about 85 bytes")
	flags.IntVar(&b.Runs, "runs", 5, "`times` that each measurement is repeated; the median counts")
	flags.IntSliceVar(&b.Shards, "shards", []int{1, 2, 4}, "`numbers` of parameter servers")
	flags.IntSliceVar(&b.Trainers, "trainers", []int{1, 2, 4}, "`numbers` of trainers, with each number of servers")
	format := cli.AddOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if err := b.Validate(); err != nil {
			return cli.UsageErrorf("--%w", err)
		}
		if b.Program, err = benchProgram(); err != nil {
			return err
		}
		say, done := benchProgress(cmd.ErrOrStderr())
		defer done()
		b.Stderr, b.Progress = cmd.ErrOrStderr(), say
		figures, err := b.Run(cmd.Context())
		if err != nil {
			return err
		}
		done()
		return cli.Render(cmd.OutOrStdout(), *format, figures, func(w io.Writer) { psTable(w, figures) })
	}
	return cmd
}

func psTable(w io.Writer, figures bench.PSFigures) {
	d := figures.Dense
	fmt.Fprintln(w, "PUSH-PULL\tCPU S/GB\tTIMES\tGB/S")
	fmt.Fprintf(w, "here\t%.3f\t1.00\t%.2f\n", d.CPUSPerGB, d.GBPerS)
	fmt.Fprintf(w, "limit\t%.3f\t%.2f\t\n", d.LimitCPUSPerGB, d.LimitCPUSPerGB/d.CPUSPerGB)
	fmt.Fprintf(w, "gRPC, bytes\t%.3f\t%.2f\t\n", d.GRPCBytesCPUSPerGB, d.GRPCBytesCPUSPerGB/d.CPUSPerGB)
	fmt.Fprintf(w, "net/rpc, []float32\t%.3f\t%.2f\t\n", d.GobFloat32CPUSPerGB, d.GobFloat32CPUSPerGB/d.CPUSPerGB)
	if len(figures.Scaling) > 0 {
		fmt.Fprintln(w, "\nNETWORK\tWIRE DTYPE\tSERVERS\tTRAINERS\tCPU S/GB\tGB/S")
		for _, s := range figures.Scaling {
			fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%.3f\t%.2f\n", s.Network, s.WireDType, s.Shards, s.Trainers, s.CPUSPerGB, s.GBPerS)
		}
	}
	fmt.Fprintln(w, "\nBESIDE CHECKPOINTS\tCOMPUTES\tSTEPS\tP50 MS\tTIMES\tP99 MS\tTIMES\tSECONDS\tMB/S")
	for _, c := range figures.Checkpoint.Rows {
		what := c.Optimizer
		if c.TableMiB > 0 {
			what = fmt.Sprintf("%s, table of %d MiB", c.Optimizer, c.TableMiB)
		}
		fmt.Fprintf(w, "%s\t%t\t%d\t%.0f\t%.2f\t%.0f\t%.2f\t%.2f\t%.0f\n", what, c.Computes, c.Beside.Steps, c.Beside.P50MS, c.P50Ratio,
			c.Beside.P99MS, c.P99Ratio, c.Seconds, c.MBPerS)
	}
	fmt.Fprintln(w, "\nOPTIMIZER\tM ELEMENTS/CPU-S\tPLAIN GO\tLIMIT\tOF THE LIMIT")
	for _, o := range figures.Optimizers {
		fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.0f\t%.2f\n", o.Name, o.ElementsPerSecond/1e6, o.PlainElementsPerSecond/1e6,
			o.LimitElementsPerSecond/1e6, o.ElementsPerSecond/o.LimitElementsPerSecond)
	}
	t := figures.Sparse
	fmt.Fprintln(w, "\nROWS OF A TABLE\tM ROWS/S\tCPU NS/ROW")
	fmt.Fprintf(w, "lookups\t%.2f\t%.0f\n", t.LookupsPS/1e6, t.LookupNS)
	fmt.Fprintf(w, "updates\t%.2f\t%.0f\n", t.UpdatesPS/1e6, t.UpdateNS)
	fmt.Fprintf(w, "\n%d rows: %.1f bytes of memory each, collected in %.1f ms\n", t.MostRows, t.BytesOfRow, t.GCMillis)
	fmt.Fprintf(w, "\n%d processors; a model of %d MiB; medians of %d runs\n", figures.Processors, figures.MiB, figures.Runs)
}
