package reference_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"trainmaster/dataset/sample"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
	"trainmaster/trainer/model"
	"trainmaster/trainer/params"
	"trainmaster/trainer/reference"
)

// shelf holds the parameters of a single trainer. A script sets the outcomes of its pushes, stages and reports.
type shelf struct {
	rate       float32
	parameters []params.Tensor
	version    uint64
	staged     []params.Tensor
	records    int
	steps      []uint64 // of pushes
	refused    int      // reports of stages that shards had refused

	pushError error
	// outcomes of stages and reports, in order; then "included"
	outcomes []string
}

func (s *shelf) Init(_ context.Context, parameters []params.Tensor) error {
	s.parameters = cloned(parameters)
	return nil
}

func (s *shelf) Push(_ context.Context, step uint64, scale float32, gradients []params.Tensor) (uint64, error) {
	if s.pushError != nil {
		return 0, s.pushError
	}
	s.steps = append(s.steps, step)
	s.apply(gradients, scale)
	return s.version, nil
}

func (s *shelf) PushPull(ctx context.Context, step uint64, scale float32, gradients, parameters []params.Tensor) (uint64, error) {
	if s.pushError != nil {
		return 0, s.pushError
	}
	s.steps = append(s.steps, step)
	s.apply(gradients, scale)
	return s.Pull(ctx, parameters, s.version)
}

func (s *shelf) Pull(_ context.Context, parameters []params.Tensor, atLeast uint64) (uint64, error) {
	if atLeast > s.version {
		return 0, errors.New("pull: expected a version that will be committed")
	}
	for i := range parameters {
		copy(parameters[i].Data, s.parameters[i].Data)
	}
	return s.version, nil
}

func (s *shelf) Stage(_ context.Context, version uint64, sums []params.Tensor, records int) error {
	if len(s.outcomes) > 0 && s.outcomes[0] == "stale" {
		s.outcomes = s.outcomes[1:]
		s.bystander()
		return &params.StaleError{Version: s.version}
	}
	if version != s.version {
		return errors.New("stage: expected a gradient of the current version")
	}
	s.staged, s.records = cloned(sums), records
	return nil
}

func (s *shelf) Staged(_ context.Context, version uint64, _ uint32, _ int) (committed uint64, included bool, err error) {
	if version < s.version {
		s.refused++
		return s.version, false, nil
	}
	outcome := "included"
	if len(s.outcomes) > 0 {
		outcome, s.outcomes = s.outcomes[0], s.outcomes[1:]
	}
	switch outcome {
	case "ask again":
		return s.version, false, nil
	case "late":
		s.bystander()
		return s.version, false, nil
	case "included":
		s.apply(s.staged, 1/float32(s.records))
		return s.version, true, nil
	}
	return 0, false, errors.New(outcome)
}

// bystander is a version with another trainer only.
func (s *shelf) bystander() {
	for _, p := range s.parameters {
		for i := range p.Data {
			p.Data[i] *= 0.5
		}
	}
	s.version++
}

func (s *shelf) apply(gradients []params.Tensor, scale float32) {
	for i, p := range s.parameters {
		for j, v := range gradients[i].Data {
			p.Data[j] -= s.rate * float32(v*scale)
		}
	}
	s.version++
}

func cloned(tensors []params.Tensor) []params.Tensor {
	list := slices.Clone(tensors)
	for i := range list {
		list[i].Data = slices.Clone(list[i].Data)
	}
	return list
}

// TestLateStages: a mini-batch that another version overtakes is computed again at that version. Each mini-batch is
// included exactly once.
func TestLateStages(t *testing.T) {
	train, _ := digits(t)
	table := writeTable(t, train[:40], 40)
	c := newCoordinator(t, table, taskqueue.Options{Passes: 1})
	s := &shelf{rate: 0.5, outcomes: []string{"stale", "late", "ask again", "ask again", "included", "stale", "stale", "included", "late"}}
	var report reference.TaskReport
	trainer := &reference.Trainer{
		ID: "trainer-0", Model: newModel(t, model.Softmax, 0), BatchSize: 16,
		Tasks: c.join("trainer-0"), Parameters: s, Steps: s, Report: func(r reference.TaskReport) { report = r },
	}
	runAll(t, []*reference.Trainer{trainer})

	// Batches 0 and 1 meet two versions of other trainers each, batch 2 meets one. The same versions, computed here.
	want := &shelf{rate: 0.5}
	m := newModel(t, model.Softmax, 0)
	var shared []params.Tensor
	for _, tensor := range m.Parameters() {
		shared = append(shared, params.Tensor(tensor))
	}
	want.parameters = shared
	gradients := model.ZerosLike(m.Parameters())
	sums := make([]params.Tensor, len(gradients))
	for i := range sums {
		sums[i] = params.Tensor(gradients[i])
	}
	batch := m.NewBatch(16)
	wantLoss := 0.0
	for n, bystanders := range []int{2, 2, 1} {
		for range bystanders {
			want.bystander()
		}
		part := contribution{first: 16 * n, records: min(16, 40-16*n)}
		fillFrom(t, batch, table, part)
		loss, err := m.Gradients(asModel(want.parameters), batch, gradients)
		if err != nil {
			t.Fatal(err)
		}
		wantLoss += loss
		want.apply(sums, 1/float32(part.records))
	}
	for i, tensor := range want.parameters {
		if !slices.Equal(s.parameters[i].Data, tensor.Data) {
			t.Errorf("%s: expected the result of three batches at their versions", tensor.Name)
		}
	}
	if s.refused != 3 {
		t.Errorf("stages refused by shards: expected 3 reports, found %d", s.refused)
	}
	if report.Recomputed != 5 || report.Batches != 3 || report.Records != 40 || report.LossSum != wantLoss || report.Version != want.version {
		t.Errorf("report is %+v, want 3 batches, 40 records, 5 recomputed, loss %v, version %d", report, wantLoss, want.version)
	}
}

// TestUnreadableTask: a damaged chunk (F40), or a record that does not fit the model, fails its task with the file and
// the offset until the task is set aside. The other tasks are trained.
func TestUnreadableTask(t *testing.T) {
	train, _ := digits(t)
	wide := sample.Append(nil, sample.Sample{Label: 1, Scale: 1, Pixels: make([]byte, 65)})
	for _, test := range []struct {
		name    string
		records [][]byte
		damage  bool
		want    []string
	}{
		{"damaged chunk", train[:60], true, []string{"record 0 of the task", "train-00000-of-00001", recordio.ErrBadChecksum.Error()}},
		{"record of another width", slices.Insert(slices.Clone(train[:59]), 25, wide), false,
			[]string{"record 5 of the task", "65 features, expected 64"}},
		{"no sample", slices.Insert(slices.Clone(train[:59]), 25, []byte("text")), false,
			[]string{"record 5 of the task", "not a sample"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			table := writeTable(t, test.records, 20)
			if test.damage {
				chunk := table.TaskChunks(1)[0]
				content, err := os.ReadFile(chunk.Path)
				if err != nil {
					t.Fatal(err)
				}
				content[chunk.Index.Offset+recordio.HeaderSize+50] ^= 1
				if err := os.WriteFile(chunk.Path, content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			c := newCoordinator(t, table, taskqueue.Options{Passes: 2, MaxFailures: 2})
			path := filepath.Join(t.TempDir(), "journal")
			trainer := &reference.Trainer{
				ID: "trainer-0", Model: newModel(t, model.Softmax, 0), BatchSize: 8,
				Tasks: c.join("trainer-0"), Parameters: &shelf{rate: 0.1}, Journal: openJournal(t, path),
			}
			runAll(t, []*reference.Trainer{trainer})
			if len(c.failed) != 3 {
				t.Errorf("task: expected 3 failures, found %d: %q", len(c.failed), c.failed)
			}
			for _, reason := range c.failed {
				for _, part := range test.want {
					if !strings.Contains(reason, part) {
						t.Errorf("reason %q: expected %q", reason, part)
					}
				}
			}
			if got := c.queue.SetAsideTasks(0); !slices.Equal(got, []int{1}) {
				t.Errorf("tasks %v are set aside, want task 1", got)
			}
			trained := map[int]int{}
			for _, entry := range readJournal(t, path) {
				trained[entry.Index] += entry.Records
			}
			if len(trained) != 2 || trained[0] != 40 || trained[2] != 40 {
				t.Errorf("the journal has records by task %v, want 40 of 0 and of 2", trained)
			}
		})
	}
}

// watched checks that the line of a task is in the journal before its finish is sent.
type watched struct {
	*trainerLink
	journal string
	fail    error // of Fail
}

func (w watched) Next(ctx context.Context, finished *taskqueue.Task) (*taskqueue.Task, error) {
	if finished != nil {
		entries := readJournal(w.t, w.journal)
		want := reference.Entry{Trainer: "trainer-0", Pass: finished.Token.Pass, Position: finished.Token.Position,
			Attempt: finished.Token.Attempt, Index: finished.Index, Records: w.queue.Table(0).TaskRecords(finished.Index)}
		if len(entries) == 0 || entries[len(entries)-1] != want {
			w.t.Errorf("the journal is %+v when %+v is sent as finished", entries, want)
		}
	}
	return w.trainerLink.Next(ctx, finished)
}

func (w watched) Fail(ctx context.Context, task *taskqueue.Task, reason error) error {
	if w.fail != nil {
		return w.fail
	}
	return w.trainerLink.Fail(ctx, task, reason)
}

// TestEndsWithError: an error that the task did not cause ends Run. The task is not in the journal and not finished.
func TestEndsWithError(t *testing.T) {
	refused := errors.New("no route to shard 1")
	train, _ := digits(t)
	for _, test := range []struct {
		name    string
		records [][]byte
		change  func(trainer *reference.Trainer, s *shelf, w *watched)
		want    string
		is      error
	}{
		{"parameter servers refuse", train[:10], func(_ *reference.Trainer, s *shelf, _ *watched) { s.pushError = refused },
			"train task 0 of pass 1: push step 1: no route", refused},
		{"master refuses the stage", train[:10], func(trainer *reference.Trainer, s *shelf, _ *watched) {
			trainer.Steps, s.outcomes = s, []string{"not a trainer"}
		}, "train task 0 of pass 1: stage at version 0: not a trainer", nil},
		{"diverged", train[:10], func(_ *reference.Trainer, s *shelf, _ *watched) { s.rate = math.MaxFloat32 },
			"training diverged; lower the learning rate", nil},
		{"failure cannot be reported", [][]byte{[]byte("text")}, func(_ *reference.Trainer, _ *shelf, w *watched) { w.fail = refused },
			"report task 0 of pass 1 as failed (no route to shard 1), because: record 0", refused},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newCoordinator(t, writeTable(t, test.records, 10), taskqueue.Options{Passes: 1})
			path := filepath.Join(t.TempDir(), "journal")
			s := &shelf{rate: 0.1}
			w := &watched{trainerLink: c.join("trainer-0"), journal: path}
			trainer := &reference.Trainer{ID: "trainer-0", Model: newModel(t, model.Softmax, 0), BatchSize: 2,
				Tasks: w, Parameters: s, Journal: openJournal(t, path)}
			test.change(trainer, s, w)
			err := trainer.Run(within(t))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Run ended with %v, want %q", err, test.want)
			}
			if test.is != nil && !errors.Is(err, test.is) {
				t.Errorf("%v does not wrap %v", err, test.is)
			}
			if entries := readJournal(t, path); len(entries) > 0 {
				t.Errorf("the journal has %+v", entries)
			}
			if o := c.queue.Overview().Sets[0]; o.Done != 0 {
				t.Errorf("%d tasks are counted", o.Done)
			}
		})
	}
}

// TestJobEndsWhileATaskFails: the job ends while a trainer reports a failed task. Run returns no error.
func TestJobEndsWhileATaskFails(t *testing.T) {
	c := newCoordinator(t, writeTable(t, [][]byte{[]byte("text")}, 10), taskqueue.Options{Passes: 1})
	told := 0
	trainer := &reference.Trainer{ID: "trainer-0", Model: newModel(t, model.Softmax, 0), BatchSize: 2, Parameters: &shelf{},
		Tasks:  &watched{trainerLink: c.join("trainer-0"), fail: fmt.Errorf("the answer: %w", io.EOF)},
		Failed: func(*taskqueue.Task, error) { told++ }}
	if err := trainer.Run(within(t)); err != nil || told != 1 {
		t.Errorf("Run ended with %v after %d failed tasks, want no error after one", err, told)
	}
}

func TestStopsWithContext(t *testing.T) {
	train, _ := digits(t)
	c := newCoordinator(t, writeTable(t, train[:10], 10), taskqueue.Options{Passes: 1})
	if other, err := c.join("other").Next(within(t), nil); err != nil || other == nil {
		t.Fatalf("the only task: %v, %v", other, err)
	}
	cause := errors.New("asked to stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	trainer := &reference.Trainer{ID: "trainer-0", Model: newModel(t, model.Softmax, 0), BatchSize: 2,
		Tasks: c.join("trainer-0"), Parameters: &shelf{}}
	done := make(chan error)
	go func() { done <- trainer.Run(ctx) }()
	cancel(cause)
	if err := <-done; !errors.Is(err, cause) {
		t.Errorf("Run ended with %v, want %v", err, cause)
	}
}

func TestRefusedSettings(t *testing.T) {
	whole := func() *reference.Trainer {
		return &reference.Trainer{Model: newModel(t, model.Softmax, 0), BatchSize: 1, Tasks: &trainerLink{}, Parameters: &shelf{}}
	}
	for want, change := range map[string]func(*reference.Trainer){
		"Model is nil":      func(r *reference.Trainer) { r.Model = nil },
		"BatchSize is 0":    func(r *reference.Trainer) { r.BatchSize = 0 },
		"Tasks is nil":      func(r *reference.Trainer) { r.Tasks = nil },
		"Parameters is nil": func(r *reference.Trainer) { r.Parameters = nil },
	} {
		trainer := whole()
		change(trainer)
		if err := trainer.Run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Run gave error %v, want %q", err, want)
		}
	}
}

func TestEvaluate(t *testing.T) {
	train, _ := digits(t)
	m := newModel(t, model.MLP, 30)
	parameters := m.Parameters()
	all := m.NewBatch(len(train))
	for _, record := range train {
		if err := all.Append(record); err != nil {
			t.Fatal(err)
		}
	}
	correct, loss, err := m.Evaluate(parameters, all)
	if err != nil {
		t.Fatal(err)
	}
	got, err := reference.Evaluate(m, parameters, nil, sequence(train))
	if err != nil {
		t.Fatal(err)
	}
	if got.Records != len(train) || got.Correct != correct || math.Abs(got.LossSum-loss) > 1e-9*loss {
		t.Errorf("evaluation is %+v, want %d records, %d correct, loss %v", got, len(train), correct, loss)
	}
	if _, err := reference.Evaluate(m, parameters, nil, sequence([][]byte{train[0], []byte("text")})); err == nil || !strings.Contains(err.Error(), "record 1") {
		t.Errorf("a bad record gave error %v", err)
	}
	if got, err := reference.Evaluate(m, parameters, nil, sequence(nil)); err != nil || got.Accuracy() != 0 || got.Loss() != 0 {
		t.Errorf("no records give %+v, error %v", got, err)
	}
}

// A trainer that joins a running job continues the step count of the job. The schedule of the learning rate depends
// on it.
func TestStepsContinueCountOfJob(t *testing.T) {
	train, _ := digits(t)
	table := writeTable(t, train[:40], 40)
	servers := &shelf{rate: 0.01, version: 500}
	trainer := &reference.Trainer{
		ID: "late", Model: newModel(t, model.Softmax, 0), BatchSize: 10, Parameters: servers,
		Tasks: newCoordinator(t, table, taskqueue.Options{Passes: 1}).join("late"),
	}
	if err := trainer.Run(within(t)); err != nil {
		t.Fatal(err)
	}
	if want := []uint64{501, 502, 503, 504}; !slices.Equal(servers.steps, want) {
		t.Errorf("steps %v, expected %v", servers.steps, want)
	}
}
