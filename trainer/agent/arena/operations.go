package arena

import (
	"context"
	"errors"
	"fmt"

	"trainmaster/trainer/params"
)

// operations has the operations by their names in requests.
var operations = map[string]func(*model, context.Context, Request) (Reply, error){
	"ps_init":   (*model).init,
	"pull":      (*model).pull,
	"lookup":    (*model).lookup,
	"push":      func(m *model, ctx context.Context, r Request) (Reply, error) { return m.push(ctx, r, nil) },
	"push_pull": func(m *model, ctx context.Context, r Request) (Reply, error) { return m.push(ctx, r, m.parameters) },
	"stage":     (*model).stage,
}

// init connects to the servers, and offers the parameters in the arena as the initial ones of the job. The arena then has the parameters of the job.
func (m *model) init(ctx context.Context, _ Request) (Reply, error) {
	if m.client == nil {
		client, err := params.Connect(ctx, m.config)
		if err != nil {
			return Reply{}, fmt.Errorf("connect to the parameter servers: %w", err)
		}
		m.client = client
	}
	if err := m.client.Init(ctx, m.parameters); err != nil {
		return Reply{}, err
	}
	return m.pull(ctx, Request{})
}

func (m *model) pull(ctx context.Context, r Request) (Reply, error) {
	least := r.Version
	if m.config.Mode == params.Sync {
		least = max(least, m.version)
	}
	version, err := m.client.Pull(ctx, m.parameters, least)
	if err != nil {
		return Reply{}, err
	}
	m.version, m.held = version, version
	return Reply{Version: version}, nil
}

// push applies the gradients in the arena, and gradients of rows with the same step. The step is the number of updates in the last reply, plus one, so that the
// schedule of the learning rate depends on the updates of the job.
func (m *model) push(ctx context.Context, r Request, into []params.Tensor) (Reply, error) {
	step, scale := r.Step, float32(1)
	if step == 0 {
		step = max(m.step, m.version) + 1
	}
	//guard:steps-of-pushes-grow
	if step <= m.step {
		return Reply{}, invalidf("step: expected more than %d, the step of the last push, found %d: the steps of a trainer grow", m.step, step)
	}
	if r.Scale != nil {
		scale = *r.Scale
	}
	list, err := m.rowsOf(r)
	if err != nil {
		return Reply{}, err
	}
	//guard:rows-checked-before-push
	if err := m.check(list, step); err != nil {
		return Reply{}, err
	}
	version, err := m.client.PushPull(ctx, step, scale, m.gradients, into)
	if err != nil {
		return Reply{}, err
	}
	m.step = max(m.step, step) // before the rows: after an error, servers would take the next push for a repetition
	for _, x := range list {
		if err := m.client.PushRows(ctx, x.table, step, scale, x.ids, x.values); err != nil {
			return Reply{}, err
		}
	}
	m.version = version
	if into != nil {
		m.held = version
	}
	return Reply{Version: version, Step: step}, nil
}

// stage stages the gradients in the arena and of rows, which are sums over records, waits for the step, and pulls the parameters after it. If the step was
// made without these gradients, the caller computes them again with the parameters that are now in the arena.
func (m *model) stage(ctx context.Context, r Request) (Reply, error) {
	at := m.held
	if r.Version != 0 {
		at = r.Version
	}
	err := m.stageAll(ctx, at, r)
	stale, isStale := errors.AsType[*params.StaleError](err)
	if err != nil && !isStale {
		return Reply{}, err
	}
	records := r.Records
	if isStale {
		records = 0 // the master waits for a trainer that is late repeatedly
	}
	//guard:late-gradient-is-reported
	included := false
	for committed := at; committed <= at && !included; {
		if committed, included, err = m.steps.Staged(ctx, at, records); err != nil {
			return Reply{}, err
		}
		if included {
			committed = max(committed, at+1)
		}
		m.version = max(m.version, committed)
	}
	if isStale {
		m.version = max(m.version, stale.Version)
	}
	reply, err := m.pull(ctx, Request{})
	reply.Included = &included
	return reply, err
}
