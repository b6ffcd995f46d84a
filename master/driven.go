package master

import (
	"context"

	"trainmaster/master/committer"
	"trainmaster/master/component"
	"trainmaster/master/store"
)

// Driven is a term whose rounds another one drives: recovery, batches, commits, read-backs
// and answers as in any term, but no goroutine and no clock of its own. A simulator drives
// it in virtual time. It is for one goroutine.
type Driven struct {
	*term
	config Config
}

// Drive recovers the state under a lock that is held. When ctx ends, the master is to stop: an
// unknown outcome ends the term then.
func Drive(ctx context.Context, lead store.Leadership, config Config) (*Driven, error) {
	config = config.withDefaults()
	c, err := committer.Recover(ctx, lead, config.committer(), nil, func() {}, func() {})
	if err != nil {
		return nil, err
	}
	return &Driven{&term{Committer: c}, config}, nil
}

// ServersChanged reports a change of the registry of parameter servers.
func (d *Driven) ServersChanged() { d.Post(component.ServersChanged{}) }

// TakeCuts subscribes to the other duties of the leader of a job with Options.Cuts. The returned function takes cuts
// and rolls the job back until ctx or the term ends. It reads from db. await waits for a token in done and takes it; ctx identifies
// the caller.
func (d *Driven) TakeCuts(db store.Store, servers Servers, await func(ctx context.Context, done <-chan struct{})) func(context.Context) error {
	checkpoints := newCheckpointer(d.control(db, servers, await))
	checkpoints.cuts = &rewinding{checkpointer: checkpoints, placed: func() []byte { return nil }} // no blocks move
	checkpoints.subscribe()
	return checkpoints.run
}

// SendSteps subscribes to the committed steps of a synchronous job. The returned function sends them to the parameter servers until
// its context ends. await is as for TakeCuts.
func (d *Driven) SendSteps(servers Servers, await func(ctx context.Context, done <-chan struct{})) func(context.Context) error {
	c := d.control(d.config.Store, servers, await)
	c.subscribe()
	return c.tellShards
}

// control returns the control of other parameter servers in this term.
func (d *Driven) control(db store.Store, servers Servers, await func(ctx context.Context, done <-chan struct{})) *control {
	config := d.config
	config.Store, config.Servers = db, servers
	d.Await(await)
	return newControl(d.term, config)
}
