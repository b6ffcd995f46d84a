package reference

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"

	"trainmaster/master/evaluation/metric"
	"trainmaster/taskqueue"
	"trainmaster/trainer"
	"trainmaster/trainer/model"
)

// Rounds are the evaluation rounds of a job; *trainer.Client is one.
type Rounds interface {
	// Round returns the round of an evaluation task.
	Round(task *taskqueue.Task) taskqueue.Round
	// Measured takes the encoded metrics of a task. Next reports them with the finished task.
	Measured(task *taskqueue.Task, metrics []byte)
}

// StoredModel is a model of a checkpoint set.
type StoredModel struct {
	Tensors map[string][]float32
	Tables  map[string]StoredRows
}

// StoredRows are the rows of an embedding table that were updated; Rows has the shape [ids, dim].
type StoredRows struct {
	IDs  []int64
	Rows []float32
}

// pinned is the model of a round.
type pinned struct {
	round     uint64
	tensorsOf func(*model.Batch) ([]model.Tensor, error)
}

// unreadModel is the error of a model that cannot be read or does not fit. After the end of its round, a model may be deleted.
type unreadModel struct {
	round taskqueue.Round
	err   error
}

func (e *unreadModel) Error() string {
	return fmt.Sprintf("read model %q of round %d: %v", e.round.Model, e.round.Number, e.err)
}
func (e *unreadModel) Unwrap() error { return e.err }

// evaluate measures the model of the round on the records of a task. It returns the task if it is finished; nil: it has failed, and was
// returned to the queue.
func (s *session) evaluate(ctx context.Context, task *taskqueue.Task) (finished *taskqueue.Task, err error) {
	if s.Rounds == nil {
		return nil, errors.New("an evaluation task came to a trainer that accepts none")
	}
	metrics, err := s.measure(ctx, task)
	bad, isBad := errors.AsType[*recordError](err)
	unread, isUnread := errors.AsType[*unreadModel](err)
	notFinite, isNotFinite := errors.AsType[*trainer.NotFiniteError](err)
	//guard:unread-model-returns-task
	if isUnread && ctx.Err() == nil {
		return nil, s.returned(ctx, task, unread)
	}
	switch {
	case errors.Is(err, trainer.ErrStopped):
		return nil, nil // with another task
	case isBad:
		return nil, s.returned(ctx, task, bad)
	case isNotFinite:
		return nil, s.returned(ctx, task, notFinite)
	case err != nil:
		return nil, err
	}
	s.Rounds.Measured(task, metrics)
	return task, nil
}

// returned returns a task that could not be evaluated to the queue.
func (s *session) returned(ctx context.Context, task *taskqueue.Task, reason error) error {
	if s.Failed != nil {
		s.Failed(task, reason)
	}
	if err := s.Tasks.Fail(ctx, task, reason); err != nil && !errors.Is(err, io.EOF) { // Next returns io.EOF, too
		return err
	}
	return nil
}

// measure returns the encoded metrics of a task.
func (s *session) measure(ctx context.Context, task *taskqueue.Task) ([]byte, error) {
	p, err := s.pin(ctx, s.Rounds.Round(task))
	if err != nil {
		return nil, err
	}
	running := ctx
	if s.Stops != nil {
		var release context.CancelFunc
		running, release = s.Stops.UntilStopped(ctx, task)
		defer release()
	}
	return metricsOf(s.Model, func(batch *model.Batch) ([]model.Tensor, error) {
		if running.Err() != nil {
			return nil, context.Cause(running)
		}
		if s.Cuts != nil { // a cut waits for this trainer, too
			if err := s.Cuts.Boundary(ctx); err != nil {
				return nil, err
			}
		}
		s.state.mu.Lock()
		defer s.state.mu.Unlock()
		return p.tensorsOf(batch)
	}, s.Tasks.Records(task))
}

// MeasureCurrent returns the encoded metrics of the parameters that the trainer has now on records. It pauses the training between two groups of
// mini-batches. m is a model like Model: a model is used by one goroutine. ok is false if the parameters are not initialized yet, or Run has
// returned.
func (t *Trainer) MeasureCurrent(ctx context.Context, m model.Model, records iter.Seq2[[]byte, error]) (metrics []byte, ok bool, err error) {
	ok = t.Between(func(_ uint64, parameters []model.Tensor) {
		own := t.newestRows(ctx, parameters)
		metrics, err = metricsOf(m, func(batch *model.Batch) ([]model.Tensor, error) {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return own(batch)
		}, records)
	})
	return metrics, ok, err
}

// metricsOf returns the encoded metrics of a model on records.
func metricsOf(m model.Model, tensorsOf func(*model.Batch) ([]model.Tensor, error), records iter.Seq2[[]byte, error]) ([]byte, error) {
	var set metric.Set
	positives, negatives := make([]int64, metric.Bins), make([]int64, metric.Bins)
	scored := func(logits []float64, labels []int) error {
		for i, logit := range logits {
			bin, err := metric.Bin(1 / (1 + math.Exp(-logit)))
			if err != nil {
				return &trainer.NotFiniteError{Metric: scoreMetric, Value: logit}
			}
			if labels[i] == 1 {
				positives[bin]++
			} else {
				negatives[bin]++
			}
		}
		return nil
	}
	e, err := measure(m, tensorsOf, records, scored)
	switch {
	case err != nil:
		return nil, err
	case math.IsNaN(e.LossSum) || math.IsInf(e.LossSum, 0):
		return nil, &trainer.NotFiniteError{Metric: "loss", Value: e.LossSum}
	}
	err = errors.Join(set.AddMean("loss", e.LossSum, int64(e.Records)), set.AddMean("accuracy", float64(e.Correct), int64(e.Records)))
	if _, ok := m.(model.Scorer); ok {
		err = errors.Join(err, set.AddHistogram(scoreMetric, positives, negatives))
	}
	return set.Encode(), err
}

// scoreMetric is the name of the histogram of the scores of a model of two classes. Its figure is score.auc.
const scoreMetric = "score"

// pin returns the model of a round. It reads the model once for all tasks of the round.
func (s *session) pin(ctx context.Context, round taskqueue.Round) (*pinned, error) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	if s.pinned != nil && s.pinned.round == round.Number && round.Number > 0 {
		return s.pinned, nil
	}
	//guard:round-of-the-own-model
	if round.Model == "" {
		return &pinned{tensorsOf: s.newestRows(ctx, s.parameters)}, nil
	}
	var stored *StoredModel
	if s.Stored != nil {
		var err error
		if stored, err = s.Stored(ctx, round); err != nil {
			return nil, &unreadModel{round, err}
		}
	}
	parameters := model.ZerosLike(s.parameters)
	p := &pinned{round: round.Number}
	if stored == nil {
		if _, err := s.Parameters.Pull(ctx, shareTensors(parameters), 0); err != nil {
			return nil, fmt.Errorf("pull the parameters to evaluate: %w", err)
		}
		p.tensorsOf = s.newestRows(ctx, parameters)
	} else {
		saved, err := stored.fill(parameters, s.Model.Tables(), s.Seed)
		if err != nil {
			return nil, &unreadModel{round, err}
		}
		p.tensorsOf = func(batch *model.Batch) ([]model.Tensor, error) {
			if len(saved.Tables) == 0 {
				return parameters, nil
			}
			return all(parameters, saved.RowsOf(batch)), nil
		}
	}
	s.pinned = p
	return p, nil
}

// newestRows returns the parameters, with the newest rows of each batch.
func (t *Trainer) newestRows(ctx context.Context, parameters []model.Tensor) func(*model.Batch) ([]model.Tensor, error) {
	if len(t.Model.Tables()) == 0 {
		return func(*model.Batch) ([]model.Tensor, error) { return parameters, nil }
	}
	rows := newRows(t.Rows, t.Model.Tables())
	return func(batch *model.Batch) ([]model.Tensor, error) {
		_, err := rows.gather(ctx, batch, 0)
		return all(parameters, rows.values), err
	}
}

// fill copies the tensors of the model, and returns its tables. seed is the seed of the initial rows.
func (m *StoredModel) fill(parameters []model.Tensor, tables []model.Table, seed uint64) (saved Saved, err error) {
	for _, t := range parameters {
		values := m.Tensors[t.Name]
		if len(values) != len(t.Data) {
			return saved, fmt.Errorf("tensor %q: expected %d values, found %d", t.Name, len(t.Data), len(values))
		}
		copy(t.Data, values)
	}
	for _, declared := range declare(tables, seed) {
		rows := m.Tables[declared.Name]
		if len(rows.Rows) != len(rows.IDs)*declared.Dim {
			return saved, fmt.Errorf("table %q: expected %d values for each of %d ids, found %d", declared.Name, declared.Dim, len(rows.IDs), len(rows.Rows))
		}
		saved.Tables = append(saved.Tables, SavedTable{Table: declared, IDs: rows.IDs, Rows: rows.Rows})
	}
	return saved, nil
}
