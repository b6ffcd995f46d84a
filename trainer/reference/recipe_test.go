package reference

import (
	"errors"
	"strings"
	"testing"

	"trainmaster/pserver/optimizer"
	"trainmaster/trainer/model"
	"trainmaster/trainer/params"
)

// A setting that the client of the parameter servers refuses is refused before the trainer connects.
func TestClipNormWithTables(t *testing.T) {
	clipped := Recipe{Optimizer: params.Optimizer{ClipNorm: 1}}
	_, err := clipped.Complete(model.FM, model.Flights, false)
	if wrong, ok := errors.AsType[*optimizer.FieldError](err); !ok || wrong.Setting != "clip-norm" {
		t.Errorf("tables of embeddings: %v", err)
	}
	if _, err := clipped.Complete(model.MLP, model.Digits, false); err != nil {
		t.Errorf("no tables: %v", err)
	}
}

// Without a setting, the learning rate is the known rate of the data, or the default of the optimizer. Without
// either, the setting is required.
func TestLearningRates(t *testing.T) {
	for _, tt := range []struct {
		kind, optimizer string
		inputs          int
		want            float32 // 0: no known rate
	}{
		{model.FM, "", 4, 0.02},
		{model.FM, optimizer.Adagrad, 4, 0.02},
		{model.Logistic, "", 4, 0.05},
		{model.FM, optimizer.Adam, 4, 0.001},
		{model.Logistic, optimizer.AdamW, 4, 0.001},
		{model.FM, optimizer.FTRL, 4, 0.1},
		{model.FM, params.SGD, 4, 0},
		{model.FM, params.Momentum, 4, 0},
		{model.Logistic, params.Nesterov, 4, 0},
		{model.Softmax, params.SGD, 64, 0.15},
		{model.Softmax, params.Momentum, 64, 0.05},
		{model.Softmax, optimizer.Adagrad, 64, 0.01},
	} {
		r, err := Recipe{Optimizer: params.Optimizer{Kind: tt.optimizer}}.Complete(tt.kind, DatasetLike(tt.kind, tt.inputs), false)
		if wrong, ok := errors.AsType[*optimizer.FieldError](err); tt.want == 0 && (!ok || wrong.Setting != "learning-rate" || !strings.Contains(err.Error(), "or take adagrad")) {
			t.Errorf("%s with %q: error %v, want one of the learning rate that names adagrad", tt.kind, tt.optimizer, err)
		}
		if tt.want != 0 && (err != nil || r.Optimizer.LearningRate != tt.want) {
			t.Errorf("%s with %q: learning rate %v, want %v, %v", tt.kind, tt.optimizer, r.Optimizer.LearningRate, tt.want, err)
		}
	}
}
