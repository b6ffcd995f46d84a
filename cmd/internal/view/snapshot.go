package view

import (
	"fmt"
	"io"

	"trainmaster/cmd/internal/cli"
	"trainmaster/master/restore"
	"trainmaster/master/snapshot"
)

// Snapshot is what the snapshot commands say of a file.
type Snapshot struct {
	File   string `json:"file"`
	Bytes  int64  `json:"bytes"`
	Digest string `json:"sha256"` // of all but the last 32 bytes, which are it
	snapshot.Head
}

// Table writes the description as tab-separated cells.
func (s Snapshot) Table(w io.Writer) {
	fmt.Fprintf(w, "%s: job %s, %s, commit %s, at %s\n", cli.OneLineName(s.File), s.Job, s.Status, cli.Thousands(s.Commit), s.TakenAt)
	if len(s.Datasets) > 0 {
		fmt.Fprintln(w, "\nDATASET\tPASS\tDONE\tPENDING\tRETRY\tSET ASIDE\tTASKS")
	}
	for _, d := range s.Datasets {
		fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d\t%d\t%d\n", d.Dataset, d.Pass, d.Done, d.Pending, d.Retry, d.SetAside, d.Tasks)
	}
	what := "with its ledger"
	if !s.Ledger {
		what = "without its ledger: master verify can prove nothing of it"
	}
	model := "without its parameters"
	if s.Model {
		model = fmt.Sprintf("with its parameters, of set %d", s.Set)
	}
	fmt.Fprintf(w, "\n%s bytes, whole, %s; %s\n", cli.Thousands(uint64(s.Bytes)), what, model)
}

// RestoredTable writes the result of a restore. flags lead to the restored job, checkpoints is the directory of its parameters.
func RestoredTable(w io.Writer, job restore.Result, r *restore.Plan, flags, checkpoints string) {
	fmt.Fprintf(w, "job %s is restored at commit %s: %s tasks that were pending are dispatched again\n", job.Job, cli.Thousands(job.Commit), cli.Thousands(uint64(job.Again)))
	fmt.Fprintf(w, "continue it with: master %s, and its former settings\n", flags)
	if r.Set != nil {
		fmt.Fprintf(w, "its parameters are from set %d: start its parameter servers with --checkpoint-dir %s\n", r.Set.Number, checkpoints)
	}
	switch {
	case job.Ledger:
	case r.Ledger:
		fmt.Fprintln(w, "its former ledger is not in the snapshot: master verify checks passes from here on")
	default:
		fmt.Fprintln(w, "its ledger is not in the snapshot: start its masters with --ledger=false")
	}
}
