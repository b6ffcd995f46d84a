package params

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"

	"trainmaster/pserver/placement"
	"trainmaster/pserver/wire"
	"trainmaster/trainer/params/link"
	"trainmaster/trainer/params/plan"
	"trainmaster/trainer/params/shards"
	"trainmaster/trainer/params/stream"
)

// Client is the client of all parameter servers of a job.
type Client struct {
	cfg    Config
	shards *shards.Set
}

// Connect finds the parameter servers. It waits until all are present.
func Connect(ctx context.Context, cfg Config) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	addrs, err := cfg.Addrs(ctx)
	if err != nil {
		return nil, fmt.Errorf("find the parameter servers: %w", err)
	}
	if len(addrs) == 0 || len(addrs) > placement.MaxShards {
		return nil, fmt.Errorf("found %d parameter servers: expected 1 to %d", len(addrs), placement.MaxShards)
	}
	return &Client{cfg, shards.New(shards.Config{
		Link: link.Config{
			Addrs: cfg.Addrs, During: cfg.During, JobEpoch: cfg.JobEpoch, RetryMin: cfg.RetryMin, RetryMax: cfg.RetryMax, Log: cfg.Log,
			Stream: stream.Config{Ordinal: cfg.Ordinal, Incarnation: cfg.Incarnation, JobID: cfg.JobID, Sequence: new(atomic.Uint64), Timeout: cfg.ReplyTimeout},
		},
		Sync: cfg.Mode == Sync, Optimizer: cfg.Optimizer, Staleness: cfg.Staleness, Tables: cfg.Tables, DType: wireDTypes[cfg.WireDType],
	}, addrs)}, nil
}

// Close closes the connections. It must not run during another call.
func (c *Client) Close() error { return c.shards.Close() }

// Init declares the model and makes sure that the servers have its parameters: one trainer of the job sets them from tensors, the
// others wait. Then Init fills tensors with the parameters on the servers; after a restart of the job they can come from a
// checkpoint. If the initializing trainer exits while the servers take its parameters over, another trainer sets the rest.
func (c *Client) Init(ctx context.Context, tensors []Tensor) error {
	if err := c.shards.Init(ctx, tensors); err != nil {
		return fmt.Errorf("initialize parameters: %w", err)
	}
	_, err := c.Pull(ctx, tensors, 0)
	return err
}

// Pull fills dst with the parameters. In mode Sync it waits for minVersion, and all blocks have the returned version, which may be
// later. In mode Async each block is consistent, and the version is the lowest number of applied pushes of a
// block.
func (c *Client) Pull(ctx context.Context, dst []Tensor, minVersion uint64) (version uint64, err error) {
	if err := c.shards.Check("destination", dst); err != nil {
		return 0, err
	}
	if version, err = c.shards.Fetch(ctx, c.shards.Tensors(wire.Pull, 0, 0, nil, dst), minVersion); err != nil {
		return 0, fmt.Errorf("pull: %w", err)
	}
	return version, nil
}

// PushPull sends the gradients of one step, each the mean over its batch, and fills dst with the parameters after the push. scale
// multiplies the scheduled learning rate of the job; the schedule depends on step. Steps start at 1 and grow. A step that is not
// greater than an earlier step counts as a repetition and is not applied. The version is as in Pull. Optimizer.ClipNorm is applied
// to grads in place. If dst is nil, PushPull is Push.
func (c *Client) PushPull(ctx context.Context, step uint64, scale float32, grads, dst []Tensor) (version uint64, err error) {
	op := wire.Push
	if dst != nil {
		op = wire.PushPull
		if err := c.shards.Check("destination", dst); err != nil {
			return 0, err
		}
	}
	if err := c.checkPush("push", step, scale); err != nil {
		return 0, err
	}
	if err := c.shards.Check("gradient", grads); err != nil {
		return 0, err
	}
	plan.Clip(grads, 1, c.cfg.Optimizer.ClipNorm) // before the sums are made
	if err := plan.Blocks("gradient", c.shards.Blocks(), wireDTypes[c.cfg.WireDType], grads); err != nil {
		return 0, err
	}
	if err := c.shards.Do(ctx, c.shards.Tensors(op, step, math.Float32bits(scale), grads, dst)); err != nil {
		return 0, fmt.Errorf("push: %w", err)
	}
	low, _ := c.shards.Versions()
	return uint64(low), nil
}

// Push is PushPull without the parameters. The trainer's parameters become staler.
func (c *Client) Push(ctx context.Context, step uint64, scale float32, grads []Tensor) (version uint64, err error) {
	return c.PushPull(ctx, step, scale, grads, nil)
}

// Stage stages gradients, each the sum over records, computed from the parameters of version. They are applied when the master
// commits version+1 with this trainer among the contributors. The error is a *StaleError if the version is past. Another Stage at
// the same version replaces the first.
// Optimizer.ClipNorm limits the mean, grads/records; it is applied to grads in place.
func (c *Client) Stage(ctx context.Context, version uint64, grads []Tensor, records int) error {
	if err := c.checkStage("stage", records); err != nil {
		return err
	}
	if err := c.shards.Check("gradient", grads); err != nil {
		return err
	}
	plan.Clip(grads, records, c.cfg.Optimizer.ClipNorm)
	if err := plan.Blocks("gradient", c.shards.Blocks(), wireDTypes[c.cfg.WireDType], grads); err != nil {
		return err
	}
	if err := c.shards.Do(ctx, c.shards.Tensors(wire.Stage, version, uint32(records), grads, nil)); err != nil {
		return fmt.Errorf("stage: %w", err)
	}
	return nil
}

func (c *Client) checkPush(method string, step uint64, scale float32) error {
	if err := c.checkMode(Async, method); err != nil {
		return err
	}
	if step == 0 {
		return fmt.Errorf("%s: step is 0: steps start at 1", method)
	}
	if !(scale > 0) || scale-scale != 0 {
		return fmt.Errorf("%s: learning-rate scale is %v: expected a positive number", method, scale)
	}
	return nil
}

func (c *Client) checkStage(method string, records int) error {
	if err := c.checkMode(Sync, method); err != nil {
		return err
	}
	if records < 1 || records > math.MaxUint32 {
		return fmt.Errorf("%s: %d records: expected 1 to %d", method, records, uint32(math.MaxUint32))
	}
	return nil
}

func (c *Client) checkMode(mode Mode, method string) error {
	if c.cfg.Mode != mode {
		return fmt.Errorf("%s is for mode %v, this client is in mode %v", method, mode, c.cfg.Mode)
	}
	return nil
}
