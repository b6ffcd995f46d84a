package reference

import (
	"context"
	"fmt"

	"trainmaster/pserver/floats"
	"trainmaster/pserver/optimizer"
	"trainmaster/trainer/model"
	"trainmaster/trainer/params"
	"trainmaster/trainer/params/plan"
)

// replica is the model of a member of a ring. It implements [allreduce.Model].
type replica struct {
	settings   string
	config     params.Optimizer
	rule       optimizer.Rule
	tensors    []model.Tensor // parts of parameters
	parameters []float32
	state      optimizer.State
}

func newReplica(settings string, config params.Optimizer, initial []model.Tensor) *replica {
	r := &replica{settings: settings, config: config, rule: config.Rule(), parameters: make([]float32, lengthOf(initial))}
	r.tensors = viewsOf(initial, r.parameters)
	for i, t := range initial {
		copy(r.tensors[i].Data, t.Data)
	}
	for k := range r.rule.Slots() {
		r.state[k] = make([]float32, len(r.parameters))
	}
	r.rule.Start(r.parameters, r.state)
	return r
}

func lengthOf(tensors []model.Tensor) (n int) {
	for _, t := range tensors {
		n += len(t.Data)
	}
	return n
}

// viewsOf returns tensors with the names and shapes of like, whose data is in values.
func viewsOf(like []model.Tensor, values []float32) []model.Tensor {
	views := make([]model.Tensor, len(like))
	for i, t := range like {
		n := len(t.Data)
		views[i] = model.Tensor{Name: t.Name, Shape: t.Shape, Data: values[:n:n]}
		values = values[n:]
	}
	return views
}

// Settings implements [allreduce.Model].
func (r *replica) Settings() string { return r.settings }

// Length implements [allreduce.Model].
func (r *replica) Length() int { return len(r.parameters) }

// Vectors implements [allreduce.Model].
func (r *replica) Vectors() [][]float32 {
	vectors := [][]float32{r.parameters}
	for k := range r.rule.Slots() {
		vectors = append(vectors, r.state[k])
	}
	return vectors
}

// Apply implements [allreduce.Model]: an update with the mean gradient.
func (r *replica) Apply(version uint64, sum []float32, records int64, rate float64) error {
	if !floats.Finite(sum) {
		return fmt.Errorf("a sum of gradients of version %d is not finite: %w; lower the learning rate or the momentum", version, ErrDiverged)
	}
	//guard:allreduce-mean-by-records
	scaleAll(sum, 1/float32(records))
	plan.Clip([]params.Tensor{{Data: sum}}, 1, r.config.ClipNorm)
	factor := 1.0
	if rate != 0 {
		factor = rate / float64(r.config.LearningRate)
	}
	r.rule.Apply(r.parameters, sum, r.state, optimizer.Step{Count: version, Scale: float32(r.config.Schedule.At(version) * factor)})
	return nil
}

// copied reads the parameters of a replica that does not change any more. It implements the part of [Parameters] that saves a model.
type copied struct {
	Parameters
	tensors []model.Tensor
	version uint64
}

// Pull implements [Parameters].
func (c copied) Pull(_ context.Context, parameters []params.Tensor, _ uint64) (version uint64, err error) {
	copyTensors(parameters, shareTensors(c.tensors))
	return c.version, nil
}
