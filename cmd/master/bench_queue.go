package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/local/bench"
)

func benchQueueCommand() *cobra.Command {
	var b bench.Queue
	var vias []string
	var seconds float64
	cmd := &cobra.Command{
		Use:   "queue",
		Short: "Measure the dispatch rate against etcd's own",
		Long: `Bench queue measures how many tasks a master dispatches per second, each answer durable in etcd before it is sent. An op is one
request that finishes a counted task and gets the next task. Each row also has the raw rate: one transaction after the
other, under the same lock compares, over the same connection, with a value of the size of the master's state.

Etcd runs in a process of its own with its default flags; so do the trainers, but for inproc. Rounds go through all rows in
turns; medians count. literal is the baseline that keeps the lists of all tasks and writes all of them on every change, with
gob and gzip of the standard library; literal-shared is the same with this program's own encoder.`,
		Example: `  master bench queue --via inproc --callers 1,16,64,256,1024
  master bench queue --via netrpc --callers 1,16,64,256 --etcd-delay 2ms -o json
  # against the baseline
  master bench queue --via netrpc,literal --callers 64 --tasks 100,1000,10000,100000
  # whatever the number of tasks
  master bench queue --via inproc --callers 16 --tasks 1000,10000000`,
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&vias, "via", []string{string(bench.InProcess), string(bench.NetRPC)}, "`how` trainers reach the queue: inproc, netrpc, netrpc-plain, literal, literal-shared; a list")
	flags.IntSliceVar(&b.Callers, "callers", []int{1, 16, 64, 256}, "`trainers`; a list")
	flags.IntSliceVar(&b.Tasks, "tasks", []int{100_000}, "`tasks` of the dataset; a list")
	flags.Float64Var(&seconds, "seconds", 1, "`length` of one measurement")
	flags.IntVar(&b.Rounds, "rounds", 5, "`times` that each row is measured; the median counts")
	flags.DurationVar(&b.EtcdDelay, "etcd-delay", 0, "add rows with a proxy before etcd that delays by so much, for a disk that is too fast")
	flags.StringVar(&b.Folder, "dir", "", "`directory` for etcd's data, on a real disk (default that of temporary files)")
	cli.CompleteWords(cmd, "via", viaWords())
	format := cli.AddOutput(cmd)
	profile := flags.String("cpuprofile", "", "`file` for a profile of the master's process, for go tool pprof")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		for _, via := range vias {
			b.Vias = append(b.Vias, bench.Via(via))
		}
		b.Length = time.Duration(seconds * float64(time.Second))
		if err := b.Validate(); err != nil {
			return cli.UsageErrorf("%w", err)
		}
		if b.Program, err = benchProgram(); err != nil {
			return err
		}
		say, done := benchProgress(cmd.ErrOrStderr())
		defer done()
		b.Stderr = cmd.ErrOrStderr()
		b.Progress = func(done, total int, now string) { say(fmt.Sprintf("%d/%d  %s", done+1, total, now)) }
		var figures bench.QueueFigures
		if err := profiled(*profile, func() error {
			figures, err = b.Run(cmd.Context())
			return err
		}); err != nil {
			return err
		}
		done()
		return cli.Render(cmd.OutOrStdout(), *format, figures, func(w io.Writer) { queueTable(w, figures) })
	}
	return cmd
}

func viaWords() []string {
	words := make([]string, len(bench.Vias))
	for i, via := range bench.Vias {
		words[i] = string(via)
	}
	return words
}

func queueTable(w io.Writer, f bench.QueueFigures) {
	heads := []string{"VIA", "CALLERS", "TASKS", "DELAY", "OPS/S", "RAW TXN/S", "RATIO", "OVER LITERAL", "P50 MS", "P99 MS", "OPS/TXN", "CPU US/OP", "MASTER", "ETCD", "LOAD", "STATE B", "WAL B/TASK", "PUT B/TASK"}
	fmt.Fprintln(w, strings.Join(heads, "\t"))
	for _, r := range f.Rows {
		ratio := "-"
		if r.OverLiteral > 0 {
			ratio = fmt.Sprintf("%.0f", r.OverLiteral)
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%.3g ms\t%.4g\t%.4g\t%.2f\t%s\t%.2f\t%.2f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.0f\t%.0f\t%.0f\n",
			r.Via, r.Callers, r.Tasks, r.EtcdDelayMS, r.OpsPerS, r.RawTxnPerS, r.Ratio, ratio, r.P50MS, r.P99MS, r.OpsPerTxn,
			r.CPUMicrosPerOp, r.CPU.Master, r.CPU.Etcd, r.CPU.Load, r.StateBytes, r.BytesPerTask, r.PutBytesPerTask)
	}
	fmt.Fprintf(w, "\n%s; medians of %d rounds of %.3g s\n", machine(f.Processors, f.Disk), f.Rounds, f.Seconds)
}
