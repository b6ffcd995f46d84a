package view

import (
	"fmt"
	"io"
	"strconv"

	"trainmaster/cmd/internal/cli"
	"trainmaster/master/restore"
	"trainmaster/pserver/checkpoint/modelfile"
)

// SetsTable writes a line for each checkpoint set, and the tensors and tables of the newest.
func SetsTable(w io.Writer, reports []modelfile.SetReport) {
	fmt.Fprintln(w, "SET\tMODE\tVERSION\tSHARDS\tBYTES\tSTATE")
	for _, r := range reports {
		total := int64(0)
		for _, s := range r.Shards {
			total += s.Bytes
		}
		name, state := strconv.FormatUint(r.Set, 10), "complete"
		if !r.Complete {
			state = "DAMAGED: " + r.Problem
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\n", name, r.Mode, r.Version, len(r.Shards), cli.Thousands(uint64(total)), state)
	}
	if len(reports) == 0 || len(reports[0].Tensors) == 0 {
		return
	}
	fmt.Fprintf(w, "\noptimizer\t%s\n\nTENSOR\tSHAPE\tBYTES\n", reports[0].Optimizer)
	for _, t := range reports[0].Tensors {
		fmt.Fprintf(w, "%s\t%v\t%s\n", t.Name, t.Shape, cli.Thousands(uint64(t.Bytes)))
	}
	if len(reports[0].Tables) == 0 {
		return
	}
	fmt.Fprintln(w, "\nTABLE\tDIM\tROWS")
	for _, t := range reports[0].Tables {
		fmt.Fprintf(w, "%s\t%d\t%s\n", t.Name, t.Dim, cli.Thousands(uint64(t.Rows)))
	}
}

// DiffTable writes the tensors and tables in which two models differ.
func DiffTable(w io.Writer, diffs []modelfile.TensorDiff) {
	if len(diffs) == 0 {
		fmt.Fprintln(w, "no difference")
		return
	}
	fmt.Fprintln(w, "TENSOR\tSHAPE IN A\tSHAPE IN B\tMAX ABS\tRELATIVE L2\tROWS")
	shape := func(s []int) string {
		if s == nil {
			return "-"
		}
		return fmt.Sprint(s)
	}
	value := func(v *float64) string {
		if v == nil {
			return "-"
		}
		return fmt.Sprintf("%.3g", *v)
	}
	for _, d := range diffs {
		rows := ""
		if d.Rows != nil {
			rows = fmt.Sprintf("%d only in A, %d only in B, %d differ", d.Rows.OnlyA, d.Rows.OnlyB, d.Rows.Differ)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", d.Name, shape(d.ShapeA), shape(d.ShapeB), value(d.MaxAbs), value(d.RelativeL2), rows)
	}
}

// ListedTable writes sets of checkpoints with the set that etcd names.
func ListedTable(w io.Writer, list []restore.ListedSet) {
	fmt.Fprintln(w, "SET\tNAMED\tMODE\tVERSION\tSHARDS\tBYTES\tSTATE")
	for _, s := range list {
		named, state := "", "complete"
		if s.Named {
			named = "*"
		}
		if !s.Complete {
			state = "DAMAGED: " + s.Problem
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%d\t%d\t%s\t%s\n", s.Set, named, s.Mode, s.Version, s.Shards, cli.Thousands(uint64(s.Bytes)), state)
	}
}
