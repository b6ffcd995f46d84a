package reference_test

import (
	"fmt"
	"math"
	"path/filepath"
	"testing"

	"trainmaster/dataset/sample"
	"trainmaster/taskqueue"
	"trainmaster/trainer/model"
	"trainmaster/trainer/params"
	"trainmaster/trainer/reference"
)

// TestAsynchronous trains the two-layer network with three trainers and two parameter servers.
func TestAsynchronous(t *testing.T) {
	recipe, err := model.RecipeFor(model.MLP, model.Digits, false)
	if err != nil {
		t.Fatal(err)
	}
	train, heldOut := digits(t)
	table := writeTable(t, train, 60)
	c := newCoordinator(t, table, taskqueue.Options{Passes: recipe.Passes})
	addresses := startShards(t, 2)
	path := filepath.Join(t.TempDir(), "journal")
	var trainers []*reference.Trainer
	var client *params.Client
	for i := range 3 {
		id := fmt.Sprintf("trainer-%d", i)
		link := c.join(id)
		client = connect(t, addresses, link, params.Async, recipe, params.Float32)
		trainers = append(trainers, &reference.Trainer{
			ID: id, Model: newModel(t, model.MLP, recipe.Hidden), BatchSize: recipe.BatchSize,
			Tasks: link, Parameters: client, Journal: openJournal(t, path),
		})
	}
	runAll(t, trainers)

	type place struct {
		pass     taskqueue.Pass
		position int
	}
	seen := map[place]bool{}
	records := map[taskqueue.Pass]int{}
	for _, entry := range readJournal(t, path) {
		at := place{entry.Pass, entry.Position}
		if seen[at] {
			t.Errorf("pass %d, position %d is in the journal twice", entry.Pass, entry.Position)
		}
		seen[at] = true
		records[entry.Pass] += entry.Records
	}
	for pass := range taskqueue.Pass(recipe.Passes) {
		if records[pass+1] != len(train) {
			t.Errorf("the journal has %d records of pass %d, want %d", records[pass+1], pass+1, len(train))
		}
	}
	m := newModel(t, model.MLP, recipe.Hidden)
	shared := pull(t, client, m)
	got, err := reference.Evaluate(m, asModel(shared), nil, sequence(heldOut))
	if err != nil {
		t.Fatal(err)
	}
	if got.Records != len(heldOut) || got.Accuracy() < 0.96 {
		t.Errorf("accuracy is %.4f on %d records, want at least 0.96 on %d", got.Accuracy(), got.Records, len(heldOut))
	}
}

// With bfloat16 on the wire, one trainer reaches the accuracy of float32 within 0.005.
func TestBFloat16LearnsAsWell(t *testing.T) {
	recipe, err := model.RecipeFor(model.MLP, model.Digits, false)
	if err != nil {
		t.Fatal(err)
	}
	train, heldOut := digits(t)
	accuracy := map[params.WireDType]float64{}
	for _, dtype := range []params.WireDType{params.Float32, params.BFloat16} {
		c := newCoordinator(t, writeTable(t, train, 60), taskqueue.Options{Passes: recipe.Passes})
		link := c.join("alone")
		client := connect(t, startShards(t, 1), link, params.Async, recipe, dtype)
		m := newModel(t, model.MLP, recipe.Hidden)
		runAll(t, []*reference.Trainer{{ID: "alone", Model: m, BatchSize: recipe.BatchSize, Tasks: link, Parameters: client}})
		got, err := reference.Evaluate(m, asModel(pull(t, client, m)), nil, sequence(heldOut))
		if err != nil {
			t.Fatal(err)
		}
		accuracy[dtype] = got.Accuracy()
	}
	t.Logf("accuracy by type on the wire: %v", accuracy)
	if math.Abs(accuracy[params.BFloat16]-accuracy[params.Float32]) > 0.005 {
		t.Errorf("accuracy by type on the wire: %v, expected a difference of 0.005 at most", accuracy)
	}
}

func pull(t *testing.T, client *params.Client, m model.Model) []params.Tensor {
	t.Helper()
	var shared []params.Tensor
	for _, tensor := range m.Parameters() {
		shared = append(shared, params.Tensor(tensor))
	}
	if _, err := client.Pull(within(t), shared, 0); err != nil {
		t.Fatal(err)
	}
	return shared
}

// TestSynchronous trains tasks of unequal size with three trainers and leaves some stages out of their version. A
// replay of the committed versions in this process has the same bits.
func TestSynchronous(t *testing.T) {
	recipe := model.Recipe{Hidden: 70, BatchSize: 16, LearningRate: 0.1, Momentum: 0.9, Passes: 3}
	train, _ := digits(t)
	train = train[:500]
	table := writeTable(t, train, 150, 3, 97, 200, 50) // no common divisor with 3 trainers or 16 records
	c := newCoordinator(t, table, taskqueue.Options{Passes: recipe.Passes})
	c.crowd = 3
	c.late = func(version uint64, trainer taskqueue.Ordinal) bool { return (version*7+uint64(trainer))%5 == 0 }
	addresses := startShards(t, 2)
	c.connect(addresses)
	var trainers []*reference.Trainer
	var client *params.Client
	reports := make([]reference.TaskReport, 3)
	for i := range 3 {
		id := fmt.Sprintf("trainer-%d", i)
		link := c.join(id)
		client = connect(t, addresses, link, params.Sync, recipe, params.Float32)
		trainers = append(trainers, &reference.Trainer{
			ID: id, Model: newModel(t, model.MLP, recipe.Hidden), BatchSize: recipe.BatchSize,
			Tasks: link, Parameters: client, Steps: link,
			Report: func(r reference.TaskReport) {
				reports[i].Records += r.Records
				reports[i].Batches += r.Batches
				reports[i].Recomputed += r.Recomputed
				if want := r.Records / recipe.BatchSize; r.Batches != want && r.Batches != want+1 {
					t.Errorf("task %d: %d records in %d batches of %d", r.Task.Index, r.Records, r.Batches, recipe.BatchSize)
				}
			},
		})
	}
	runAll(t, trainers)

	var total reference.TaskReport
	for _, r := range reports {
		total.Records += r.Records
		total.Batches += r.Batches
		total.Recomputed += r.Recomputed
	}
	if total.Records != recipe.Passes*len(train) {
		t.Errorf("%d records were trained, want %d", total.Records, recipe.Passes*len(train))
	}
	if total.Recomputed != c.leftOut || c.leftOut == 0 {
		t.Errorf("expected equal numbers above 0: found %d recomputed batches, %d left out of a version", total.Recomputed, c.leftOut)
	}
	parts := 0
	for token, taken := range c.taken {
		index := c.indexOf(token)
		if want := table.TaskRecords(index); taken != want {
			t.Errorf("%d records of task %d in pass %d are in committed versions, want %d", taken, index, token.Pass, want)
		}
	}
	for _, step := range c.steps {
		parts += len(step)
	}
	if len(c.taken) != recipe.Passes*table.Tasks() || parts != total.Batches {
		t.Errorf("%d tasks and %d batches are in committed versions, want %d and %d", len(c.taken), parts, recipe.Passes*table.Tasks(), total.Batches)
	}

	m := newModel(t, model.MLP, recipe.Hidden)
	got, want := pull(t, client, m), replay(t, m, c, table, recipe)
	for i := range want {
		for j := range want[i].Data {
			if math.Float32bits(got[i].Data[j]) != math.Float32bits(want[i].Data[j]) {
				t.Fatalf("%s[%d] is %v, the replay of %d versions gives %v", want[i].Name, j, got[i].Data[j], len(c.steps), want[i].Data[j])
			}
		}
	}
}

func (c *coordinator) indexOf(token taskqueue.Token) int {
	for _, step := range c.steps {
		for _, part := range step {
			if part.task == token {
				return part.index
			}
		}
	}
	c.t.Fatalf("token %v: expected a step with its records", token)
	return 0
}

// replay computes the recorded versions alone. Each version is the sum of its contributors in order, divided by their
// records, followed by a step of momentum.
func replay(t *testing.T, m model.Model, c *coordinator, table *taskqueue.Table, recipe model.Recipe) []model.Tensor {
	t.Helper()
	parameters := m.Parameters()
	speeds, sums, grads := model.ZerosLike(parameters), model.ZerosLike(parameters), model.ZerosLike(parameters)
	batch := m.NewBatch(recipe.BatchSize)
	rate, momentum := float32(recipe.LearningRate), float32(recipe.Momentum)
	for _, step := range c.steps {
		records := 0
		for n, part := range step {
			fillFrom(t, batch, table, part)
			if _, err := m.Gradients(parameters, batch, grads); err != nil {
				t.Fatal(err)
			}
			records += part.records
			for i := range sums {
				if n == 0 {
					copy(sums[i].Data, grads[i].Data)
					continue
				}
				for j, v := range grads[i].Data {
					sums[i].Data[j] += v
				}
			}
		}
		share := 1 / float32(records)
		for i := range parameters {
			for j, sum := range sums[i].Data {
				speeds[i].Data[j] = float32(momentum*speeds[i].Data[j]) + float32(sum*share)
				parameters[i].Data[j] -= float32(rate * speeds[i].Data[j])
			}
		}
	}
	return parameters
}

func fillFrom(t *testing.T, batch *model.Batch, table *taskqueue.Table, part contribution) {
	t.Helper()
	batch.Reset()
	at := 0
	for record, err := range recordsOf(table.TaskChunks(part.index)) {
		if err != nil {
			t.Fatal(err)
		}
		if at >= part.first && at < part.first+part.records {
			var s sample.Sample
			if err := sample.Decode(record, &s); err != nil {
				t.Fatal(err)
			}
			if err := batch.AppendImage(s); err != nil {
				t.Fatal(err)
			}
		}
		at++
	}
}
