package e2e

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"trainmaster/local"
	"trainmaster/master/rounds"
)

// evaluated is an element of `master evaluations`.
type evaluated struct {
	rounds.Record
	Best bool `json:"best"`
}

// evaluationsOf lists the rounds of a run by the command.
func evaluationsOf(t testing.TB, dir string) (list []evaluated) {
	t.Helper()
	o := run(t, t.TempDir(), "evaluations", "--data-dir", dir, "-o", "json")
	o.wants(t, 0)
	o.decode(t, &list)
	return list
}

// wantRounds checks that the rounds are numbered, have ended, and have the results of all tasks.
func wantRounds(t testing.TB, list []evaluated, tasks int) {
	t.Helper()
	for i, e := range list {
		if e.Round != uint64(i+1) || e.Ended == nil || e.Results != tasks || e.Figures["accuracy"] <= 0 || e.Figures["loss"] <= 0 {
			t.Errorf("round %d: found %+v, expected %d results with accuracy and loss", i+1, e.Record, tasks)
		}
	}
}

// A run prints the figures of its rounds. The last round has the figures of the saved model.
func TestEvaluationOfARun(t *testing.T) {
	for _, flags := range [][]string{{}, {"--protocol", "netrpc"}, {"--update-mode", "sync"}, {"--dataset", "flights"}} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			t.Parallel()
			o := run(t, t.TempDir(), append([]string{"run", "--passes", "4", "-o", "json"}, flags...)...)
			o.wants(t, 0)
			var r local.Result
			o.decode(t, &r)
			list := evaluationsOf(t, r.Dir)
			if len(list) == 0 {
				t.Fatal("expected rounds, found none")
			}
			wantRounds(t, list, list[0].Results)
			last := list[len(list)-1]
			if math.Abs(last.Figures["accuracy"]-*r.Accuracy) > 1e-9 || math.Abs(last.Figures["loss"]-*r.Loss) > 1e-4 || last.Passes != 4 {
				t.Errorf("the last round has %v after pass %d, the saved model accuracy %v and loss %v after pass 4", last.Figures, last.Passes, *r.Accuracy, *r.Loss)
			}
			for _, e := range list {
				if line := fmt.Sprintf("evaluation %d after pass %d: accuracy %.4f", e.Round, e.Passes, e.Figures["accuracy"]); !strings.Contains(o.stderr, line) {
					t.Errorf("expected %q, found %s", line, o.stderr)
				}
			}
		})
	}
}

// The master is killed several times. No round loses a result or has one twice, and no round is missing.
func TestKilledMasterContinuesRounds(t *testing.T) {
	t.Parallel()
	r := startRun(t, "--passes", fmt.Sprint(passesOf(60, 20)), "-o", "json")
	for kills := range 4 {
		r.awaitPass(uint32(3 * (kills + 1)))
		for _, c := range r.awaitChildren() {
			if c.kind() == "master" {
				if err := syscall.Kill(c.pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	result := r.result(0)
	if result.Restarts < 4 || result.SetAside.Tasks > 0 {
		t.Errorf("found %+v, expected 4 restarts and nothing set aside", result)
	}
	list := evaluationsOf(t, filepath.Join(r.job.dir, "trainmaster-run", "001"))
	if len(list) < 4 {
		t.Errorf("expected rounds between the kills, found %d", len(list))
	}
	wantRounds(t, list, 18)
	if last := list[len(list)-1]; math.Abs(last.Figures["accuracy"]-*result.Accuracy) > 1e-9 {
		t.Errorf("the last round has %v, the saved model accuracy %v", last.Figures, *result.Accuracy)
	}
	run(t, t.TempDir(), "verify", "--data-dir", filepath.Join(r.job.dir, "trainmaster-run", "001")).wants(t, 0)
}

// A run ends when its target is reached, with the reason. The figures of its rounds are in a file.
func TestTargetEndsARun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o := run(t, dir, "run", "--passes", "100", "--best-metric", "accuracy:max", "--target", "0.9", "--metrics-out", "figures", "-o", "json")
	o.wants(t, 0)
	var r local.Result
	o.decode(t, &r)
	if !strings.HasPrefix(r.Reason, "target-reached: accuracy is ") || r.Passes >= 100 {
		t.Errorf("found %+v, expected the target before pass 100", r)
	}
	list := evaluationsOf(t, r.Dir)
	if last := list[len(list)-1]; last.Figures["accuracy"] < 0.9 || !last.Best {
		t.Errorf("the last round has %+v, expected the target", last)
	}
	figures, err := os.ReadFile(filepath.Join(dir, "figures"))
	if err != nil || strings.Count(string(figures), "accuracy=") != len(list) || strings.Count(string(figures), "loss=") != len(list) {
		t.Errorf("%d rounds, found figures %q, %v", len(list), figures, err)
	}
}

// An operator begins a round of a job that evaluates at its end only.
func TestOperatorBeginsARound(t *testing.T) {
	t.Parallel()
	r := startRun(t, "--passes", fmt.Sprint(passesOf(100, 25)), "--evaluate-every", "1000passes", "-o", "json")
	o := run(t, r.job.dir, r.job.in("evaluate")...)
	o.wants(t, 0)
	if !strings.Contains(o.stdout, "an evaluation round is requested") {
		t.Errorf("found %s", o.stdout)
	}
	r.result(0)
	list := evaluationsOf(t, filepath.Join(r.job.dir, "trainmaster-run", "001"))
	wantRounds(t, list, 18)
	if len(list) != 2 {
		t.Errorf("found %d rounds, expected a round of the operator and a last round", len(list))
	}
}
