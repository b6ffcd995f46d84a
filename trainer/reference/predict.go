package reference

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"

	"trainmaster/recordio"
	"trainmaster/taskqueue"
	"trainmaster/trainer"
	"trainmaster/trainer/model"
)

// Parts stores the parts of a prediction.
type Parts interface {
	// Write stores a part. If there is one with the name, it succeeds and changes nothing.
	Write(ctx context.Context, name string, content []byte) error
}

// Predicted is a record of a part, as JSON: the prediction for the record with the same number in the task.
type Predicted struct {
	Label         int       `json:"label"`         // the most likely class, the lowest of equally likely ones
	Probabilities []float32 `json:"probabilities"` // by class
}

// PartName returns the name of the part of a task. The names have the order of the dataset.
func PartName(task *taskqueue.Task) string { return fmt.Sprintf("part-%08d", task.Index) }

// errNotFinite is the error of a model that predicts no number.
var errNotFinite = errors.New("a probability is not a number: the parameters of the model are not finite")

// predict returns the part of a task: a RecordIO file with an element of Predicted for each record.
func predict(m model.Model, tensorsOf func(*model.Batch) ([]model.Tensor, error), records iter.Seq2[[]byte, error]) ([]byte, error) {
	var part bytes.Buffer
	w := recordio.NewWriter(&part, recordio.WriterOptions{Compression: recordio.Snappy})
	var probabilities []float32
	b := newBatches(m, evaluationBatch, 1)
	for group, err := range b.of(records) {
		if err != nil {
			return nil, err
		}
		batch := group[0]
		tensors, err := tensorsOf(batch)
		if err != nil {
			return nil, err
		}
		if probabilities, err = m.Predict(tensors, batch, probabilities[:0]); err != nil {
			return nil, err
		}
		classes := len(probabilities) / batch.Len()
		for i := range batch.Len() {
			record, err := encodePredicted(probabilities[i*classes : (i+1)*classes])
			if err != nil {
				return nil, err
			}
			if err := w.Write(record); err != nil {
				return nil, err
			}
		}
	}
	err := w.Close() // writes the last chunk
	return part.Bytes(), err
}

func encodePredicted(probabilities []float32) ([]byte, error) {
	p := Predicted{Probabilities: probabilities}
	for class, v := range probabilities {
		if math.IsNaN(float64(v)) {
			return nil, errNotFinite
		}
		if v > probabilities[p.Label] {
			p.Label = class
		}
	}
	return json.Marshal(p)
}

// predictor predicts tasks.
type predictor struct {
	model     model.Model
	tensorsOf func(*model.Batch) ([]model.Tensor, error)
	tasks     Tasks
	parts     Parts
	stops     Stops // may be nil
	// boundary is called before each batch; nil: nothing is.
	boundary func(context.Context) error
	failed   func(task *taskqueue.Task, reason error) // may be nil
}

// predict stores the part of a task. It returns the task if it is finished; nil: it was returned to the queue.
func (p *predictor) predict(ctx context.Context, task *taskqueue.Task) (finished *taskqueue.Task, err error) {
	running := ctx
	if p.stops != nil {
		var release context.CancelFunc
		running, release = p.stops.UntilStopped(ctx, task)
		defer release()
	}
	part, err := predict(p.model, func(batch *model.Batch) ([]model.Tensor, error) {
		if running.Err() != nil {
			return nil, context.Cause(running)
		}
		if p.boundary != nil {
			if err := p.boundary(ctx); err != nil {
				return nil, err
			}
		}
		return p.tensorsOf(batch)
	}, p.tasks.Records(task))
	_, isBad := errors.AsType[*recordError](err)
	switch {
	case errors.Is(err, trainer.ErrStopped):
		return nil, nil // with another task
	case isBad, errors.Is(err, errNotFinite):
		if p.failed != nil {
			p.failed(task, err)
		}
		if err := p.tasks.Fail(ctx, task, err); err != nil && !errors.Is(err, io.EOF) { // Next returns io.EOF, too
			return nil, err
		}
		return nil, nil
	case err != nil:
		return nil, err
	}
	//guard:part-before-finish
	if err := p.parts.Write(ctx, PartName(task), part); err != nil {
		return nil, err
	}
	return task, nil
}

// run predicts tasks until the job ends.
func (p *predictor) run(ctx context.Context) error {
	var finished *taskqueue.Task
	for {
		task, err := p.tasks.Next(ctx, finished)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("next task: %w", err)
		}
		if finished, err = p.predict(ctx, task); err != nil {
			return fmt.Errorf("predict task %d: %w", task.Index, err)
		}
	}
}

// predict stores the part of a task with the newest parameters.
func (s *session) predict(ctx context.Context, task *taskqueue.Task) (finished *taskqueue.Task, err error) {
	if s.Parts == nil {
		return nil, errors.New("a prediction task came to a trainer that accepts none")
	}
	parameters := model.ZerosLike(s.parameters)
	if _, err := s.Parameters.Pull(ctx, shareTensors(parameters), 0); err != nil {
		return nil, fmt.Errorf("pull the parameters to predict with: %w", err)
	}
	p := predictor{model: s.Model, tensorsOf: s.newestRows(ctx, parameters), tasks: s.Tasks, parts: s.Parts, stops: s.Stops, failed: s.Failed}
	if s.Cuts != nil { // a cut waits for this trainer, too
		p.boundary = s.Cuts.Boundary
	}
	return p.predict(ctx, task)
}
