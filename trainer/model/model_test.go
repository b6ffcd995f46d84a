package model_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"trainmaster/dataset/sample"
	"trainmaster/trainer/model"
)

// shape is a model with a batch size.
type shape struct {
	kind   string
	config model.Config
	batch  int
}

// shapes cover both kinds of models, below and above the sizes at which products are split into tiles.
var shapes = []shape{
	{model.Softmax, model.Config{Inputs: 5, Classes: 3, Seed: 1}, 4},
	{model.MLP, model.Config{Inputs: 5, Classes: 3, Hidden: 7, Seed: 2}, 6},
	{model.Softmax, model.Config{Inputs: 70, Classes: 10, Seed: 3}, 65},
	{model.MLP, model.Config{Inputs: 130, Classes: 10, Hidden: 193, Seed: 4}, 67},
}

func (s shape) String() string {
	return fmt.Sprintf("%s %d-%d-%d, %d records", s.kind, s.config.Inputs, s.config.Hidden, s.config.Classes, s.batch)
}

func (s shape) build(t testing.TB) (model.Model, []model.Tensor, *model.Batch) {
	t.Helper()
	m, err := model.New(s.kind, s.config)
	if err != nil {
		t.Fatal(err)
	}
	params := m.Parameters()
	random := rand.New(rand.NewPCG(s.config.Seed, 99))
	for _, p := range params { // also the biases, which start at zero
		for i := range p.Data {
			p.Data[i] += float32(random.NormFloat64()) / 10
		}
	}
	return m, params, randomBatch(t, m, s, random)
}

func randomBatch(t testing.TB, m model.Model, s shape, random *rand.Rand) *model.Batch {
	t.Helper()
	batch := m.NewBatch(s.batch)
	for range s.batch {
		record := sample.Sample{Label: random.IntN(s.config.Classes), Scale: 1.0 / 255, Pixels: make([]byte, s.config.Inputs)}
		for i := range record.Pixels {
			if random.IntN(5) == 0 { // background otherwise, in the proportion of MNIST
				record.Pixels[i] = byte(random.IntN(256))
			}
		}
		if err := batch.AppendImage(record); err != nil {
			t.Fatal(err)
		}
	}
	return batch
}

// TestSameBits computes with GOMAXPROCS from 1 to 8 and with every tensor at each offset within 64 bytes.
func TestSameBits(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, s := range append(shapes, shape{model.MLP, model.Config{Inputs: 784, Classes: 10, Hidden: 256, Seed: 5}, 200}) {
		t.Run(s.String(), func(t *testing.T) {
			m, params, batch := s.build(t)
			want := model.ZerosLike(params)
			wantLoss, err := m.Gradients(params, batch, want)
			if err != nil {
				t.Fatal(err)
			}
			wantCorrect, wantSum, err := m.Evaluate(params, batch)
			if err != nil {
				t.Fatal(err)
			}
			for offset := range 16 {
				runtime.GOMAXPROCS(1 + offset%8)
				m, _, batch := s.build(t) // with new scratch memory
				moved, grads := movedBy(offset, params), movedBy((offset*7)%16, model.ZerosLike(params))
				loss, err := m.Gradients(moved, batch, grads)
				if err != nil {
					t.Fatal(err)
				}
				correct, sum, err := m.Evaluate(moved, batch)
				if err != nil {
					t.Fatal(err)
				}
				if loss != wantLoss || sum != wantSum || correct != wantCorrect {
					t.Fatalf("offset %d: loss %v, evaluation %d and %v; at offset 0 %v, %d and %v",
						offset, loss, correct, sum, wantLoss, wantCorrect, wantSum)
				}
				for i := range want {
					if !slices.EqualFunc(grads[i].Data, want[i].Data, sameBits) {
						t.Fatalf("offset %d: gradient %s: expected the bits of offset 0", offset, want[i].Name)
					}
				}
			}
		})
	}
}

func sameBits(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }

// movedBy copies tensors to addresses at the given offset from a multiple of 64 bytes.
func movedBy(offset int, tensors []model.Tensor) []model.Tensor {
	moved := slices.Clone(tensors)
	for i := range moved {
		size := len(moved[i].Data)
		room := make([]float32, size+32)
		start := offset
		for uintptr(unsafe.Pointer(&room[start]))%64 != uintptr(4*offset)%64 {
			start++
		}
		copy(room[start:], moved[i].Data)
		moved[i].Data = room[start : start+size : start+size]
	}
	return moved
}

func TestInitialValues(t *testing.T) {
	build := func(seed uint64, hidden int) []model.Tensor {
		m, err := model.New(model.MLP, model.Config{Inputs: 300, Classes: 10, Hidden: hidden, Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		return m.Parameters()
	}
	params := build(7, 100)
	var names []string
	for _, p := range params {
		names = append(names, fmt.Sprint(p.Name, p.Shape))
	}
	want := []string{"hidden.weight[300 100]", "hidden.bias[100]", "output.weight[100 10]", "output.bias[10]"}
	if !slices.Equal(names, want) {
		t.Fatalf("parameters are %v, want %v", names, want)
	}
	// Golden: a change of these values changes every trained model.
	if got := fmt.Sprint(params[0].Data[:3], params[2].Data[:2]); got != golden {
		t.Errorf("first values are %s, want %s", got, golden)
	}
	for i, variance := range map[int]float64{0: 2.0 / 300, 2: 2.0 / 110} { // He for the hidden layer, Glorot for the last
		sum, squares := 0.0, 0.0
		for _, v := range params[i].Data {
			sum += float64(v)
			squares += float64(v) * float64(v)
		}
		n := float64(len(params[i].Data))
		if mean := sum / n; math.Abs(mean) > 4*math.Sqrt(variance/n) {
			t.Errorf("%s: mean is %g, want about 0", params[i].Name, mean)
		}
		if got := squares / n; math.Abs(got/variance-1) > 0.1 {
			t.Errorf("%s: variance is %g, want about %g", params[i].Name, got, variance)
		}
	}
	for _, i := range []int{1, 3} {
		if slices.ContainsFunc(params[i].Data, func(v float32) bool { return v != 0 }) {
			t.Errorf("%s is not zero", params[i].Name)
		}
	}
	if !slices.Equal(params[0].Data, build(7, 100)[0].Data) {
		t.Error("same seed: expected the same values")
	}
	if slices.Equal(params[0].Data, build(8, 100)[0].Data) {
		t.Error("other seed: expected other values")
	}
	if slices.Equal(params[0].Data[:100], params[2].Data[:100]) {
		t.Error("two tensors of one seed: expected different values")
	}
}

const golden = "[0.12814434 -0.10682857 -0.004721076] [-0.04329436 0.001549162]"

func TestRefusedConfigurations(t *testing.T) {
	for _, c := range []struct {
		kind   string
		config model.Config
		want   string
	}{
		{"transformer", model.Config{Inputs: 1, Classes: 2}, `model kind is "transformer", expected one of softmax, mlp`},
		{model.Softmax, model.Config{Classes: 2}, "Inputs is 0, expected at least 1"},
		{model.Softmax, model.Config{Inputs: 1, Classes: 1}, "Classes is 1, expected at least 2"},
		{model.Softmax, model.Config{Inputs: 1, Classes: 2, Hidden: 3}, "Hidden is 3, expected 0"},
		{model.MLP, model.Config{Inputs: 1, Classes: 2}, "Hidden is 0, expected at least 1"},
	} {
		if _, err := model.New(c.kind, c.config); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("New(%s, %+v) gave error %v, want %q", c.kind, c.config, err, c.want)
		}
	}
}

func TestRefusedTensorsAndBatches(t *testing.T) {
	m, params, batch := shapes[1].build(t)
	changed := func(change func(tensors []model.Tensor) []model.Tensor) []model.Tensor {
		return change(model.ZerosLike(params))
	}
	for want, tensors := range map[string][]model.Tensor{
		"3 %s, expected 4": changed(func(ts []model.Tensor) []model.Tensor { return ts[:3] }),
		`%s: tensor 1 is "output.bias", expected "hidden.bias"`: changed(func(ts []model.Tensor) []model.Tensor {
			ts[1], ts[3] = ts[3], ts[1]
			return ts
		}),
		`%s: tensor "hidden.weight" has shape [7 5], expected [5 7]`: changed(func(ts []model.Tensor) []model.Tensor {
			ts[0].Shape = []int{7, 5}
			return ts
		}),
		`%s: tensor "output.bias" holds 2 values, expected 3 for shape [3]`: changed(func(ts []model.Tensor) []model.Tensor {
			ts[3].Data = ts[3].Data[:2]
			return ts
		}),
	} {
		if _, err := m.Gradients(tensors, batch, model.ZerosLike(params)); err == nil || err.Error() != fmt.Sprintf(want, "parameters") {
			t.Errorf("Gradients gave error %v, want %q", err, fmt.Sprintf(want, "parameters"))
		}
		if _, _, err := m.Evaluate(tensors, batch); err == nil || err.Error() != fmt.Sprintf(want, "parameters") {
			t.Errorf("Evaluate gave error %v, want %q", err, fmt.Sprintf(want, "parameters"))
		}
		if _, err := m.Gradients(params, batch, tensors); err == nil || err.Error() != fmt.Sprintf(want, "gradients") {
			t.Errorf("Gradients gave error %v, want %q", err, fmt.Sprintf(want, "gradients"))
		}
	}
	grads := model.ZerosLike(params)
	other, err := model.New(model.Softmax, model.Config{Inputs: 5, Classes: 4})
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.Gradients(params, other.NewBatch(1), grads)
	if want := "batch is for 5 features and 4 classes, expected 5 and 3"; err == nil || err.Error() != want {
		t.Errorf("Gradients gave error %v, want %q", err, want)
	}
}

func TestBatchRefusesRecords(t *testing.T) {
	m, err := model.New(model.Softmax, model.Config{Inputs: 3, Classes: 10})
	if err != nil {
		t.Fatal(err)
	}
	batch := m.NewBatch(1)
	good := sample.Sample{Label: 9, Scale: 0.5, Pixels: []byte{1, 2, 3}}
	for want, s := range map[string]sample.Sample{
		"record has 2 features, expected 3":                                      {Label: 1, Scale: 1, Pixels: []byte{1, 2}},
		"record has 4 features, expected 3":                                      {Label: 1, Scale: 1, Pixels: []byte{1, 2, 3, 4}},
		"record has label 10, expected 0 to 9: the data does not fit this model": {Label: 10, Scale: 1, Pixels: []byte{1, 2, 3}},
		"record has label -1, expected 0 to 9":                                   {Label: -1, Scale: 1, Pixels: []byte{1, 2, 3}},
	} {
		if err := batch.AppendImage(s); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("Append gave error %v, want %q", err, want)
		}
	}
	if batch.Len() != 0 {
		t.Errorf("the batch holds %d records after four refused ones", batch.Len())
	}
	for range 3 { // above the capacity
		if err := batch.AppendImage(good); err != nil {
			t.Fatal(err)
		}
	}
	if batch.Len() != 3 {
		t.Errorf("the batch holds %d records, want 3", batch.Len())
	}
}

func TestRecipes(t *testing.T) {
	images := []string{model.Digits, model.MNIST}
	for kind, datasets := range map[string][]string{model.Softmax: images, model.MLP: images, model.Logistic: {model.Flights}, model.FM: {model.Flights}} {
		for _, dataset := range datasets {
			for _, synchronous := range []bool{false, true} {
				r, err := model.RecipeFor(kind, dataset, synchronous)
				if err != nil {
					t.Errorf("%s on %s: %v", kind, dataset, err)
				}
				if _, err := model.New(kind, model.Config{Inputs: 1, Classes: 2, Hidden: r.Hidden, Rank: r.Rank}); err != nil {
					t.Errorf("%s on %s: %v", kind, dataset, err)
				}
			}
		}
	}
	if _, err := model.RecipeFor(model.MLP, model.Flights, false); err == nil || !strings.Contains(err.Error(), `--model logistic or fm with --dataset flights`) {
		t.Errorf("dataset of another kind: got error %v", err)
	}
}

func BenchmarkGradients(b *testing.B) {
	for _, s := range []shape{
		{model.Softmax, model.Config{Inputs: 64, Classes: 10}, 8},
		{model.MLP, model.Config{Inputs: 64, Classes: 10, Hidden: 128}, 8},
		{model.Softmax, model.Config{Inputs: 784, Classes: 10}, 32},
		{model.MLP, model.Config{Inputs: 784, Classes: 10, Hidden: 128}, 32},
	} {
		b.Run(s.String(), func(b *testing.B) {
			m, params, batch := s.build(b)
			grads := model.ZerosLike(params)
			if _, err := m.Gradients(params, batch, grads); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := m.Gradients(params, batch, grads); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(s.batch*b.N)/b.Elapsed().Seconds(), "records/s")
		})
	}
}

// TestNoAllocation checks every call after the first with a batch of the same size.
func TestNoAllocation(t *testing.T) {
	for _, s := range shapes {
		m, params, batch := s.build(t)
		grads := model.ZerosLike(params)
		record := sample.Sample{Scale: 1, Pixels: make([]byte, s.config.Inputs)}
		step := func() {
			size := batch.Len()
			batch.Reset()
			for range size {
				if err := batch.AppendImage(record); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := m.Gradients(params, batch, grads); err != nil {
				t.Fatal(err)
			}
			if _, _, err := m.Evaluate(params, batch); err != nil {
				t.Fatal(err)
			}
		}
		if n := testing.AllocsPerRun(10, step); n != 0 {
			t.Errorf("%v: %v allocations per batch", s, n)
		}
	}
}
