// Package shards implements calls on all parameter servers of a job.
//
// A [Set] has a link to each shard and the placement of the model. [Set.Init] declares the model, and one trainer of the job sets the
// first parameters. [Set.Do] makes a call in parallel at all shards with a part in it: [Set.Tensors] is a call on the blocks of the
// model, [Set.Rows] a call on rows of a table. [Set.Scan] reads a whole table.
//
// If blocks or slots moved, Do finds the new owners and sends the blocks without an acknowledgment. An error of a call is one of package link, or
// the cause of the end of the context.
//
// A Set is not safe for concurrent use.
package shards

import (
	"errors"
	"fmt"
	"slices"

	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/staleness"
	"trainmaster/pserver/table"
	"trainmaster/pserver/wire"
	"trainmaster/trainer/params/link"
	"trainmaster/trainer/params/plan"
	"trainmaster/trainer/params/stream"
)

// Config is the part of the configuration that the servers and the calls need.
type Config struct {
	Link link.Config // without Table

	Sync      bool
	Optimizer optimizer.Config
	Staleness staleness.Bound
	Tables    []table.Config
	DType     wire.DType // of gradients and parameters in transit
}

// Set is the client's side of all shards.
type Set struct {
	cfg    Config
	shards []*shard

	table    *placement.Table  // set by Init
	declared []plan.Tensor     // as given to Init, without data
	blocks   []plan.Block      // by id
	progress []stream.Progress // of the blocks
	key      *tableKey         // of servers that have parameters; nil: not known
	rows     plan.Rows
}

// shard is one server's part in a call.
type shard struct {
	*link.Link
	blocks []uint64       // ids
	rows   []rowFrame     // of the current or last call
	frames []stream.Frame // likewise

	outgoing, incoming []float32 // a frame of rows being sent, the rows of one being read
}

// New returns the set of the shards at addrs.
func New(cfg Config, addrs []string) *Set {
	set := &Set{cfg: cfg}
	set.cfg.Link.Table = func() *placement.Table { return set.table }
	for i, addr := range addrs {
		set.shards = append(set.shards, &shard{Link: link.New(&set.cfg.Link, i, addr)})
	}
	return set
}

// Blocks returns the blocks of the model by id, with their payloads of the current call.
func (set *Set) Blocks() []plan.Block { return set.blocks }

// Close closes the connections. It must not run during another call.
func (set *Set) Close() error {
	var errs []error
	for _, s := range set.shards {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

var errNotInitialized = errors.New("params.Client: call Init first")

// Check compares tensors with those given to Init.
func (set *Set) Check(what string, tensors []plan.Tensor) error {
	if set.table == nil {
		return errNotInitialized
	}
	if len(tensors) != len(set.declared) {
		return fmt.Errorf("%s has %d tensors, the model has %d", what, len(tensors), len(set.declared))
	}
	for i, want := range set.declared {
		got := tensors[i]
		if got.Name != want.Name || !slices.Equal(got.Shape, want.Shape) {
			return fmt.Errorf("%s %d is %q %v, the model has %q %v there", what, i, got.Name, got.Shape, want.Name, want.Shape)
		}
		if n := (placement.Tensor{Shape: want.Shape}).Elements(); len(got.Data) != n {
			return fmt.Errorf("%s %q %v has %d elements, expected %d", what, got.Name, got.Shape, len(got.Data), n)
		}
	}
	return nil
}
