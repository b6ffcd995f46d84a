package params

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/staleness"
	"trainmaster/pserver/wire"
	"trainmaster/trainer/params/link"
	"trainmaster/trainer/params/plan"
)

// Mode determines when gradients are applied.
type Mode int

// The modes. A job has one mode, fixed when its parameters are initialized.
const (
	Async Mode = iota + 1 // PushPull: applied on arrival
	Sync                  // Stage: applied when the master commits a version
)

func (m Mode) String() string {
	switch m {
	case Async:
		return "async"
	case Sync:
		return "sync"
	}
	return fmt.Sprintf("mode %d", int(m))
}

// Optimizer is the rule by which a gradient changes the parameters. It belongs to the job: all trainers give the same.
type Optimizer = optimizer.Config

// CheckOptimizer returns an error for an invalid field in a model with or without tables, and sets the defaults.
func CheckOptimizer(o *Optimizer, tables bool) error {
	if err := o.Validate(); err != nil {
		return err
	}
	if tables && o.ClipNorm != 0 {
		return &optimizer.FieldError{Kind: o.Kind, Setting: "clip-norm", Value: fmt.Sprint(o.ClipNorm),
			Expected: "0 with tables of embeddings, over whose rows too the norm is not known; use clip-value"}
	}
	return nil
}

// CheckWithTables refuses a wire type that embedding tables do not support.
func CheckWithTables(dtype WireDType) error {
	if dtype == BFloat16 {
		return fmt.Errorf("wire-dtype %s: expected %s with embedding tables", dtype, Float32)
	}
	return nil
}

// The kinds of Optimizer that keep at most a velocity; package optimizer has all.
const (
	SGD      = optimizer.SGD
	Momentum = optimizer.Momentum
	Nesterov = optimizer.Nesterov
)

// Staleness is the bound for stale gradients. The zero value applies all gradients with the full learning rate.
type Staleness = staleness.Bound

// Tensor is a named array of float32 in row-major order; len(Data) is the product of Shape.
type Tensor = plan.Tensor

// WireDType is the element type of gradients and parameters between a trainer and
// the servers. Trainers of one job may use different types.
type WireDType string

// The types. The servers keep parameters and optimizer state as float32 anyway.
const (
	Float32 WireDType = "float32"

	// BFloat16 is half the bytes, and eight bits of precision: gradients and the
	// parameters that the trainer gets are rounded to nearest, ties to even, by 2^-9
	// of their size at most. Gradients above 3.39e38 are refused as infinite.
	BFloat16 WireDType = "bfloat16"
)

var wireDTypes = map[WireDType]wire.DType{Float32: wire.Float32, BFloat16: wire.BFloat16}

// WireDTypes lists the types.
func WireDTypes() []string { return []string{string(Float32), string(BFloat16)} }

// Config configures a Client. Addrs, Mode, Optimizer and Incarnation are required.
type Config struct {
	// Addrs returns the "ip:port" of every shard by index. It waits until all are present and reports the reason of the wait. It
	// returns an error only when ctx ends or waiting cannot help. It is called again after a shard was lost, also
	// concurrently.
	Addrs func(ctx context.Context) ([]string, error)

	// During returns a context that ends with parent, with release, and when the registry names another address or none for the
	// shard. A call to a hanging server then ends before ReplyTimeout. Default: it ends with parent.
	During func(parent context.Context, index int, addr string) (ctx context.Context, release context.CancelFunc)

	Mode      Mode
	Optimizer Optimizer
	Staleness Staleness // of mode Async; belongs to the job as well
	Tables    []Table   // of embeddings; all trainers of the job give the same

	Ordinal     uint32 // the trainer's own small number
	Incarnation uint64 // of this start of the trainer, at least 1: greater than that of every earlier start of any trainer

	JobID string // of the servers that the client may use, in hexadecimal digits. "": of any.

	JobEpoch uint32 // epoch of the trainer: a call waits for servers at a lower epoch, and fails with [ErrRolledBack] at a higher one; 0: any

	WireDType WireDType // of gradients and parameters in transit; default Float32

	ReplyTimeout time.Duration // a server without a reply for this time is lost, default 20 s
	RetryMin     time.Duration // First pause before another attempt. Pauses double, with jitter. Default 50 ms.
	RetryMax     time.Duration // Longest pause before another attempt. Default 2 s.

	Log *logrus.Entry // default: the standard logger
}

// Validate returns an error for an invalid field, and sets the defaults.
func (c *Config) Validate() error {
	if c.Addrs == nil {
		return errors.New("params.Config.Addrs is nil: expected a function that finds the parameter servers")
	}
	if c.Mode != Async && c.Mode != Sync {
		return fmt.Errorf("params.Config.Mode is %v: expected async or sync", c.Mode)
	}
	if err := CheckOptimizer(&c.Optimizer, len(c.Tables) > 0); err != nil {
		return fmt.Errorf("params.Config.Optimizer: %w", err)
	}
	if err := c.Staleness.Validate(); err != nil {
		return fmt.Errorf("params.Config.Staleness: %w", err)
	}
	if c.Mode == Sync && c.Staleness != (Staleness{}) {
		return fmt.Errorf("params.Config.Staleness is %q in mode sync: expected none", c.Staleness)
	}
	c.Tables = slices.Clone(c.Tables)
	for i := range c.Tables {
		if err := c.Tables[i].Validate(); err != nil {
			return fmt.Errorf("params.Config.Tables: %w", err)
		}
	}
	if c.Incarnation == 0 {
		return errors.New("params.Config.Incarnation is 0: expected the number that the master gave this trainer")
	}
	if c.During == nil {
		c.During = func(parent context.Context, _ int, _ string) (context.Context, context.CancelFunc) {
			return context.WithCancel(parent)
		}
	}
	c.WireDType = cmp.Or(c.WireDType, Float32)
	if _, ok := wireDTypes[c.WireDType]; !ok {
		return fmt.Errorf("params.Config.WireDType is %q: expected %s or %s", c.WireDType, Float32, BFloat16)
	}
	if err := CheckWithTables(c.WireDType); err != nil && len(c.Tables) > 0 {
		return fmt.Errorf("params.Config: %w", err)
	}
	c.ReplyTimeout = cmp.Or(c.ReplyTimeout, 20*time.Second)
	c.RetryMin = cmp.Or(c.RetryMin, 50*time.Millisecond)
	c.RetryMax = cmp.Or(c.RetryMax, 2*time.Second)
	for name, d := range map[string]time.Duration{"ReplyTimeout": c.ReplyTimeout, "RetryMin": c.RetryMin, "RetryMax": c.RetryMax} {
		if d < 0 {
			return fmt.Errorf("params.Config.%s is %v: expected a positive duration", name, d)
		}
	}
	if c.Log == nil {
		c.Log = logrus.NewEntry(logrus.StandardLogger())
	}
	return nil
}

// StaleError is returned for a gradient that was staged too late: the shards are at Version. Pull that version, compute the
// gradient of the same batch again and stage it.
type StaleError = link.StaleError

// NotFiniteError is returned for a gradient or an initial parameter with a NaN or an infinity, before any of it is sent.
type NotFiniteError = plan.NotFiniteError

// ErrUninitialized: a server holds no parameters. Either Init was not called, or the server was restarted without a
// checkpoint, so that its share of the model is lost.
var ErrUninitialized = link.ErrUninitialized

// ErrNoSet: an ErrUninitialized of a server that was restarted before the first checkpoint set. No server has applied a push: join
// again and call Init.
var ErrNoSet = link.ErrNoSet

// ErrFenced: a newer incarnation of this trainer has connected to the servers, or the servers retired the trainer after its
// session ended. This incarnation must stop.
var ErrFenced = link.ErrFenced

// ErrServerFailed: a parameter server failed on a request each time that it was sent. The log of the server has the reason.
var ErrServerFailed = link.ErrServerFailed

// ErrRolledBack: the job rolled back to a checkpoint set, in a new epoch. Earlier results are invalid.
var ErrRolledBack = link.ErrRolledBack
