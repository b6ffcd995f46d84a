package bench

import (
	"context"
	"time"

	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
)

// OptimizerFigures has the number of elements that a rule updates per second of processor time, in a model
// that is larger than the caches.
type OptimizerFigures struct {
	Name                   string  `json:"name"`
	ElementsPerSecond      float64 `json:"elements_per_s"`
	PlainElementsPerSecond float64 `json:"plain_elements_per_s"` // by the loops in plain Go
	LimitElementsPerSecond float64 `json:"limit_elements_per_s"` // a copy that reads and writes the same arrays
}

// pieceElements is what a parameter server steps at a time.
const pieceElements = 4096

// optimizers measures each rule.
func (p *PS) optimizers(ctx context.Context) ([]OptimizerFigures, error) {
	n := p.MiB * placement.BlockElements
	params, grad := make([]float32, n), make([]float32, n)
	var state optimizer.State
	for i := range state {
		state[i] = make([]float32, n)
	}
	var list []OptimizerFigures
	for _, kind := range optimizer.Kinds() {
		config := optimizer.Config{Kind: kind, LearningRate: 1e-9}
		if err := config.Validate(); err != nil {
			return nil, err
		}
		m := &steppedModel{params: params, grad: grad}
		rule, plain := config.Rule(), config.PlainRule()
		copy(m.state[:], state[:len(rule.Slots())])
		var fast, slow, limit []time.Duration
		for run := range p.Runs {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			p.say("%s, %d of %d", kind, run+1, p.Runs)
			limit = append(limit, m.time(m.copy))
			fast = append(fast, m.time(func(lo, hi int) { m.step(rule, lo, hi) }))
			slow = append(slow, m.time(func(lo, hi int) { m.step(plain, lo, hi) }))
		}
		rate := func(list []time.Duration) float64 { return float64(n) / median(list, time.Duration.Seconds) }
		list = append(list, OptimizerFigures{kind, rate(fast), rate(slow), rate(limit)})
	}
	return list, nil
}

// steppedModel is what a rule works on.
type steppedModel struct {
	params, grad []float32
	state        optimizer.State
}

// time is the processor time of a pass, piece by piece. It begins with values that no
// arithmetic is slow for.
func (m *steppedModel) time(pass func(lo, hi int)) time.Duration {
	for i := range m.grad {
		m.grad[i] = 1e-3
	}
	m.each(m.copy)
	began := processorTime()
	m.each(pass)
	return processorTime() - began
}

func (m *steppedModel) each(pass func(lo, hi int)) {
	for lo := 0; lo < len(m.params); lo += pieceElements {
		pass(lo, lo+pieceElements)
	}
}

func (m *steppedModel) step(rule optimizer.Rule, lo, hi int) {
	var state optimizer.State
	for i, slot := range m.state {
		if slot != nil {
			state[i] = slot[lo:hi]
		}
	}
	rule.Apply(m.params[lo:hi], m.grad[lo:hi], state, optimizer.Step{Count: 1000, Scale: 1})
}

// copy reads and writes what a step does.
func (m *steppedModel) copy(lo, hi int) {
	copy(m.params[lo:hi], m.grad[lo:hi])
	for _, slot := range m.state {
		if slot != nil {
			copy(slot[lo:hi], m.grad[lo:hi])
		}
	}
}
