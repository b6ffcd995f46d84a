package reference

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/pserver/optimizer"
	"trainmaster/taskqueue"
	"trainmaster/trainer"
	"trainmaster/trainer/model"
	"trainmaster/trainer/params"
	"trainmaster/trainer/params/plan"
)

// ErrDiverged is wrapped by the error of a loss that is NaN or infinite.
var ErrDiverged = errors.New("training diverged")

// ownModel has the parameters of a trainer without parameter servers. It implements [Parameters], and keeps the model between two sessions.
type ownModel struct {
	config  params.Optimizer
	rule    optimizer.Rule
	tensors []params.Tensor // of the newest session, which shares them
	states  []optimizer.State
	version uint64  // updates
	rate    float64 // learning rate of the task; 0: of config
}

// Init keeps the initial values at the first call. Later calls replace the values by the values of the trainer.
func (o *ownModel) Init(_ context.Context, parameters []params.Tensor) error {
	if o.tensors != nil {
		//guard:own-model-outlives-its-session
		copyTensors(parameters, o.tensors)
		o.tensors = parameters
		return nil
	}
	o.rule, o.tensors = o.config.Rule(), parameters
	o.start()
	return nil
}

// start begins with the state of new parameters.
func (o *ownModel) start() {
	o.states = make([]optimizer.State, len(o.tensors))
	for i, t := range o.tensors {
		for k := range o.rule.Slots() {
			o.states[i][k] = make([]float32, len(t.Data))
		}
		o.rule.Start(t.Data, o.states[i])
	}
}

func copyTensors(to, from []params.Tensor) {
	for i := range to {
		copy(to[i].Data, from[i].Data)
	}
}

// PushPull implements [Parameters].
func (o *ownModel) PushPull(ctx context.Context, step uint64, scale float32, gradients, parameters []params.Tensor) (version uint64, err error) {
	if _, err := o.Push(ctx, step, scale, gradients); err != nil {
		return 0, err
	}
	return o.Pull(ctx, parameters, 0)
}

// Push implements [Parameters].
func (o *ownModel) Push(ctx context.Context, step uint64, scale float32, gradients []params.Tensor) (version uint64, err error) {
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	plan.Clip(gradients, 1, o.config.ClipNorm)
	o.version++
	at := optimizer.Step{Count: o.version, Scale: scale * float32(o.config.Schedule.At(step)*o.factor())}
	for i, t := range o.tensors {
		o.rule.Apply(t.Data, gradients[i].Data, o.states[i], at)
	}
	return o.version, nil
}

// factor returns the factor of the learning rate of the task.
func (o *ownModel) factor() float64 {
	if o.rate == 0 {
		return 1
	}
	return o.rate / float64(o.config.LearningRate)
}

// Pull implements [Parameters].
func (o *ownModel) Pull(_ context.Context, parameters []params.Tensor, _ uint64) (version uint64, err error) {
	copyTensors(parameters, o.tensors)
	return o.version, nil
}

// Stage implements [Parameters].
func (o *ownModel) Stage(context.Context, uint64, []params.Tensor, int) error {
	return errors.New("stage gradients: expected an asynchronous job, because the trainer has a model of its own")
}

// replace takes the model of another trainer, in the bytes of a file of [Saved]. The caller holds the lock of the parameters.
func (o *ownModel) replace(content []byte, kind string, m model.Model) error {
	saved, err := readSavedBytes("of another trainer", content)
	if err != nil {
		return err
	}
	want := m.Parameters()
	if saved.Kind != kind || len(saved.Tensors) != len(want) {
		return fmt.Errorf("model of another trainer: expected %s with %d tensors, found %s with %d", kind, len(want), saved.Kind, len(saved.Tensors))
	}
	for i, t := range saved.Tensors {
		if t.Name != want[i].Name || len(t.Data) != len(o.tensors[i].Data) {
			return fmt.Errorf("model of another trainer: tensor %q: expected %d values of %q, found %d", t.Name, len(o.tensors[i].Data), want[i].Name, len(t.Data))
		}
	}
	for i, t := range saved.Tensors {
		copy(o.tensors[i].Data, t.Data)
	}
	o.version = saved.Version
	o.start() // the other trainer has sent no state of its optimizer
	return nil
}

// errTables is returned for a model of a trainer alone that has tables.
var errTables = errors.New("a model of a trainer alone has no tables: expected softmax or mlp")

// trainOwn lets t train the model of this worker.
func (w *Worker) trainOwn(t *Trainer, client *trainer.Client, recipe Recipe, log *logrus.Entry) error {
	switch {
	case client.Sync() || client.Cuts():
		return errors.New("the job has synchronous steps: expected an asynchronous job without parameter servers, because the trainer has a model of its own")
	case len(t.Model.Tables()) > 0:
		return fmt.Errorf("model %s: %w", w.Kind, errTables)
	}
	if w.own == nil {
		w.own = &ownModel{config: recipe.Optimizer}
	}
	t.Parameters = w.own
	t.Diverged = func(task *taskqueue.Task, reason error) {
		log.WithError(reason).WithField("task", task.Token.String()).Warn("model diverged, waiting for the model of another trainer")
	}
	t.Prepare = func(ctx context.Context, task *taskqueue.Task) error {
		w.own.rate = client.HyperParameters(task)["learning-rate"]
		return w.receive(ctx, t, client, task, log)
	}
	return nil
}

// receive replaces the model of this worker if a task comes with the model of another trainer. If that model cannot be read, the worker continues with its
// own.
func (w *Worker) receive(ctx context.Context, t *Trainer, client *trainer.Client, task *taskqueue.Task, log *logrus.Entry) error {
	from, ok := client.ModelOf(task)
	if !ok {
		return nil
	}
	log = log.WithFields(logrus.Fields{"task": task.Token.String(), "path": from.Path, "address": from.Address})
	var content bytes.Buffer
	bounded, cancel := context.WithTimeout(ctx, receiveTimeout)
	_, _, err := client.ReceiveModel(bounded, task, &content)
	cancel()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err == nil {
		t.Between(func(uint64, []model.Tensor) { err = w.own.replace(content.Bytes(), w.Kind, t.Model) })
	}
	//guard:unreadable-model-fails-no-task
	if err != nil {
		log.WithError(err).Warn("model of another trainer not received, continuing with the own model")
		client.KeptModel(task, err)
		return nil
	}
	digest := sha256.Sum256(content.Bytes())
	log.WithFields(logrus.Fields{"version": w.own.version, "sha256": hex.EncodeToString(digest[:])}).Info("continuing with the model of another trainer")
	return nil
}

// receiveTimeout limits the copy of a model.
const receiveTimeout = time.Minute
