package model_test

import (
	"math"
	"testing"

	"trainmaster/dataset/sample"
	"trainmaster/trainer/model"
)

// lossIn64 computes the sum of the losses record by record from the definition, in float64.
func lossIn64(params [][]float64, inputs, classes int, records []sample.Sample) float64 {
	sum := 0.0
	for _, s := range records {
		x := make([]float64, inputs)
		for i, pixel := range s.Pixels {
			x[i] = float64(float32(pixel) * s.Scale)
		}
		for l := 0; l < len(params); l += 2 {
			weight, bias := params[l], params[l+1]
			z := make([]float64, len(bias))
			for j := range z {
				z[j] = bias[j]
				for i, v := range x {
					z[j] += v * weight[i*len(bias)+j]
				}
				if l+2 < len(params) {
					z[j] = math.Max(z[j], 0)
				}
			}
			x = z
		}
		total := 0.0
		for _, v := range x {
			total += math.Exp(v)
		}
		sum += math.Log(total) - x[s.Label]
	}
	return sum
}

// TestGradientsAgainstDifferences compares every derivative with central differences of the loss in float64. At most
// 1 % may differ, because a step can cross the kink of a ReLU.
func TestGradientsAgainstDifferences(t *testing.T) {
	for _, s := range shapes[:3] {
		t.Run(s.String(), func(t *testing.T) { compareWithDifferences(t, s) })
	}
	t.Run("mlp across tiles", func(t *testing.T) {
		compareWithDifferences(t, shape{model.MLP, model.Config{Inputs: 66, Classes: 4, Hidden: 65, Seed: 6}, 3})
	})
}

func compareWithDifferences(t *testing.T, s shape) {
	m, params, _ := s.build(t)
	records := make([]sample.Sample, s.batch)
	batch := m.NewBatch(s.batch)
	for i := range records {
		records[i] = sample.Sample{Label: i % s.config.Classes, Scale: 1.0 / 16, Pixels: make([]byte, s.config.Inputs)}
		for j := range records[i].Pixels {
			records[i].Pixels[j] = byte((i*31 + j*j*7) % 17)
		}
		if err := batch.AppendImage(records[i]); err != nil {
			t.Fatal(err)
		}
	}
	grads := model.ZerosLike(params)
	for i := range grads { // Gradients overwrites
		for j := range grads[i].Data {
			grads[i].Data[j] = 1e6
		}
	}
	lossSum, err := m.Gradients(params, batch, grads)
	if err != nil {
		t.Fatal(err)
	}
	in64 := make([][]float64, len(params))
	for i, p := range params {
		for _, v := range p.Data {
			in64[i] = append(in64[i], float64(v))
		}
	}
	loss := func() float64 { return lossIn64(in64, s.config.Inputs, s.config.Classes, records) }
	if want := loss(); math.Abs(lossSum-want) > 1e-5*want {
		t.Fatalf("loss is %v, want %v", lossSum, want)
	}
	if _, evaluated, err := m.Evaluate(params, batch); err != nil || evaluated != lossSum {
		t.Fatalf("Evaluate gives loss %v and error %v, Gradients %v", evaluated, err, lossSum)
	}
	const step = 1e-5
	total, off := 0, 0
	for i, p := range params {
		for j := range p.Data {
			at := in64[i][j]
			in64[i][j] = at + step
			above := loss()
			in64[i][j] = at - step
			below := loss()
			in64[i][j] = at
			want, got := (above-below)/(2*step), float64(grads[i].Data[j])
			total++
			if math.Abs(got-want) > 1e-4*(1+math.Abs(want)) {
				off++
				t.Logf("%s[%d] is %v, differences give %v", p.Name, j, got, want)
			}
		}
	}
	if off > total/100 {
		t.Fatalf("%d of %d derivatives differ", off, total)
	}
}

// TestExtremeLogits uses weights that produce logits far beyond the range of exp.
func TestExtremeLogits(t *testing.T) {
	m, err := model.New(model.Softmax, model.Config{Inputs: 1, Classes: 3})
	if err != nil {
		t.Fatal(err)
	}
	params := m.Parameters()
	copy(params[0].Data, []float32{5e4, -5e4, 0})
	for _, c := range []struct {
		label   int
		loss    float64
		correct int
		grads   [3]float32
	}{
		{label: 0, loss: 0, correct: 1, grads: [3]float32{0, 0, 0}},
		{label: 1, loss: 1e5, grads: [3]float32{1, -1, 0}},
		{label: 2, loss: 5e4, grads: [3]float32{1, 0, -1}},
	} {
		batch := m.NewBatch(1)
		if err := batch.AppendImage(sample.Sample{Label: c.label, Scale: 1, Pixels: []byte{1}}); err != nil {
			t.Fatal(err)
		}
		grads := model.ZerosLike(params)
		loss, err := m.Gradients(params, batch, grads)
		if err != nil {
			t.Fatal(err)
		}
		if loss != c.loss || [3]float32(grads[0].Data) != c.grads || [3]float32(grads[1].Data) != c.grads {
			t.Errorf("label %d: loss %v, gradients %v and %v; want %v and %v", c.label, loss, grads[0].Data, grads[1].Data, c.loss, c.grads)
		}
		if correct, _, err := m.Evaluate(params, batch); err != nil || correct != c.correct {
			t.Errorf("label %d: %d correct, error %v; want %d", c.label, correct, err, c.correct)
		}
	}
}

// TestTiesAndNaN: among equal logits the lowest class wins, and a NaN never wins.
func TestTiesAndNaN(t *testing.T) {
	m, err := model.New(model.Softmax, model.Config{Inputs: 1, Classes: 3})
	if err != nil {
		t.Fatal(err)
	}
	nan := float32(math.NaN())
	for _, c := range []struct {
		bias    [3]float32
		correct int // of one record of each class
	}{
		{[3]float32{0, 0, 0}, 1},
		{[3]float32{0, 1, 1}, 1},
		{[3]float32{nan, nan, nan}, 0},
		{[3]float32{0, nan, 1}, 0},
	} {
		params := model.ZerosLike(m.Parameters())
		copy(params[1].Data, c.bias[:])
		batch := m.NewBatch(3)
		for label := range 3 {
			if err := batch.AppendImage(sample.Sample{Label: label, Scale: 1, Pixels: []byte{0}}); err != nil {
				t.Fatal(err)
			}
		}
		if correct, _, err := m.Evaluate(params, batch); err != nil || correct != c.correct {
			t.Errorf("logits %v: %d of 3 correct, error %v; want %d", c.bias, correct, err, c.correct)
		}
	}
}

func TestEmptyBatch(t *testing.T) {
	for _, s := range shapes {
		m, params, _ := s.build(t)
		batch := m.NewBatch(0)
		grads := model.ZerosLike(params)
		grads[0].Data[0] = 1
		loss, err := m.Gradients(params, batch, grads)
		if err != nil || loss != 0 || grads[0].Data[0] != 0 {
			t.Errorf("%v: loss %v, first derivative %v, error %v; want zeros", s, loss, grads[0].Data[0], err)
		}
		if correct, loss, err := m.Evaluate(params, batch); err != nil || correct != 0 || loss != 0 {
			t.Errorf("%v: %d correct, loss %v, error %v; want zeros", s, correct, loss, err)
		}
	}
}
