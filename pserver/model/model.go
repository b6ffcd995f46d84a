// Package model implements the description of a model: the part that all trainers and parameter servers of a job agree on.
//
// A [Model] names the tensors and tables of embeddings with their placement, the optimizer, the update mode and the staleness
// bound. A model never changes: the With methods return copies, which share what is equal. The package
// does no I/O. Package pserver/onwire converts a model to protobuf.
//
// New and the With methods return an error if settings contradict each other. [Model.Differ] names the first difference between
// two models, for a trainer that joins with other settings.
package model

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/staleness"
	"trainmaster/pserver/table"
)

// The update modes, as checkpoints and messages name them.
const (
	Async = "async"
	Sync  = "sync"
)

// Model describes the parameters of a job, how they are updated, and which server owns which block and slot.
type Model struct {
	Optimizer optimizer.Config
	Rule      optimizer.Rule // of Optimizer
	Sync      bool
	Staleness staleness.Bound // of asynchronous updates
	Placement *placement.Table
	Digest    [sha256.Size]byte // of Placement
}

// New returns a model without a staleness bound. It fails if the optimizer is invalid or does not support tables of embeddings.
func New(o optimizer.Config, synchronous bool, placed *placement.Table) (*Model, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.ClipNorm != 0 && len(placed.Sparse) > 0 {
		return nil, fmt.Errorf("clip-norm is %v: expected 0 in a model with tables of embeddings, whose norm is unknown: use clip-value", o.ClipNorm)
	}
	return &Model{Optimizer: o, Rule: o.Rule(), Sync: synchronous, Placement: placed, Digest: placed.Digest()}, nil
}

// WithStaleness returns m with a bound for stale gradients. It fails if the bound is invalid or m is synchronous.
func (m *Model) WithStaleness(b staleness.Bound) (*Model, error) {
	if err := b.Validate(); err != nil {
		return nil, err
	}
	if m.Sync && b != (staleness.Bound{}) {
		return nil, fmt.Errorf("staleness bound %q in mode %s: expected none: synchronous gradients are never stale", b, m.Mode())
	}
	c := *m
	c.Staleness = b
	return &c, nil
}

// WithKey returns m with a hash key for the ids of its tables.
func (m *Model) WithKey(key table.Key) *Model {
	if len(m.Placement.Sparse) == 0 {
		return m
	}
	placed := *m.Placement
	placed.Sparse = slices.Clone(placed.Sparse)
	for k := range placed.Sparse {
		placed.Sparse[k].Key = key
	}
	return m.withPlacement(&placed)
}

// WithLayout returns m with the blocks and slots at the owners of a layout.
func (m *Model) WithLayout(l *placement.Layout) (*Model, error) {
	placed, err := l.Apply(m.Placement)
	if err != nil {
		return nil, err
	}
	return m.withPlacement(placed), nil
}

func (m *Model) withPlacement(placed *placement.Table) *Model {
	c := *m
	c.Placement, c.Digest = placed, placed.Digest()
	return &c
}

// Equal reports whether two models are the same, placement included.
func (m *Model) Equal(other *Model) bool {
	return m.Digest == other.Digest && m.Optimizer == other.Optimizer && m.Sync == other.Sync && m.Staleness == other.Staleness
}

// Update returns the optimizer step of the count-th update of some parameters at a step of the job. scale multiplies the
// scheduled learning rate.
func (m *Model) Update(count, step uint64, scale float32) optimizer.Step {
	return optimizer.Step{Count: count, Scale: float32(m.Optimizer.Schedule.At(step)) * scale}
}

// Mode returns the name of the update mode.
func (m *Model) Mode() string {
	if m.Sync {
		return Sync
	}
	return Async
}

// Differ returns the first difference between the model of a server and the model of a trainer, nil if there is none.
func (m *Model) Differ(other *Model) error {
	const keep = "train with the same settings, or start with an empty checkpoint directory"
	if moved := m.Placement.Epoch > 1; !moved && m.Placement.Shards != other.Placement.Shards {
		return fmt.Errorf("this model has %d shards, yours %d", m.Placement.Shards, other.Placement.Shards)
	}
	if m.Sync != other.Sync {
		return fmt.Errorf("this model is updated in mode %s, yours in mode %s", m.Mode(), other.Mode())
	}
	if m.Optimizer != other.Optimizer {
		return fmt.Errorf("this model has optimizer %q, yours %q: %s", m.Optimizer, other.Optimizer, keep)
	}
	if m.Staleness != other.Staleness {
		return fmt.Errorf("this model has staleness bound %q, yours %q: %s", m.Staleness, other.Staleness, keep)
	}
	mine, yours := m.Placement.Tensors, other.Placement.Tensors
	for i := range max(len(mine), len(yours)) {
		switch {
		case i >= len(yours) || i < len(mine) && mine[i].Name < yours[i].Name:
			return fmt.Errorf("this model has the tensor %q, yours has not", mine[i].Name)
		case i >= len(mine) || yours[i].Name < mine[i].Name:
			return fmt.Errorf("your model has the tensor %q, this one has not", yours[i].Name)
		case !slices.Equal(mine[i].Shape, yours[i].Shape):
			return fmt.Errorf("tensor %q has shape %v, yours %v", mine[i].Name, mine[i].Shape, yours[i].Shape)
		}
	}
	return differTables(m.Placement.Sparse, other.Placement.Sparse)
}

// differTables returns the first difference between the tables of two models.
func differTables(mine, yours []table.Config) error {
	for i := range max(len(mine), len(yours)) {
		switch {
		case i >= len(yours) || i < len(mine) && mine[i].Name < yours[i].Name:
			return fmt.Errorf("this model has the table %q, yours has not", mine[i].Name)
		case i >= len(mine) || yours[i].Name < mine[i].Name:
			return fmt.Errorf("your model has the table %q, this one has not", yours[i].Name)
		}
		if what := mine[i].Differ(yours[i]); what != "" {
			return errors.New(what)
		}
	}
	return nil
}
