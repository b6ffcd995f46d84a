package local

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"trainmaster/dataset/convert"
	"trainmaster/trainer/model"
	"trainmaster/trainer/reference"
)

func TestModelIsNotEvaluatedOnDataConvertedDifferently(t *testing.T) {
	dir := t.TempDir()
	of := func(name, rows string, held float64) convert.Result {
		t.Helper()
		r, err := convert.CSV(context.Background(), strings.NewReader(rows), convert.Options{Prefix: filepath.Join(dir, name), TextLabels: true, HeldOut: held})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	const rows = "0.5,1,a\n1.5,2,b\n2.5,4,a\n3.5,8,b\n"
	trained := of("trained", rows, 0.5)
	m, err := model.New(model.Softmax, model.Config{Inputs: 2, Classes: 2})
	if err != nil {
		t.Fatal(err)
	}
	meaning, err := convert.MeaningOf(trained.Train.Paths[0])
	if err != nil || meaning == (convert.Meaning{}) {
		t.Fatalf("meaning %v, %v", meaning, err)
	}
	path := filepath.Join(dir, "model.safetensors")
	saved := reference.Saved{Kind: model.Softmax, Config: model.Config{Inputs: 2, Classes: 2}, Tensors: m.Parameters(), Meaning: meaning}
	if err := saved.Write(path); err != nil {
		t.Fatal(err)
	}
	if _, _, err := EvaluateSaved(t.Context(), path, trained.Test.Paths); err != nil {
		t.Errorf("held-out records: %v", err)
	}
	later, err := convert.CSV(context.Background(), strings.NewReader("9.5,1,b\n"), convert.Options{Prefix: filepath.Join(dir, "later"), Like: filepath.Join(dir, "trained")})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := EvaluateSaved(t.Context(), path, later.Train.Paths); err != nil {
		t.Errorf("records converted later, like the others: %v", err)
	}
	for name, c := range map[string]struct{ rows, word string }{
		"labels":  {strings.ReplaceAll(rows, "b", "c"), "labels"},
		"scaling": {strings.ReplaceAll(rows, "0.5", "7.5"), "scaling"},
	} {
		_, _, err := EvaluateSaved(t.Context(), path, of(name, c.rows, 0).Train.Paths)
		if !errors.Is(err, ErrOtherMeaning) || !strings.Contains(err.Error(), "the "+c.word) {
			t.Errorf("other %s: %v", name, err)
		}
	}
}
