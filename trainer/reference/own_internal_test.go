package reference

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"trainmaster/pserver/optimizer"
	"trainmaster/trainer/model"
	"trainmaster/trainer/params"
)

// The parameters of a trainer alone change by its optimizer, with the learning rate of the task. They outlive a session, and the model of
// another trainer replaces them with a new state of the optimizer.
func TestOwnModelChangesByItsOptimizer(t *testing.T) {
	config := params.Optimizer{Kind: params.Momentum, LearningRate: 0.5, Momentum: 0.5, ClipNorm: 10}
	if err := params.CheckOptimizer(&config, false); err != nil {
		t.Fatal(err)
	}
	o := &ownModel{config: config}
	first := []params.Tensor{{Name: "w", Shape: []int{2}, Data: []float32{1, 2}}}
	push := func(want uint64, gradient ...float32) {
		t.Helper()
		version, err := o.PushPull(t.Context(), want, 1, []params.Tensor{{Name: "w", Data: gradient}}, first)
		if err != nil || version != want {
			t.Fatalf("expected version %d, found %d, %v", want, version, err)
		}
	}
	is := func(tensors []params.Tensor, want ...float32) {
		t.Helper()
		if !slices.Equal(tensors[0].Data, want) {
			t.Errorf("expected %v, found %v", want, tensors[0].Data)
		}
	}
	if err := o.Init(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	push(1, 2, 0) // v = 2, 0
	is(first, 0, 2)
	o.rate = 1
	push(2, 0, 4) // v = 1, 4
	is(first, -1, -2)
	o.rate = 0
	push(3, 30, 40) // clipped to 6 and 8: v = 6.5, 10
	is(first, -4.25, -7)
	second := []params.Tensor{{Name: "w", Shape: []int{2}, Data: []float32{9, 9}}}
	if err := o.Init(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	is(second, -4.25, -7)
	if version, err := o.Pull(t.Context(), second, 0); err != nil || version != 3 {
		t.Errorf("version %d, %v", version, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := o.Push(ended, 4, 1, []params.Tensor{{Data: []float32{1, 1}}}); !errors.Is(err, context.Canceled) {
		t.Errorf("found %v", err)
	}
	if err := o.Stage(t.Context(), 1, nil, 1); err == nil {
		t.Error("expected an error of a stage")
	}
}

// A model of another kind or shape, or other bytes, replaces nothing.
func TestOwnModelIsReplacedByAModelOfItsShape(t *testing.T) {
	shape := model.Config{Inputs: 4, Classes: 3, Hidden: 5, Seed: 1}
	built := func(kind string, c model.Config) (model.Model, []model.Tensor) {
		m, err := model.New(kind, c)
		if err != nil {
			t.Fatal(err)
		}
		return m, m.Parameters()
	}
	content := func(kind string, c model.Config, tensors []model.Tensor) []byte {
		b, err := Saved{Kind: kind, Config: c, Version: 17, Tensors: tensors}.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	m, tensors := built(model.MLP, shape)
	config := params.Optimizer{Kind: optimizer.Adam, LearningRate: 0.5}
	if err := params.CheckOptimizer(&config, false); err != nil {
		t.Fatal(err)
	}
	o := &ownModel{config: config}
	shared := shareTensors(tensors)
	if err := o.Init(t.Context(), shared); err != nil {
		t.Fatal(err)
	}
	gradients := model.ZerosLike(tensors)
	for _, g := range gradients {
		for i := range g.Data {
			g.Data[i] = 1
		}
	}
	if _, err := o.Push(t.Context(), 1, 1, shareTensors(gradients)); err != nil {
		t.Fatal(err)
	}
	before := slices.Clone(tensors[0].Data)
	larger := shape
	larger.Hidden = 6
	softmax, mlp := shape, larger
	softmax.Hidden = 0
	_, ofSoftmax := built(model.Softmax, softmax)
	_, ofLarger := built(model.MLP, mlp)
	for words, b := range map[string][]byte{
		"load the model":        []byte("no model"),
		"expected mlp with":     content(model.Softmax, softmax, ofSoftmax),
		"expected 20 values of": content(model.MLP, mlp, ofLarger),
	} {
		if err := o.replace(b, model.MLP, m); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("expected %q, found %v", words, err)
		}
	}
	if !slices.Equal(tensors[0].Data, before) || o.version != 1 {
		t.Error("a refused model has changed the parameters")
	}
	other := shape
	other.Seed = 2
	_, better := built(model.MLP, other)
	if err := o.replace(content(model.MLP, other, better), model.MLP, m); err != nil {
		t.Fatal(err)
	}
	for i := range tensors {
		if !slices.Equal(tensors[i].Data, better[i].Data) {
			t.Errorf("tensor %s differs", tensors[i].Name)
		}
	}
	for _, s := range o.states {
		for _, v := range s[0] {
			if v != 0 || math.IsNaN(float64(v)) {
				t.Fatalf("the state of the optimizer is of the former model: %v", v)
			}
		}
	}
	if o.version != 17 {
		t.Errorf("expected version 17, found %d", o.version)
	}
}
