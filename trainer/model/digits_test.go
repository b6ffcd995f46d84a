package model_test

import (
	"compress/gzip"
	"encoding/csv"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"trainmaster/dataset/sample"
	"trainmaster/trainer/model"
)

// readDigits returns the digits, divided by a seeded permutation into a held-out fifth and the rest.
func readDigits(t *testing.T) (train, heldOut []sample.Sample) {
	t.Helper()
	file, err := os.Open("../../testdata/digits.csv.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(unzipped).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	samples := make([]sample.Sample, len(rows))
	for i, fields := range rows {
		last := len(fields) - 1
		samples[i] = sample.Sample{Label: number(t, fields[last]), Scale: 1.0 / 16}
		for _, field := range fields[:last] {
			samples[i].Pixels = append(samples[i].Pixels, byte(number(t, field)))
		}
	}
	random := rand.New(rand.NewPCG(1797, 0))
	random.Shuffle(len(samples), func(i, j int) { samples[i], samples[j] = samples[j], samples[i] })
	return samples[len(samples)/5:], samples[:len(samples)/5]
}

func number(t *testing.T, field string) int {
	t.Helper()
	n, err := strconv.Atoi(field)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// update is the contribution of one trainer to a step.
type update struct {
	grads   []model.Tensor
	records int
}

// learner applies SGD with momentum, as a parameter server does.
type learner struct {
	recipe         model.Recipe
	params, speeds []model.Tensor
}

// step adds the sums of all updates, divides them by the records of all, and moves the parameters.
func (l *learner) step(updates ...update) {
	records := 0
	for _, u := range updates {
		records += u.records
	}
	for i, p := range l.params {
		for j := range p.Data {
			sum := float32(0)
			for _, u := range updates {
				sum += u.grads[i].Data[j]
			}
			speed := float32(l.recipe.Momentum)*l.speeds[i].Data[j] + sum/float32(records)
			l.speeds[i].Data[j] = speed
			p.Data[j] -= float32(l.recipe.LearningRate) * speed
		}
	}
}

// TestLearnsDigits trains both kinds with their recipes and three kinds of updates. Immediate updates model one trainer, updates
// after two others model three asynchronous trainers, and three in one step model three synchronous trainers.
func TestLearnsDigits(t *testing.T) {
	train, heldOut := readDigits(t)
	for _, kind := range []string{model.Softmax, model.MLP} {
		for _, way := range []struct {
			name        string
			synchronous bool
			delay       int // updates that are applied between the computation of an update and its own application
			together    int // updates in a step
		}{
			{name: "alone", together: 1},
			{name: "three asynchronous trainers", delay: 2, together: 1},
			{name: "three synchronous trainers", synchronous: true, together: 3},
		} {
			t.Run(fmt.Sprintf("%s, %s", kind, way.name), func(t *testing.T) {
				t.Parallel()
				recipe, err := model.RecipeFor(kind, model.Digits, way.synchronous)
				if err != nil {
					t.Fatal(err)
				}
				m, err := model.New(kind, model.Config{Inputs: 64, Classes: 10, Hidden: recipe.Hidden, Seed: 1})
				if err != nil {
					t.Fatal(err)
				}
				params := m.Parameters()
				l := learner{recipe: recipe, params: params, speeds: model.ZerosLike(params)}
				random := rand.New(rand.NewPCG(2, 0))
				batch := m.NewBatch(recipe.BatchSize)
				var waiting []update
				firstLoss, lastLoss := 0.0, 0.0
				for pass := range recipe.Passes {
					lastLoss = 0
					order := random.Perm(len(train))
					for start := 0; start < len(order); start += recipe.BatchSize {
						fill(t, batch, train, order[start:min(start+recipe.BatchSize, len(order))])
						grads := model.ZerosLike(params)
						loss, err := m.Gradients(params, batch, grads)
						if err != nil {
							t.Fatal(err)
						}
						lastLoss += loss
						if waiting = append(waiting, update{grads, batch.Len()}); len(waiting) == way.delay+way.together {
							l.step(waiting[:way.together]...)
							waiting = waiting[way.together:]
						}
					}
					if pass == 0 {
						firstLoss = lastLoss
					}
				}
				accuracy := evaluate(t, m, params, heldOut)
				t.Logf("accuracy %.4f, mean loss %.4f in the first pass, %.4f in the last",
					accuracy, firstLoss/float64(len(train)), lastLoss/float64(len(train)))
				if want := map[string]float64{model.Softmax: 0.93, model.MLP: 0.96}[kind]; accuracy < want {
					t.Errorf("accuracy on the held-out fifth is %.4f, want at least %.2f", accuracy, want)
				}
				if lastLoss > firstLoss/4 {
					t.Errorf("loss: expected at most a quarter, found %[2]v, %[1]v before", firstLoss, lastLoss)
				}
			})
		}
	}
}

func fill(t *testing.T, batch *model.Batch, samples []sample.Sample, which []int) {
	t.Helper()
	batch.Reset()
	for _, i := range which {
		if err := batch.AppendImage(samples[i]); err != nil {
			t.Fatal(err)
		}
	}
}

func evaluate(t *testing.T, m model.Model, params []model.Tensor, samples []sample.Sample) float64 {
	t.Helper()
	batch := m.NewBatch(len(samples))
	for _, s := range samples {
		if err := batch.AppendImage(s); err != nil {
			t.Fatal(err)
		}
	}
	correct, _, err := m.Evaluate(params, batch)
	if err != nil {
		t.Fatal(err)
	}
	return float64(correct) / float64(len(samples))
}
