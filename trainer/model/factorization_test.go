package model_test

import (
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"trainmaster/dataset/sample"
	"trainmaster/testdata"
	"trainmaster/trainer/model"
)

// examples are records of three fields. Some categories occur several times, also twice in one record.
var examples = []sample.Categorical{
	{Label: 1, IDs: []int64{7, 8, 9}}, {Label: 0, IDs: []int64{7, -3, 9}}, {Label: 1, IDs: []int64{5, 5, 9}}, {Label: 0, IDs: []int64{7, 8, 1 << 50}},
}

// rowParameters returns the parameters of a model and the rows of a batch with random values.
func rowParameters(m model.Model, batch *model.Batch, random *rand.Rand) []model.Tensor {
	params := append(m.Parameters(), model.ZerosLike(model.Rows(m.Tables(), batch))...)
	for _, p := range params {
		for i := range p.Data {
			p.Data[i] = float32(random.NormFloat64()) / 2
		}
	}
	return params
}

// logitByPairs is equation 1 of Rendle in float64, as a sum over all pairs.
func logitByPairs(params [][]float64, rank int, rows []int) float64 {
	z := params[0][0]
	for i, a := range rows {
		z += params[1][a]
		for _, b := range rows[i+1:] {
			for f := range rank {
				z += params[2][a*rank+f] * params[2][b*rank+f]
			}
		}
	}
	return z
}

// Every derivative is compared with central differences of the loss.
func TestFactorizationAgainstDifferences(t *testing.T) {
	for kind, rank := range map[string]int{model.Logistic: 0, model.FM: 3} {
		t.Run(kind, func(t *testing.T) {
			m, err := model.New(kind, model.Config{Inputs: 3, Classes: 2, Rank: rank})
			if err != nil {
				t.Fatal(err)
			}
			batch := m.NewBatch(1)
			for _, e := range examples {
				if err := batch.Append(sample.AppendCategorical(nil, e)); err != nil {
					t.Fatal(err)
				}
			}
			rowOf := map[int64]int{}
			for row, id := range batch.Categories() {
				rowOf[id] = row
			}
			params := rowParameters(m, batch, rand.New(rand.NewPCG(4, 0)))
			in64 := make([][]float64, len(params))
			for i, p := range params {
				for _, v := range p.Data {
					in64[i] = append(in64[i], float64(v))
				}
			}
			lossSum := func() (sum float64) {
				for _, e := range examples {
					var rows []int
					for _, id := range e.IDs {
						rows = append(rows, rowOf[id])
					}
					z := logitByPairs(in64, rank, rows)
					sum += math.Log(1+math.Exp(z)) - float64(e.Label)*z
				}
				return sum
			}
			grads := model.ZerosLike(params)
			for _, g := range grads { // Gradients overwrites
				g.Data[0] = 1e6
			}
			loss, err := m.Gradients(params, batch, grads)
			if err != nil {
				t.Fatal(err)
			}
			if want := lossSum(); math.Abs(loss-want) > 1e-5 {
				t.Errorf("the loss is %v, by the definition %v", loss, want)
			}
			for i := range in64 {
				for j := range in64[i] {
					const step = 1e-4
					in64[i][j] += step
					above := lossSum()
					in64[i][j] -= 2 * step
					below := lossSum()
					in64[i][j] += step
					if want := (above - below) / (2 * step); math.Abs(float64(grads[i].Data[j])-want) > 1e-4 {
						t.Errorf("derivative by element %d of %s is %v, by differences %v", j, grads[i].Name, grads[i].Data[j], want)
					}
				}
			}
		})
	}
}

func TestFactorizationRefuses(t *testing.T) {
	m, err := model.New(model.FM, model.Config{Inputs: 2, Classes: 2, Rank: 2})
	if err != nil {
		t.Fatal(err)
	}
	batch := m.NewBatch(4)
	for want, record := range map[string][]byte{
		"expected 2: the data does not fit": sample.AppendCategorical(nil, sample.Categorical{IDs: []int64{1}}),
		"label 2, expected 0 to 1":          sample.AppendCategorical(nil, sample.Categorical{Label: 2, IDs: []int64{1, 2}}),
		"found pixels: use --model softmax": sample.Append(nil, sample.Sample{Pixels: []byte{1, 2}}),
	} {
		if err := batch.Append(record); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if batch.Len() != 0 || len(batch.Categories()) != 0 {
		t.Errorf("refused records left %d records and %d categories", batch.Len(), len(batch.Categories()))
	}
	if err := batch.AppendExample(sample.Categorical{IDs: []int64{1, 2}}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Gradients(m.Parameters(), batch, nil); err == nil || !strings.Contains(err.Error(), "1 parameters, expected 3") {
		t.Errorf("without rows: got error %v", err)
	}
	images, err := model.New(model.Softmax, model.Config{Inputs: 2, Classes: 2})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := images.Evaluate(images.Parameters(), batch); err == nil {
		t.Error("model of images: expected an error for categories")
	}
	if _, _, err := m.Evaluate(m.Parameters(), images.NewBatch(1)); err == nil {
		t.Error("model of categories: expected an error for images")
	}
	for want, c := range map[string]model.Config{
		"Classes is 3, expected 2":         {Inputs: 2, Classes: 3, Rank: 1},
		"Rank is 0, expected at least 1":   {Inputs: 2, Classes: 2},
		"Hidden is 1, expected 0":          {Inputs: 2, Classes: 2, Rank: 1, Hidden: 1},
		"Inputs is 0, expected at least 1": {Classes: 2, Rank: 1},
	} {
		if _, err := model.New(model.FM, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got error %v, expected %q", c, err, want)
		}
	}
}

func TestAUC(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 0))
	scores, labels := make([]float64, 300), make([]int, 300)
	for i := range scores {
		scores[i], labels[i] = float64(random.IntN(40)), random.IntN(2)
	}
	pairs, wins := 0.0, 0.0
	for i := range scores {
		for j := range scores {
			if labels[i] == 1 && labels[j] == 0 {
				pairs++
				if scores[i] > scores[j] {
					wins++
				} else if scores[i] == scores[j] {
					wins += 0.5
				}
			}
		}
	}
	if got, want := model.AUC(scores, labels), wins/pairs; math.Abs(got-want) > 1e-12 {
		t.Errorf("area: found %v, expected %v, computed over all pairs", got, want)
	}
	if got := model.AUC([]float64{1, 2}, []int{1, 1}); got != 0.5 {
		t.Errorf("records of one label: got area %v", got)
	}
}

// shelf keeps the rows of a table and updates them by Adagrad, like a parameter server.
type shelf struct {
	table   model.Table
	rate    float64
	rows    map[int64][]float32
	squares map[int64][]float64
	random  *rand.Rand
}

func (s *shelf) lookup(ids []int64, into []float32) {
	for i, id := range ids {
		row, ok := s.rows[id]
		if !ok {
			row = make([]float32, s.table.Dim)
			for j := range row {
				row[j] = float32(s.table.Deviation * s.random.NormFloat64())
			}
			s.rows[id], s.squares[id] = row, make([]float64, s.table.Dim)
		}
		copy(into[i*s.table.Dim:], row)
	}
}

func (s *shelf) update(ids []int64, grads []float32, scale float64) {
	for i, id := range ids {
		row, squares := s.rows[id], s.squares[id]
		for j := range row {
			g := float64(grads[i*s.table.Dim+j]) * scale
			squares[j] += g * g
			row[j] -= float32(s.rate * g / (math.Sqrt(squares[j]) + 1e-10))
		}
	}
}

// readFlights returns the flights, divided into a held-out fifth and the rest.
func readFlights(t *testing.T) (train, heldOut []sample.Categorical) {
	t.Helper()
	unzipped, err := gzip.NewReader(bytes.NewReader(testdata.Flights))
	if err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(unzipped).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	all := make([]sample.Categorical, len(rows))
	for i, fields := range rows {
		last := len(fields) - 1
		for field, text := range fields[:last] {
			all[i].IDs = append(all[i].IDs, sample.CategoryID(field, text))
		}
		if number(t, fields[last]) > 15 {
			all[i].Label = 1
		}
	}
	random := rand.New(rand.NewPCG(2001, 0))
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[len(all)/5:], all[:len(all)/5]
}

// Both models of categories learn to predict late flights, trained in one process by their recipes.
func TestLearnsFlights(t *testing.T) {
	train, heldOut := readFlights(t)
	for _, kind := range []string{model.Logistic, model.FM} {
		recipe, err := model.RecipeFor(kind, model.Flights, false)
		if err != nil {
			t.Fatal(err)
		}
		m, err := model.New(kind, model.Config{Inputs: 4, Classes: 2, Rank: recipe.Rank})
		if err != nil {
			t.Fatal(err)
		}
		random := rand.New(rand.NewPCG(6, 0))
		shelves := []*shelf{}
		for _, table := range append([]model.Table{{Name: "bias", Dim: 1}}, m.Tables()...) {
			shelves = append(shelves, &shelf{table: table, rate: recipe.LearningRate, rows: map[int64][]float32{}, squares: map[int64][]float64{}, random: random})
		}
		gather := func(batch *model.Batch) (params []model.Tensor, ids [][]int64) {
			params = append(m.Parameters(), model.ZerosLike(model.Rows(m.Tables(), batch))...)
			for i, p := range params {
				ids = append(ids, batch.Categories())
				if i == 0 {
					ids[0] = []int64{0}
				}
				shelves[i].lookup(ids[i], p.Data)
			}
			return params, ids
		}
		batch := m.NewBatch(recipe.BatchSize)
		for range recipe.Passes {
			order := random.Perm(len(train))
			for start := 0; start < len(order); start += recipe.BatchSize {
				batch.Reset()
				for _, i := range order[start:min(start+recipe.BatchSize, len(order))] {
					if err := batch.AppendExample(train[i]); err != nil {
						t.Fatal(err)
					}
				}
				params, ids := gather(batch)
				grads := model.ZerosLike(params)
				if _, err := m.Gradients(params, batch, grads); err != nil {
					t.Fatal(err)
				}
				for i, g := range grads {
					shelves[i].update(ids[i], g.Data, 1/float64(batch.Len()))
				}
			}
		}
		batch.Reset()
		var labels []int
		for _, e := range heldOut {
			if err := batch.AppendExample(e); err != nil {
				t.Fatal(err)
			}
			labels = append(labels, e.Label)
		}
		params, _ := gather(batch)
		scores, err := m.(model.Scorer).Scores(params, batch, nil)
		if err != nil {
			t.Fatal(err)
		}
		area := model.AUC(scores, labels)
		t.Logf("area under the ROC curve of %s: %.4f", kind, area)
		if area < 0.625 {
			t.Errorf("the area under the ROC curve of %s is %.4f, want at least 0.625", kind, area)
		}
	}
}
