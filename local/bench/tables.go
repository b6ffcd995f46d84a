package bench

import (
	"fmt"
	"io"
	"strings"
)

// machine describes the machine that was measured.
func (d Disk) machine(processors int) string {
	if d.InMemory {
		return fmt.Sprintf("%d processors; %s is in memory, no disk was measured: name a directory on a disk with --dir", processors, d.Folder)
	}
	return fmt.Sprintf("%d processors, fdatasync p50 %.0f us in %s", processors, d.FdatasyncP50US, d.Folder)
}

// Table writes the figures as tab-separated cells.
func (f FailoverFigures) Table(w io.Writer) {
	fmt.Fprintln(w, "MODE\tN\tP50 MS\tP90 MS\tP99 MS\tMAX MS")
	fmt.Fprintf(w, "%s\t%d\t%.1f\t%.1f\t%.1f\t%.1f\n", f.Mode, f.N, f.P50MS, f.P90MS, f.P99MS, f.MaxMS)
	fmt.Fprintf(w, "\n%s\n", f.Disk.machine(f.Processors))
}

// Table writes the figures as tab-separated cells.
func (f ReconnectFigures) Table(w io.Writer) {
	fmt.Fprintln(w, "TRAINERS\tMODE\tJOIN S\tBACK S\tP99 BEFORE MS\tP99 AFTER MS\tTASKS/S\tLOST\tDOUBLED\tRSS MIB\tIDLE MIB")
	fmt.Fprintf(w, "%d\t%s\t%.1f\t%.2f\t%.1f\t%.1f\t%.0f\t%d\t%d\t%d\t%d\n", f.Trainers, f.Mode, f.JoinSeconds, f.BackSeconds,
		f.P99BeforeMS, f.P99AfterMS, f.TasksPerS, f.Lost, f.Doubled, f.RSSBytes>>20, f.RSSIdleBytes>>20)
	fmt.Fprintf(w, "\n%s\n", f.Disk.machine(f.Processors))
}

// Table writes the figures as tab-separated cells.
func (f RecoveryFigures) Table(w io.Writer) {
	const mb = 1e6
	fmt.Fprintln(w, "TASKS\tSECONDS\tCPU SECONDS\tHEAP MB\tPEAK MB\tETCD MB\tREGISTER S")
	fmt.Fprintf(w, "%d\t%.3f\t%.3f\t%.1f\t%.1f\t%.1f\t%.1f\n", f.Tasks, f.Seconds, f.CPUSeconds,
		float64(f.HeapBytes)/mb, float64(f.HeapPeakBytes)/mb, float64(f.EtcdBytes)/mb, f.RegisterSeconds)
	fmt.Fprintf(w, "\n%s; medians of %d rounds\n", f.Disk.machine(f.Processors), f.Rounds)
}

// Table writes the figures as tab-separated cells.
func (f QueueFigures) Table(w io.Writer) {
	heads := []string{"VIA", "CALLERS", "TASKS", "DELAY", "ROUND", "OPS/S", "RAW TXN/S", "RATIO", "OVER LITERAL", "P50 MS", "P99 MS", "OPS/TXN", "CPU US/OP", "MASTER", "ETCD", "LOAD", "STATE B", "WAL B/TASK", "PUT B/TASK"}
	fmt.Fprintln(w, strings.Join(heads, "\t"))
	for _, r := range f.Rows {
		ratio := "-"
		if r.OverLiteral > 0 {
			ratio = fmt.Sprintf("%.0f", r.OverLiteral)
		}
		round := "-"
		if r.OpenRound {
			round = "open"
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%.3g ms\t%s\t%.4g\t%.4g\t%.2f\t%s\t%.2f\t%.2f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.0f\t%.0f\t%.0f\n",
			r.Via, r.Callers, r.Tasks, r.EtcdDelayMS, round, r.OpsPerS, r.RawTxnPerS, r.Ratio, ratio, r.P50MS, r.P99MS, r.OpsPerTxn,
			r.CPUMicrosPerOp, r.CPU.Master, r.CPU.Etcd, r.CPU.Load, r.StateBytes, r.BytesPerTask, r.PutBytesPerTask)
	}
	fmt.Fprintf(w, "\n%s; medians of %d rounds of %.3g s\n", f.Disk.machine(f.Processors), f.Rounds, f.Seconds)
}

// Table writes the figures as tab-separated cells.
func (f PSFigures) Table(w io.Writer) {
	d := f.Dense
	fmt.Fprintln(w, "PUSH-PULL\tCPU S/GB\tTIMES\tGB/S")
	fmt.Fprintf(w, "here\t%.3f\t1.00\t%.2f\n", d.CPUSPerGB, d.GBPerS)
	fmt.Fprintf(w, "limit\t%.3f\t%.2f\t\n", d.LimitCPUSPerGB, d.LimitCPUSPerGB/d.CPUSPerGB)
	fmt.Fprintf(w, "gRPC, bytes\t%.3f\t%.2f\t\n", d.GRPCBytesCPUSPerGB, d.GRPCBytesCPUSPerGB/d.CPUSPerGB)
	fmt.Fprintf(w, "net/rpc, []float32\t%.3f\t%.2f\t\n", d.GobFloat32CPUSPerGB, d.GobFloat32CPUSPerGB/d.CPUSPerGB)
	if len(f.Scaling) > 0 {
		fmt.Fprintln(w, "\nNETWORK\tWIRE DTYPE\tSERVERS\tTRAINERS\tCPU S/GB\tGB/S")
		for _, s := range f.Scaling {
			fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%.3f\t%.2f\n", s.Network, s.WireDType, s.Shards, s.Trainers, s.CPUSPerGB, s.GBPerS)
		}
	}
	fmt.Fprintln(w, "\nBESIDE CHECKPOINTS\tCOMPUTES\tSTEPS\tP50 MS\tTIMES\tP99 MS\tTIMES\tSECONDS\tMB/S")
	for _, c := range f.Checkpoint.Rows {
		what := c.Optimizer
		if c.TableMiB > 0 {
			what = fmt.Sprintf("%s, table of %d MiB", c.Optimizer, c.TableMiB)
		}
		fmt.Fprintf(w, "%s\t%t\t%d\t%.0f\t%.2f\t%.0f\t%.2f\t%.2f\t%.0f\n", what, c.Computes, c.Beside.Steps, c.Beside.P50MS, c.P50Ratio,
			c.Beside.P99MS, c.P99Ratio, c.Seconds, c.MBPerS)
	}
	fmt.Fprintln(w, "\nOPTIMIZER\tM ELEMENTS/CPU-S\tPLAIN GO\tLIMIT\tOF THE LIMIT")
	for _, o := range f.Optimizers {
		fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.0f\t%.2f\n", o.Name, o.ElementsPerSecond/1e6, o.PlainElementsPerSecond/1e6,
			o.LimitElementsPerSecond/1e6, o.ElementsPerSecond/o.LimitElementsPerSecond)
	}
	t := f.Sparse
	fmt.Fprintln(w, "\nROWS OF A TABLE\tM ROWS/S\tCPU NS/ROW")
	fmt.Fprintf(w, "lookups\t%.2f\t%.0f\n", t.LookupsPS/1e6, t.LookupNS)
	fmt.Fprintf(w, "updates\t%.2f\t%.0f\n", t.UpdatesPS/1e6, t.UpdateNS)
	fmt.Fprintf(w, "\n%d rows: %.1f bytes of memory each, collected in %.1f ms\n", t.MostRows, t.BytesOfRow, t.GCMillis)
	fmt.Fprintf(w, "\n%d processors; a model of %d MiB; medians of %d runs\n", f.Processors, f.MiB, f.Runs)
}
