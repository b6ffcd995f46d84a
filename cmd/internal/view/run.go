package view

import (
	"fmt"
	"io"
	"path/filepath"
	"time"

	"trainmaster/cmd/internal/cli"
	"trainmaster/local"
)

// RunTable writes the result of a run on this machine.
func RunTable(w io.Writer, r local.Result) {
	own := r.Model == "" // own trainers
	if r.Accuracy == nil && !own {
		fmt.Fprintln(w, "test accuracy\tnot measured: the data has no held-out shards (master recordio convert --held-out)")
	}
	if r.Accuracy != nil {
		fmt.Fprintf(w, "test accuracy\t%.4f (%s)\n", *r.Accuracy, cli.Counted(r.TestRecords, "record"))
	}
	if r.AUC != nil {
		fmt.Fprintf(w, "area under the ROC curve\t%.4f\n", *r.AUC)
	}
	if r.Loss != nil {
		fmt.Fprintf(w, "test loss\t%.4f\n", *r.Loss)
	}
	if r.Reason != "" {
		fmt.Fprintf(w, "ended early\t%s\n", r.Reason)
	}
	fmt.Fprintf(w, "passes\t%d in %s\n", r.Passes, r.Elapsed.Round(100*time.Millisecond))
	if own {
		fmt.Fprintf(w, "tasks\t%d in each pass\n", r.Tasks)
	}
	fmt.Fprintf(w, "restarts\t%d\n", r.Restarts)
	if a := r.SetAside; a.Tasks > 0 {
		fmt.Fprintf(w, "SET ASIDE\t%s, not trained in later passes; error of one: %s\n", cli.Counted(a.Tasks, "task"), local.OneLine(a.Example))
	}
	if own {
		fmt.Fprintf(w, "logs\t%s\n", filepath.Join(r.Dir, "logs"))
	} else {
		fmt.Fprintf(w, "model\t%s\n", r.ModelPath)
	}
}
