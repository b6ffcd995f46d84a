package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// A command line that the trainers would refuse leaves no folder of a run behind.
func TestRunChecksBeforeItBegins(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		want []string
	}{
		"a model of other data": {[]string{"--dataset", "flights", "--model", "mlp"}, []string{`model "mlp" does not learn dataset "flights"`, "--model logistic or fm with --dataset flights"}},
		"data of other models":  {[]string{"--model", "fm"}, []string{`model "fm" does not learn dataset "digits"`}},
		"a norm over tables":    {[]string{"--dataset", "flights", "--clip-norm", "1"}, []string{`bad value "1" for --clip-norm from the command line`, "use clip-value"}},
		"no rate":               {[]string{"--dataset", "flights", "--optimizer", "sgd"}, []string{"--learning-rate", "none is known for fm on flights with --optimizer sgd; or take adagrad"}},
		"adagrad's momentum":    {[]string{"--dataset", "flights", "--learning-rate", "0.1", "--momentum", "0.9"}, []string{"--momentum", "it goes with --optimizer momentum or nesterov"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "runs")
			runArgs(t, append([]string{"run", "--dir", dir}, tt.args...)...).wants(t, exitUsage, tt.want...)
			if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the folder of runs: %v, want none", err)
			}
		})
	}
}
