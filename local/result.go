package local

import (
	"context"
	"fmt"
	"time"

	"trainmaster/dataset/convert"
	"trainmaster/trainer/reference"
)

// Result is the result of a run.
type Result struct {
	Model       string        `json:"model"`    // empty for own trainers
	Accuracy    *float64      `json:"accuracy"` // on the held-out records. Null without such records and for own trainers.
	AUC         *float64      `json:"auc"`      // area under the ROC curve, for a model of two classes with scores; else null
	Loss        *float64      `json:"loss"`     // mean, on the same records as the accuracy
	TestRecords int           `json:"test_records"`
	Passes      int           `json:"passes"`
	Reason      string        `json:"reason"` // why the job ended before its last pass; else empty
	Tasks       int           `json:"tasks"`  // of a pass
	Elapsed     time.Duration `json:"-"`
	Seconds     float64       `json:"seconds"`
	Restarts    int           `json:"restarts"`
	SetAside    SetAside      `json:"set_aside"`
	ModelPath   string        `json:"model_path"`
	Dir         string        `json:"dir"`
}

func (j *Job) modelPath() string {
	name := j.config.Dataset
	if name == "" {
		name = convert.NameOf(j.data.Train.Paths[0])
	}
	return j.path(name + "-" + j.config.Model + ".safetensors")
}

// result completes the result, and evaluates the model of built-in trainers.
func (j *Job) result(ctx context.Context, r Result) (Result, error) {
	r.Dir = j.config.Dir
	if r.Reason == "" {
		r.Passes = j.config.Passes
	}
	r.Restarts = int(j.restarts.Load())
	if len(j.config.Command) > 0 {
		return r, nil
	}
	r.Model, r.ModelPath = j.config.Model, j.modelPath()
	err := j.evaluate(ctx, &r)
	return r, err
}

// evaluate measures the saved model on the held-out records.
func (j *Job) evaluate(ctx context.Context, r *Result) error {
	if len(j.data.Test.Paths) == 0 {
		return nil
	}
	_, e, err := EvaluateSaved(ctx, r.ModelPath, j.data.Test.Paths)
	if err != nil {
		return err
	}
	r.Accuracy, r.Loss, r.TestRecords, r.AUC = new(e.Accuracy()), new(e.Loss()), e.Records, e.AUC
	return nil
}

// EvaluateSaved measures a saved model on the records of some files. It returns an error if there are no records, or if the labels or
// the scaling of the files are known to differ from the training data of the model.
func EvaluateSaved(ctx context.Context, modelPath string, files []string) (saved reference.Saved, e reference.Evaluation, err error) {
	if saved, err = reference.ReadSaved(modelPath); err != nil {
		return saved, e, err
	}
	if err := sameMeaning(saved.Meaning, modelPath, files); err != nil {
		return saved, e, err
	}
	m, err := saved.Model()
	if err != nil {
		return saved, e, err
	}
	e, err = reference.Evaluate(m, saved.Tensors, saved.RowsOf, until(ctx, records(files)))
	if err == nil && e.Records == 0 {
		err = fmt.Errorf("evaluate %s: expected at least one record, found none in %d files", modelPath, len(files))
	}
	return saved, e, err
}
