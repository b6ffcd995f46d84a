package pserver

import (
	"crypto/sha256"
	"fmt"
	"slices"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/optimizer/onwire"
	"trainmaster/pserver/placement"
	placewire "trainmaster/pserver/placement/onwire"
	"trainmaster/pserver/staleness"
	"trainmaster/pserver/table"
	tablewire "trainmaster/pserver/table/onwire"
)

// model is what all trainers of a job agree on, and where its blocks lie.
type model struct {
	optimizer optimizer.Config
	rule      optimizer.Rule
	sync      bool
	staleness staleness.Bound // of asynchronous updates
	table     *placement.Table
	digest    [sha256.Size]byte
}

func newModel(o optimizer.Config, synchronous bool, table *placement.Table) (*model, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.ClipNorm != 0 && len(table.Sparse) > 0 {
		return nil, fmt.Errorf("clip-norm is %v, and there are tables of embeddings: a norm over their rows too is not known; use clip-value", o.ClipNorm)
	}
	return &model{optimizer: o, rule: o.Rule(), sync: synchronous, table: table, digest: table.Digest()}, nil
}

// bounded is m with a bound for stale gradients.
func (m *model) bounded(b staleness.Bound) (*model, error) {
	if err := b.Validate(); err != nil {
		return nil, err
	}
	if m.sync && b != (staleness.Bound{}) {
		return nil, fmt.Errorf("staleness bound %q in mode %s: expected none, a synchronous gradient is of the version before or it is not applied", b, modeName(m.sync))
	}
	m.staleness = b
	return m, nil
}

// checkDeclared refuses what a trainer may not declare. Checkpoints of earlier versions may have it.
func (m *model) checkDeclared() error {
	for k := range m.table.Sparse {
		if err := m.table.Sparse[k].CheckBounded(); err != nil {
			return err
		}
	}
	return nil
}

// keyed is m with a key for the ids of its tables.
func (m *model) keyed(key table.Key) *model {
	if len(m.table.Sparse) == 0 {
		return m
	}
	keyed, table := *m, *m.table
	table.Sparse = slices.Clone(table.Sparse)
	for k := range table.Sparse {
		table.Sparse[k].Key = key
	}
	keyed.table, keyed.digest = &table, table.Digest()
	return &keyed
}

// agrees says whether a claim on m is one on other: the same in all that trainers must agree on.
func (m *model) agrees(other *model) bool {
	return m.digest == other.digest && m.optimizer == other.optimizer && m.sync == other.sync && m.staleness == other.staleness
}

// update describes the count-th update of some parameters, made in a step of the
// job; scale multiplies the learning rate of the schedule.
func (m *model) update(count, step uint64, scale float32) optimizer.Step {
	return optimizer.Step{Count: count, Scale: float32(m.optimizer.Schedule.At(step)) * scale}
}

// modelFromProto checks what a trainer sent and computes the first placement.
func modelFromProto(m *pb.ParameterModel) (*model, error) {
	if m.GetMode() != pb.UpdateMode_UPDATE_MODE_ASYNC && m.GetMode() != pb.UpdateMode_UPDATE_MODE_SYNC {
		return nil, fmt.Errorf("model has update mode %v: expected asynchronous or synchronous", m.GetMode())
	}
	table, err := placement.New(placewire.TensorsFromProto(m.GetTensors()), int(m.GetShards()), tablewire.FromProto(m.GetTables())...)
	if err != nil {
		return nil, err
	}
	described, err := newModel(onwire.FromProto(m.GetOptimizer()), m.GetMode() == pb.UpdateMode_UPDATE_MODE_SYNC, table)
	if err != nil {
		return nil, err
	}
	return described.bounded(staleness.Bound{Policy: m.GetStaleness().GetPolicy(), Limit: m.GetStaleness().GetLimit()})
}

func (m *model) toProto() *pb.ParameterModel {
	return &pb.ParameterModel{
		Tensors:   placewire.TensorsToProto(m.table.Tensors),
		Optimizer: onwire.ToProto(m.optimizer),
		Mode:      m.modeToProto(),
		Shards:    uint32(m.table.Shards),
		Staleness: &pb.StalenessBound{Policy: m.staleness.Policy, Limit: m.staleness.Limit},
		Tables:    tablewire.ToProto(m.table.Sparse),
	}
}

func (m *model) modeToProto() pb.UpdateMode {
	if m.sync {
		return pb.UpdateMode_UPDATE_MODE_SYNC
	}
	return pb.UpdateMode_UPDATE_MODE_ASYNC
}

// same says what differs between the model of this shard and another one, nil if nothing.
func (m *model) same(other *model) error {
	if moved := m.table.Epoch > 1; !moved && m.table.Shards != other.table.Shards {
		return fmt.Errorf("this model is spread over %d shards, yours over %d", m.table.Shards, other.table.Shards)
	}
	if m.sync != other.sync {
		return fmt.Errorf("this model is updated in mode %s, yours in mode %s", modeName(m.sync), modeName(other.sync))
	}
	if m.optimizer != other.optimizer {
		return fmt.Errorf("this model has optimizer %q, yours %q: train on with the same settings, or begin anew with another folder of checkpoints", m.optimizer, other.optimizer)
	}
	if m.staleness != other.staleness {
		return fmt.Errorf("this model has staleness bound %q, yours %q: train on with the same settings, or begin anew with another folder of checkpoints", m.staleness, other.staleness)
	}
	mine, yours := m.table.Tensors, other.table.Tensors
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
	return sameTables(m.table.Sparse, other.table.Sparse)
}

func modeName(synchronous bool) string {
	if synchronous {
		return checkpoint.Sync
	}
	return checkpoint.Async
}
