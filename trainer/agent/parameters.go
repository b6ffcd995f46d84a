package agent

import (
	"context"
	"encoding/json"
	"errors"

	"trainmaster/trainer"
	"trainmaster/trainer/agent/arena"
	"trainmaster/trainer/params"
)

// isArena has the operations of parameter servers.
var isArena = map[string]bool{"ps_open": true, "ps_rows": true, "ps_init": true, "lookup": true, "pull": true, "push": true, "push_pull": true, "stage": true}

type openReply struct {
	FD bool `json:"fd"`
	arena.Layout
}

type rowsReply struct {
	FD bool `json:"fd"`
	arena.Region
}

// parameters does an operation of parameter servers.
func (a *agent) parameters(ctx context.Context, w *trainer.Window, r *request) (reply, error) {
	if (r.Op == "ps_open" || r.Op == "ps_rows") && r.ID == 0 {
		return reply{}, invalidf("id: expected a number above 0 in %s, found 0", r.Op)
	}
	switch r.Op {
	case "ps_rows":
		region, shared, err := a.arena.Grow(r.body)
		if err != nil {
			return reply{}, err
		}
		return reply{content: rowsReply{true, region}, memory: &memory{fd: shared}}, nil
	case "ps_open":
		layout, shared, err := a.arena.Open(w.Client(), w, r.body)
		if err != nil {
			return reply{}, err
		}
		return reply{content: openReply{true, layout}, memory: &memory{fd: shared}}, nil
	}
	var operation arena.Request
	if err := json.Unmarshal(r.body, &operation); err != nil {
		return reply{}, invalidf("%s: %v", r.Op, err)
	}
	done, err := a.arena.Do(ctx, operation)
	if w.Client().Cuts() && errors.Is(err, params.ErrUninitialized) {
		err = errors.Join(trainer.ErrRolledBack, err) // the job rolled back to its begin
	}
	return reply{content: done}, err
}

// used notes how many records of tasks the parameters include, from the beginning of each.
func (a *agent) used(w *trainer.Window, r *request) {
	for _, u := range r.Used {
		if t := a.tasks.of(int(u[0])); t != nil {
			w.Used(t, u[1])
		}
	}
}
