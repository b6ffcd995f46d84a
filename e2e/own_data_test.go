package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"trainmaster/local"
	"trainmaster/testdata"
)

// measured is the output of `master model evaluate -o json`.
type measured struct {
	File     string   `json:"file"`
	Model    string   `json:"model"`
	Version  uint64   `json:"version"`
	Records  int      `json:"records"`
	Accuracy float64  `json:"accuracy"`
	Loss     float64  `json:"loss"`
	AUC      *float64 `json:"auc"`
}

// flowers returns a CSV table with a header. Each row has three numbers, near the center of a species, and its name.
func flowers(rows int) string {
	random := rand.New(rand.NewPCG(1, 2))
	table := "petal,sepal,height,species\n"
	for i := range rows {
		kind := float64(i % 3)
		table += fmt.Sprintf("%.3f,%.3f,%.1f,%s\n", 1+2*kind+random.NormFloat64()/2, 5-kind+random.NormFloat64()/2,
			100+20*kind+10*random.NormFloat64(), []string{"iris", "lily", "rose"}[i%3])
	}
	return table
}

// `master run --data` selects the model for a converted dataset. `master model evaluate` reports the same figures as the run.
func TestRunOnConvertedData(t *testing.T) {
	for _, c := range []struct {
		name, table string
		convert     []string
		run         []string
		model       string
		accuracy    float64
	}{
		{"numbers", flowers(600), []string{"--text-labels"}, nil, "softmax", 0.9},
		{"pixels", string(testdata.Digits), nil, []string{"--model", "mlp", "--update-mode", "sync", "--passes", "12"}, "mlp", 0.93},
		{"categories", string(testdata.Flights), []string{"--format", "categorical", "--label-above", "15"}, nil, "fm", 0.77},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "table"), []byte(c.table), 0o600); err != nil {
				t.Fatal(err)
			}
			args := append([]string{"recordio", "convert", "--held-out", "0.2"}, c.convert...)
			run(t, dir, append(args, "table", "data/own")...).wants(t, 0)
			var result local.Result
			o := run(t, dir, append([]string{"run", "--data", "data/own", "-o", "json"}, c.run...)...)
			o.wants(t, 0)
			o.decode(t, &result)
			if result.Model != c.model || result.Accuracy == nil || *result.Accuracy < c.accuracy {
				t.Errorf("found %s, expected model %s and an accuracy of at least %v", o.stdout, c.model, c.accuracy)
			}
			var again measured
			o = run(t, dir, "model", "evaluate", result.ModelPath, "--data", "data/own", "-o", "json")
			o.wants(t, 0)
			o.decode(t, &again)
			if again.Model != c.model || again.Records != result.TestRecords || again.Accuracy != *result.Accuracy || again.Loss != *result.Loss ||
				(again.AUC == nil) != (c.model != "fm") || again.AUC != nil && *again.AUC != *result.AUC {
				t.Errorf("model evaluate found %+v, the run %s", again, o.stdout)
			}
		})
	}
}

// Unsuitable data is refused before a run begins. Data without a held-out part is trained and not evaluated.
func TestRunOnUnsuitableData(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, table := range map[string]string{"flowers": flowers(300), "same": strings.ReplaceAll(strings.ReplaceAll(flowers(60), "iris", "rose"), "lily", "rose")} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(table), 0o600); err != nil {
			t.Fatal(err)
		}
		run(t, dir, "recordio", "convert", "--text-labels", name, "data/"+name).wants(t, 0)
	}
	for _, c := range []struct {
		args []string
		says []string
	}{
		{[]string{"--data", "data/none"}, []string{"data/none-00000-of-00001", "recordio convert"}},
		{[]string{"--data", "data/flowers", "--model", "fm"}, []string{"model of numbers", "softmax"}},
		{[]string{"--data", "data/same"}, []string{"2 classes"}},
		{[]string{"--data", "data/flowers", "--dataset", "digits"}, []string{"--dataset"}},
	} {
		run(t, dir, append([]string{"run"}, c.args...)...).wants(t, exitUsage, c.says...)
	}
	if runs, err := os.ReadDir(filepath.Join(dir, "trainmaster-run")); err == nil {
		t.Errorf("refused runs: expected no directory, found %v", runs)
	}
	o := run(t, dir, "run", "--data", "data/flowers", "--passes", "1")
	o.wants(t, 0)
	if !strings.Contains(o.stdout, "not measured") {
		t.Errorf("expected \"not measured\", found %s", o.stdout)
	}
	saved := "trainmaster-run/001/flowers-softmax.safetensors"
	run(t, dir, "model", "evaluate", saved).wants(t, exitUsage, "--data")
	run(t, dir, "model", "evaluate", saved, "--data", "data/none*").wants(t, exitFailed, "matches no file")
	run(t, dir, "model", "evaluate", saved, "--data", "data/none").wants(t, exitFailed, "expected shards data/none-00000-of-00001 and so on")
	if err := os.WriteFile(filepath.Join(dir, "later"), []byte(flowers(90)), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, dir, "recordio", "convert", "--like", "data/flowers", "later", "data/later").wants(t, 0, "3 classes (iris, lily, rose)")
	run(t, dir, "recordio", "convert", "--text-labels", "later", "data/other").wants(t, 0)
	run(t, dir, "model", "evaluate", saved, "--data", "data/other").wants(t, exitFailed, "expected the scaling of the training data", "--like")
	for want, args := range map[string][]string{
		"(90 records)":  {"model", "evaluate", saved, "--data", "data/later"},
		"(390 records)": {"model", "evaluate", saved, "--data", "data/later", "--data", "data/flowers"},
		"(300 records)": {"model", "evaluate", saved, "--data", "data/flowers"},
		"trainmaster-run/002/flowers-softmax.safetensors": {"run", "--data", "data/flowers-0*", "--passes", "1"},
	} {
		o := run(t, dir, args...)
		o.wants(t, 0)
		if !strings.Contains(o.stdout, want) {
			t.Errorf("%q: found %s, expected %q", args, o.stdout, want)
		}
	}
	run(t, dir, "model", "evaluate", "data/flowers-00000-of-00001", "--data", "data/flowers-0*").wants(t, exitFailed, "load the model")
}
