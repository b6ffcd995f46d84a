package view

import (
	"fmt"
	"io"
	"strings"

	"trainmaster/cmd/internal/cli"
	"trainmaster/ledger/verify"
	"trainmaster/taskqueue"
)

// RecordTable writes a line for each dispatch of a record.
func RecordTable(w io.Writer, r verify.Trace) {
	fmt.Fprintf(w, "Record %d of %s is in task %d of dataset %d, in chunk %d at offset %d.\n\n", r.Record, r.Path, r.Task, r.Dataset, r.Chunk, r.Offset)
	fmt.Fprintln(w, "PASS\tATTEMPT\tTRAINER\tDISPATCHED\tOUTCOME\tWHEN\tCOMMITS")
	unknown := func(text string) string {
		if text == "" {
			return "-"
		}
		return text
	}
	for _, p := range r.Passes {
		for _, d := range p.Deliveries {
			fmt.Fprintf(w, "%d\t%d\t%s\t%s\t%s\t%s\t%d-%d\n", p.Pass, d.Attempt, unknown(d.Trainer), unknown(d.Dispatched),
				strings.ReplaceAll(d.Outcome, "_", " "), unknown(d.Settled), d.DispatchedCommit, d.SettledCommit)
		}
		switch p.Outcome {
		case "set_aside":
			fmt.Fprintf(w, "%d\t-\t-\t-\tset aside\t-\t-\n", p.Pass)
		case "not_kept":
			fmt.Fprintf(w, "%d\t-\t-\t-\tnot kept\t-\t-\n", p.Pass)
		}
	}
	if len(r.Passes) == 0 {
		fmt.Fprintln(w, "It was not dispatched yet.")
	}
	if r.Kept > 1 {
		fmt.Fprintf(w, "\nThe ledger is kept from commit %d on; earlier dispatches are unknown.\n", r.Kept)
	}
}

// VerifyTable writes the counts of each pass and the conclusion.
func VerifyTable(w io.Writer, reports []taskqueue.PassReport, wrong error) {
	fmt.Fprintln(w, "DATASET\tPASS\tTASKS\tCOUNTED ONCE\tSET ASIDE\tREDELIVERED\tMISSING\tCOUNTED TWICE")
	unseen, abandoned := 0, 0
	for _, r := range reports {
		abandoned += r.Abandoned
		if r.Unseen {
			unseen++
			fmt.Fprintf(w, "%d\t%d\t%d\t-\t-\t-\t-\t-\n", r.Set, r.Pass, r.Tasks)
			continue
		}
		aside := fmt.Sprint(r.SetAside)
		if r.Dropped > 0 {
			aside += fmt.Sprintf(" (%d dropped)", r.Dropped)
		}
		fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%s\t%d\t%d\t%d\n", r.Set, r.Pass, r.Tasks, r.CountedOnce, aside, r.Redelivered, r.Missing, r.CountedTwice)
	}
	switch {
	case wrong == nil && unseen == 0:
		fmt.Fprintln(w, "\nNothing is missing and nothing was counted twice; the ledger agrees with the state.")
	case wrong == nil:
		fmt.Fprintln(w, "\nIn the passes with figures nothing is missing and nothing was counted twice; the ledger agrees with the state.")
	}
	if abandoned > 0 {
		fmt.Fprintf(w, "Rounds that evaluate one trainer have ended early, without %s.\n", cli.Counted(abandoned, "task"))
	}
	if unseen > 0 {
		fmt.Fprintf(w, "Of %s, marked with -, the ledger is not kept any longer (--ledger-keep of the master), or was lost before the job was resumed: nothing is known of them.\n", cli.Counted(unseen, "pass"))
	}
}
