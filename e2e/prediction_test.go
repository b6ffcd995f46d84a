package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"trainmaster/dataset/sample"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/trainer/model"
	"trainmaster/trainer/reference"
)

func (j *job) predictions() string { return filepath.Join(j.dir, "predictions") }

// wantParts fails the test unless there is one whole part for each chunk of the files, and returns the share of correct predictions.
func (j *job) wantParts(files []string, parts int) (accuracy float64) {
	j.t.Helper()
	entries, err := os.ReadDir(j.predictions())
	if err != nil {
		j.t.Fatal(err)
	}
	var names, paths []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") && e.Name() != "JOB" {
			names, paths = append(names, e.Name()), append(paths, filepath.Join(j.predictions(), e.Name()))
		}
	}
	var want []string
	for i := range parts {
		want = append(want, fmt.Sprintf("part-%08d", i))
	}
	if !slices.Equal(names, want) {
		j.t.Errorf("found the parts %q, expected %d", names, parts)
	}
	var labels []int
	for record, err := range records(files) {
		if err != nil {
			j.t.Fatal(err)
		}
		label, err := sample.Label(record)
		if err != nil {
			j.t.Fatal(err)
		}
		labels = append(labels, label)
	}
	i, correct := 0, 0
	for record, err := range records(paths) {
		if err != nil {
			j.t.Fatalf("a damaged part: %v", err)
		}
		var p reference.Predicted
		if err := json.Unmarshal(record, &p); err != nil || len(p.Probabilities) != 10 {
			j.t.Fatalf("prediction %q: %v", record, err)
		}
		if i < len(labels) && p.Label == labels[i] {
			correct++
		}
		i++
	}
	if i != len(labels) {
		j.t.Errorf("found %d predictions of %d records", i, len(labels))
	}
	return float64(correct) / float64(len(labels))
}

// F243, F245: a job trains, then predicts. A trainer is killed while it writes parts, and a master too. Each part is whole, and of the final model.
func TestPredictionAfterTraining(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	paths := j.data.Train.Paths
	flags := []string{"--ps", "1", "--dataset", "digits=" + paths[0], "--dataset", "digits=" + paths[1], "--prediction-data", paths[2] + "," + paths[3]}
	const parts = tasksPerPass / 2
	master := j.master(flags...)
	j.server()
	out := []string{"--predict-out", j.predictions(), "--record-delay", "3ms"}
	a, b, c := j.trainerOfMaster("a", out...), j.trainerOfMaster("b", out...), j.trainerOfMaster("c")
	predicted := func(n uint64) func(s *pb.StatusReply) bool {
		return func(s *pb.StatusReply) bool { return len(s.Datasets) == 2 && s.Datasets[1].Done >= n }
	}
	s := j.awaitStatus("parts", predicted(3))
	if s.Datasets[0].Done != s.Datasets[0].Tasks {
		t.Errorf("parts are predicted before the training has ended: %v", s.Datasets)
	}
	eventually(t, "b is paused while it holds a task", func() (bool, string) {
		b.signal(syscall.SIGSTOP)
		sessions, err := j.trainers()
		if err == nil && sessions["b"] != nil && len(sessions["b"].Tasks) > 0 {
			return true, ""
		}
		b.signal(syscall.SIGCONT)
		return false, fmt.Sprint(sessions, err)
	})
	b.kill()
	term := j.awaitLeader(0)
	master.kill()
	master = j.master(flags...)
	j.awaitLeader(term)
	a.wantExit(0)
	c.wantExit(0)
	master.wantExit(0)
	j.wantPasses(1, 1)
	if found, want := j.wantParts(paths[2:], parts), accuracy(t, j.model(), paths[2:]); found != want {
		t.Errorf("%.4f of the predictions are correct, %.4f by the saved model", found, want)
	}

	other := newJob(t)
	other.dir = j.dir
	m := other.master("--prediction-data", paths[0])
	late := other.trainerOfMaster("late", "--predict-model", j.model(), "--predict-out", j.predictions())
	late.wantExit(exitFailed)
	if !strings.Contains(late.log(), "parts of another job") {
		t.Errorf("found %s", late.log())
	}
	m.signal(syscall.SIGTERM)
	m.wantExit(0)
}

// F244: a trainer is slower than the timeout of its tasks, so that another trainer has the same tasks. There is one whole part of each. A
// saved model predicts, without parameter servers.
func TestTwoTrainersPredictOneTask(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	m, err := model.New(model.Softmax, model.Config{Inputs: 64, Classes: 10, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := (reference.Saved{Kind: model.Softmax, Config: model.Config{Inputs: 64, Classes: 10, Seed: 1}, Tensors: m.Parameters()}).Write(j.model()); err != nil {
		t.Fatal(err)
	}
	paths := j.data.Train.Paths
	master := j.master("--prediction-data", strings.Join(paths, ","), "--task-timeout-min", "200ms", "--task-timeout-max", "500ms", "--task-max-failures", "1000")
	predict := func(id, delay string, args ...string) *process {
		return start(t, id, j.dir, append(j.in("trainer", "--id", id, "--predict-model", j.model(), "--predict-out", j.predictions(), "--record-delay", delay), args...)...)
	}
	fast := predict("fast", "1ms")
	j.awaitStatus("a part", func(s *pb.StatusReply) bool { return len(s.Datasets) == 1 && s.Datasets[0].Done > 0 })
	slow := predict("slow", "60ms", "--protocol", "netrpc")
	j.trainerOn("trains", paths).wantExit(exitFailed) // the job has no training data
	fast.wantExit(0)
	slow.wantExit(0)
	master.wantExit(0)
	j.wantPasses(1)
	if found, want := j.wantParts(paths, tasksPerPass), accuracy(t, j.model(), paths); found != want {
		t.Errorf("%.4f of the predictions are correct, %.4f by the saved model", found, want)
	}
}
