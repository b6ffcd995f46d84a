package reference

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"sync"
	"time"

	"trainmaster/taskqueue"
	"trainmaster/trainer"
	"trainmaster/trainer/model"
	"trainmaster/trainer/params"
)

// Tasks is the source of tasks. It may prefetch one task, so that Next returns immediately.
type Tasks interface {
	// Next reports finished, unless it is nil, and returns the next task. It waits while there is none, and
	// returns io.EOF when the job has ended.
	Next(ctx context.Context, finished *taskqueue.Task) (*taskqueue.Task, error)

	// Fail reports that a task could not be trained.
	Fail(ctx context.Context, task *taskqueue.Task, reason error) error

	// Records yields the records of a task in their order. A record is valid until the next iteration. No record follows an
	// error.
	Records(task *taskqueue.Task) iter.Seq2[[]byte, error]
}

// Parameters are the parameter servers; *params.Client is one. Tensors come in the order, and with the names and shapes,
// of the call of Init.
type Parameters interface {
	// Init offers initial values and replaces them by the initial values of the job, which one trainer sets.
	Init(ctx context.Context, parameters []params.Tensor) error

	// PushPull applies mean gradients, times the learning rate and scale, and reads the parameters. It returns when all shards
	// have acknowledged. step grows with each call.
	PushPull(ctx context.Context, step uint64, scale float32, gradients, parameters []params.Tensor) (version uint64, err error)

	// Push is PushPull without the parameters.
	Push(ctx context.Context, step uint64, scale float32, gradients []params.Tensor) (version uint64, err error)

	// Pull waits until the parameters have at least the given version and reads them.
	Pull(ctx context.Context, parameters []params.Tensor, atLeast uint64) (version uint64, err error)

	// Stage stages sums of gradients computed at version, and returns when all shards have them. The error is a
	// *params.StaleError if a later version is committed.
	Stage(ctx context.Context, version uint64, sums []params.Tensor, records int) error
}

// Steps commits synchronous steps.
type Steps interface {
	// Staged reports that all shards have this trainer's gradients of the given records, computed at version, and waits for the
	// step. With 0 records it reports that a shard refused the version as too old. included reports that the gradients are in
	// version+1. Otherwise committed is the last committed version: if it equals version, the step is undecided and Staged must be
	// called again; if it is later, the gradients came too late.
	Staged(ctx context.Context, version uint64, epoch uint32, records int) (committed uint64, included bool, err error)
}

// Cuts quiesces trainers for checkpoints of data and parameters together.
type Cuts interface {
	// Boundary waits while a cut is taken. All pushes must be acknowledged before the call.
	Boundary(ctx context.Context) error
	// Base returns the number of records of a task that the parameters include already. Records begins after them.
	Base(task *taskqueue.Task) int64
	// Used adds records of a task that the parameters include.
	Used(task *taskqueue.Task, records int)
}

// Stops says when the master has stopped a task.
type Stops interface {
	// UntilStopped returns a context that also ends when the master stops the task, and a function that releases it. The cause is then
	// the error ErrStopped of the package trainer.
	UntilStopped(ctx context.Context, task *taskqueue.Task) (context.Context, context.CancelFunc)
}

// TaskReport has the results of the training of one task.
type TaskReport struct {
	Task       *taskqueue.Task
	Base       int64 // records of the task that the loaded checkpoint has: they were not trained again
	Records    int
	Batches    int
	Recomputed int           // mini-batches that came too late and were computed again
	LossSum    float64       // over the records, before the update that each took part in
	Version    uint64        // of the parameters after the task
	Elapsed    time.Duration // from the first record to the last acknowledgement
}

// Trainer trains until the job ends. Its fields are set before Run and not changed after.
type Trainer struct {
	ID        string // names this trainer in the journal
	Model     model.Model
	BatchSize int // records of a mini-batch
	Exchange  Exchange

	Tasks      Tasks
	Parameters Parameters
	Rows       Rows  // nil: the model has no tables
	Steps      Steps // nil: asynchronous
	Cuts       Cuts  // nil: none are taken
	Stops      Stops // may be nil

	Rounds Rounds // nil: no evaluation tasks come
	// Stored reads the model of a round. It returns nil if the model cannot be read here: the newest parameters are evaluated then. May be nil.
	Stored func(ctx context.Context, round taskqueue.Round) (*StoredModel, error)
	Seed   uint64 // of the initial rows of tables
	Parts  Parts  // nil: no prediction tasks come

	// Prepare is called before each training task, by the goroutine of Run: it may change the parameters in Between. May be nil.
	Prepare func(ctx context.Context, task *taskqueue.Task) error
	// Diverged is called for each training task whose loss is not finite. The task is then finished: the trainer has a model of its own, which another
	// one can replace. nil: Run returns the error.
	Diverged func(task *taskqueue.Task, reason error)

	Journal *Journal // nil: none is kept
	// Batch is called after each group of mini-batches with its number of records and the sum of their losses. May be nil.
	Batch  func(records int, lossSum float64)
	Report func(TaskReport)                         // Called after each trained task, before the task is reported as finished. May be nil.
	Failed func(task *taskqueue.Task, reason error) // called for each task that could not be trained, before the task is returned; may be nil

	state trainerState
}

// trainerState is what Run shares with other goroutines.
type trainerState struct {
	mu         sync.Mutex // held while parameters change, and while the clients of the parameter servers are in use
	version    uint64
	parameters []model.Tensor // of Run, which has initialized them and has not returned; nil: there are none
}

func (s *trainerState) set(parameters []model.Tensor, version uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parameters, s.version = parameters, version
}

// Between calls do between two mini-batches, with the current parameters of the model, without the rows of tables, and their version. do must not
// change them, except in Prepare, and may use Parameters and Rows. Between returns false if the parameters are not initialized yet, or Run has returned.
func (t *Trainer) Between(do func(version uint64, parameters []model.Tensor)) bool {
	t.state.mu.Lock()
	defer t.state.mu.Unlock()
	if t.state.parameters == nil {
		return false
	}
	do(t.state.version, t.state.parameters)
	return true
}

func (t *Trainer) validate() error {
	switch {
	case t.Model == nil:
		return errors.New("reference.Trainer.Model is nil: expected a model to train")
	case t.BatchSize < 1:
		return fmt.Errorf("reference.Trainer.BatchSize is %d: expected at least 1", t.BatchSize)
	case t.Tasks == nil:
		return errors.New("reference.Trainer.Tasks is nil: expected where tasks come from")
	case len(t.Model.Tables()) > 0 && t.Rows == nil:
		return errors.New("reference.Trainer.Rows is nil: expected the tables of the model on the parameter servers")
	case t.Parameters == nil:
		return errors.New("reference.Trainer.Parameters is nil: expected the parameter servers")
	}
	return t.Exchange.Check(t.Steps != nil)
}

// Run initializes the parameters and trains tasks. It returns nil when the job ends, or the first error.
func (t *Trainer) Run(ctx context.Context) error {
	if err := t.validate(); err != nil {
		return err
	}
	s := newSession(t)
	if err := t.Parameters.Init(ctx, s.sharedParams); err != nil {
		return fmt.Errorf("initialize the parameters: %w", err)
	}
	if t.Steps == nil {
		var err error
		if s.version, err = t.Parameters.Pull(ctx, s.sharedParams, 0); err != nil {
			return fmt.Errorf("pull the parameters: %w", err)
		}
	}
	t.state.set(s.parameters, s.version)
	defer t.state.set(nil, 0)
	var finished *taskqueue.Task
	for {
		task, err := t.Tasks.Next(ctx, finished)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("next task: %w", err)
		}
		finished = nil
		if task.Token.Kind == taskqueue.Evaluation {
			if finished, err = s.evaluate(ctx, task); err != nil {
				return fmt.Errorf("evaluate task %d of pass %d: %w", task.Index, task.Token.Pass, err)
			}
			continue
		}
		if task.Token.Kind == taskqueue.Prediction {
			if finished, err = s.predict(ctx, task); err != nil {
				return fmt.Errorf("predict task %d: %w", task.Index, err)
			}
			continue
		}
		if t.Prepare != nil {
			if err := t.Prepare(ctx, task); err != nil {
				return fmt.Errorf("prepare task %d of pass %d: %w", task.Index, task.Token.Pass, err)
			}
		}
		report, err := s.train(ctx, task)
		//guard:diverged-model-waits-for-another
		if t.Diverged != nil && errors.Is(err, ErrDiverged) {
			t.Diverged(task, err)
			err = nil
		}
		if errors.Is(err, trainer.ErrStopped) {
			continue // with another task
		}
		if bad, ok := errors.AsType[*recordError](err); ok {
			if t.Failed != nil {
				t.Failed(task, bad)
			}
			if err := t.Tasks.Fail(ctx, task, bad); errors.Is(err, io.EOF) {
				return nil // the job has ended: the task was counted elsewhere
			} else if err != nil {
				return fmt.Errorf("report task %d of pass %d as failed (%w), because: %w", task.Index, task.Token.Pass, err, bad)
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("train task %d of pass %d: %w", task.Index, task.Token.Pass, err)
		}
		if t.Journal != nil {
			if err := t.Journal.append(t.ID, report); err != nil {
				return err
			}
		}
		if t.Report != nil {
			t.Report(report)
		}
		finished = task
	}
}

// session is the state of one Run: the parameters that this trainer received last, and buffers.
type session struct {
	*Trainer
	batches  batches
	unpulled int            // pushes since the last pull
	more     []model.Tensor // memory for the gradients of a further mini-batch
	rows     *rows          // nil: the model has no tables
	pinned   *pinned        // the model that was evaluated last; nil: none

	parameters, gradients         []model.Tensor
	sharedParams, sharedGradients []params.Tensor // the same memory, as the parameter servers know it

	step    uint64 // of the last push; see pushPull
	version uint64 // of parameters; in synchronous training, what the next pull must have at least
}

func newSession(t *Trainer) *session {
	parameters := t.Model.Parameters()
	gradients := model.ZerosLike(parameters)
	s := &session{
		Trainer:         t,
		batches:         newBatches(t.Model, t.BatchSize, max(t.Exchange.PushEvery, 1)),
		parameters:      parameters,
		gradients:       gradients,
		sharedParams:    shareTensors(parameters),
		sharedGradients: shareTensors(gradients),
	}
	if tables := t.Model.Tables(); len(tables) > 0 {
		s.rows = newRows(t.Rows, tables)
	}
	return s
}

func shareTensors(tensors []model.Tensor) []params.Tensor {
	shared := make([]params.Tensor, len(tensors))
	for i, t := range tensors {
		shared[i] = params.Tensor(t)
	}
	return shared
}

// train returns when every mini-batch of the task is applied.
func (s *session) train(ctx context.Context, task *taskqueue.Task) (TaskReport, error) {
	start := time.Now()
	report := TaskReport{Task: task}
	if s.Cuts != nil {
		report.Base = s.Cuts.Base(task)
	}
	running := ctx
	if s.Stops != nil {
		var release context.CancelFunc
		running, release = s.Stops.UntilStopped(ctx, task)
		defer release()
	}
	for group, err := range s.batches.of(s.Tasks.Records(task)) {
		if err == nil && running.Err() != nil {
			return report, context.Cause(running) // between two pushes: the outcome of a push is always known
		}
		if err == nil && s.Cuts != nil {
			err = s.Cuts.Boundary(ctx)
		}
		if err != nil {
			return report, err
		}
		before := report.Records
		loss, err := s.apply(ctx, task.Token.Epoch, group, &report)
		if err != nil {
			return report, err
		}
		for _, batch := range group {
			report.Records += batch.Len()
		}
		if s.Cuts != nil {
			s.Cuts.Used(task, report.Records-before)
		}
		report.Batches += len(group)
		report.LossSum += loss
		if s.Batch != nil {
			s.Batch(report.Records-before, loss)
		}
	}
	report.Version = s.version
	report.Elapsed = time.Since(start)
	return report, nil
}

// apply applies the gradients of a group of mini-batches, and returns the sum of the losses.
func (s *session) apply(ctx context.Context, epoch uint32, group []*model.Batch, report *TaskReport) (lossSum float64, err error) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	if s.Steps == nil {
		lossSum, err = s.push(ctx, group)
	} else {
		lossSum, err = s.stage(ctx, epoch, group[0], report)
	}
	s.state.version = s.version
	return lossSum, err
}

// stage stages the gradients of one mini-batch until a committed version has them. It computes stale gradients again.
func (s *session) stage(ctx context.Context, epoch uint32, batch *model.Batch, report *TaskReport) (float64, error) {
	for ; ; report.Recomputed++ {
		at, err := s.pullAt(ctx, batch)
		if err != nil {
			return 0, fmt.Errorf("pull version %d: %w", s.version, err)
		}
		loss, err := s.compute(batch, s.gradients)
		if err != nil {
			return 0, err
		}
		err = s.lay(ctx, at, batch)
		stale, isStale := errors.AsType[*params.StaleError](err)
		included, records := false, batch.Len()
		if isStale {
			records = 0
		}
		if err == nil || isStale { // late stages are reported too: the master waits for a trainer that is late repeatedly
			s.version, included, err = s.awaitStep(ctx, at, epoch, records)
		}
		if isStale {
			s.version = max(s.version, stale.Version)
		}
		if err != nil {
			return 0, fmt.Errorf("stage at version %d: %w", at, err)
		}
		if included {
			return loss, nil
		}
	}
}

// pullAt pulls the parameters and the rows of a mini-batch at one version, at least s.version.
func (s *session) pullAt(ctx context.Context, batch *model.Batch) (uint64, error) {
	for {
		at, err := s.Parameters.Pull(ctx, s.sharedParams, s.version)
		if err != nil {
			return 0, err
		}
		s.version = at
		if s.rows == nil {
			return at, nil
		}
		if s.version, err = s.rows.gather(ctx, batch, at); err != nil || s.version == at {
			return at, err
		}
	}
}

// lay stages the gradients of a mini-batch.
func (s *session) lay(ctx context.Context, version uint64, batch *model.Batch) error {
	if s.rows != nil {
		if err := s.rows.stage(ctx, version, batch); err != nil {
			return err
		}
	}
	return s.Parameters.Stage(ctx, version, s.sharedGradients, batch.Len())
}

// awaitStep reports a stage to the master until a step is committed, and returns the version to continue from.
func (s *session) awaitStep(ctx context.Context, at uint64, epoch uint32, records int) (version uint64, included bool, err error) {
	for {
		committed, included, err := s.Steps.Staged(ctx, at, epoch, records)
		switch {
		case err != nil:
			return at, false, err
		case included:
			return max(committed, at+1), true, nil
		case committed > at:
			return committed, false, nil
		}
	}
}

// compute stores the summed gradients of the batch in gradients, and the gradients of its rows in s.rows.
func (s *session) compute(batch *model.Batch, gradients []model.Tensor) (lossSum float64, err error) {
	parameters := s.parameters
	if s.rows != nil {
		parameters, gradients = all(parameters, s.rows.values), all(gradients, s.rows.gradients)
	}
	lossSum, err = s.Model.Gradients(parameters, batch, gradients)
	if err == nil && (math.IsNaN(lossSum) || math.IsInf(lossSum, 0)) {
		err = fmt.Errorf("the loss at version %d is %v: %w; lower the learning rate or the momentum", s.version, lossSum, ErrDiverged)
	}
	return lossSum, err
}
