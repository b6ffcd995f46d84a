// Package onwire implements the protobuf form of a model with its optimizer, placement and tables of embeddings.
package onwire

import (
	"fmt"
	"slices"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/model"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/staleness"
	"trainmaster/pserver/table"
)

// ModelFromProto checks the model that a trainer declared and computes its first placement.
func ModelFromProto(p *pb.ParameterModel) (*model.Model, error) {
	if p.GetMode() != pb.UpdateMode_UPDATE_MODE_ASYNC && p.GetMode() != pb.UpdateMode_UPDATE_MODE_SYNC {
		return nil, fmt.Errorf("model has update mode %v: expected asynchronous or synchronous", p.GetMode())
	}
	placed, err := placement.New(tensorsFromProto(p.GetTensors()), int(p.GetShards()), tablesFromProto(p.GetTables())...)
	if err != nil {
		return nil, err
	}
	m, err := model.New(optimizerFromProto(p.GetOptimizer()), p.GetMode() == pb.UpdateMode_UPDATE_MODE_SYNC, placed)
	if err != nil {
		return nil, err
	}
	return m.WithStaleness(staleness.Bound{Policy: p.GetStaleness().GetPolicy(), Limit: p.GetStaleness().GetLimit()})
}

// ModelToProto describes m.
func ModelToProto(m *model.Model) *pb.ParameterModel {
	return &pb.ParameterModel{
		Tensors:   tensorsToProto(m.Placement.Tensors),
		Optimizer: optimizerToProto(m.Optimizer),
		Mode:      ModeToProto(m),
		Shards:    uint32(m.Placement.Shards),
		Staleness: &pb.StalenessBound{Policy: m.Staleness.Policy, Limit: m.Staleness.Limit},
		Tables:    tablesToProto(m.Placement.Sparse),
	}
}

// ModeToProto returns the update mode of m.
func ModeToProto(m *model.Model) pb.UpdateMode {
	if m.Sync {
		return pb.UpdateMode_UPDATE_MODE_SYNC
	}
	return pb.UpdateMode_UPDATE_MODE_ASYNC
}

// optimizerToProto is c as a message.
func optimizerToProto(c optimizer.Config) *pb.ParameterOptimizer {
	m := &pb.ParameterOptimizer{
		Kind: c.Kind, LearningRate: c.LearningRate, Momentum: c.Momentum,
		Beta1: c.Beta1, Beta2: c.Beta2, Epsilon: c.Epsilon,
		InitialAccumulator: c.InitialAccumulator, FtrlBeta: c.FTRLBeta, L1: c.L1, L2: c.L2,
		WeightDecay: c.WeightDecay, ClipValue: c.ClipValue, ClipNorm: c.ClipNorm,
	}
	if s := c.Schedule; s != (optimizer.Schedule{}) {
		m.Schedule = &pb.LearningRateSchedule{
			Kind: s.Kind, WarmupSteps: s.Warmup, Steps: s.Steps, End: s.End, Every: s.Every, Factor: s.Factor,
		}
	}
	return m
}

// optimizerFromProto is the configuration that a message carries, not validated.
func optimizerFromProto(m *pb.ParameterOptimizer) optimizer.Config {
	s := m.GetSchedule()
	return optimizer.Config{
		Kind: m.GetKind(), LearningRate: m.GetLearningRate(), Momentum: m.GetMomentum(),
		Beta1: m.GetBeta1(), Beta2: m.GetBeta2(), Epsilon: m.GetEpsilon(),
		InitialAccumulator: m.GetInitialAccumulator(), FTRLBeta: m.GetFtrlBeta(), L1: m.GetL1(), L2: m.GetL2(),
		WeightDecay: m.GetWeightDecay(), ClipValue: m.GetClipValue(), ClipNorm: m.GetClipNorm(),
		Schedule: optimizer.Schedule{
			Kind: s.GetKind(), Warmup: s.GetWarmupSteps(), Steps: s.GetSteps(), End: s.GetEnd(), Every: s.GetEvery(), Factor: s.GetFactor(),
		},
	}
}

// PlacementToProto describes a placement. The result shares memory with t.
func PlacementToProto(t *placement.Table) *pb.ParameterPlacement {
	return &pb.ParameterPlacement{
		Epoch: t.Epoch, Shards: uint32(t.Shards), Tensors: tensorsToProto(t.Tensors), Owners: t.Owners,
		Tables: tablesToProto(t.Sparse), SlotOwners: slices.Concat(t.SlotOwners...),
	}
}

// tensorsToProto describes tensors.
func tensorsToProto(list []placement.Tensor) []*pb.ParameterTensor {
	tensors := make([]*pb.ParameterTensor, len(list))
	for i, t := range list {
		tensors[i] = &pb.ParameterTensor{Name: t.Name}
		for _, d := range t.Shape {
			tensors[i].Shape = append(tensors[i].Shape, int64(d))
		}
	}
	return tensors
}

// PlacementFromProto reverses PlacementToProto and checks the result.
func PlacementFromProto(p *pb.ParameterPlacement) (*placement.Table, error) {
	t := &placement.Table{
		Epoch: p.GetEpoch(), Shards: int(p.GetShards()), Tensors: tensorsFromProto(p.GetTensors()), Owners: p.GetOwners(),
		Sparse: tablesFromProto(p.GetTables()), SlotOwners: slices.Collect(slices.Chunk(p.GetSlotOwners(), table.Slots)),
	}
	return t, t.Check()
}

// tensorsFromProto is what tensorsToProto describes.
func tensorsFromProto(list []*pb.ParameterTensor) []placement.Tensor {
	tensors := make([]placement.Tensor, len(list))
	for i, t := range list {
		tensors[i].Name = t.GetName()
		for _, d := range t.GetShape() {
			tensors[i].Shape = append(tensors[i].Shape, int(d))
		}
	}
	return tensors
}

// tablesToProto describes tables.
func tablesToProto(tables []table.Config) []*pb.ParameterTable {
	var list []*pb.ParameterTable
	for _, t := range tables {
		list = append(list, &pb.ParameterTable{
			Name: t.Name, Dim: uint32(t.Dim), Initialiser: t.Init, Scale: t.Scale, Seed: t.Seed, Expiry: t.Expiry, Admission: t.Admission, Key: t.Key.Bytes(),
		})
	}
	return list
}

// tablesFromProto is what tablesToProto describes; it may be anything, see [table.Config.Validate].
func tablesFromProto(list []*pb.ParameterTable) []table.Config {
	var tables []table.Config
	for _, t := range list {
		//guard:table-key-kept
		tables = append(tables, table.Config{
			Name: t.GetName(), Dim: int(t.GetDim()), Init: t.GetInitialiser(), Scale: t.GetScale(), Seed: t.GetSeed(), Expiry: t.GetExpiry(), Admission: t.GetAdmission(), Key: table.KeyOf(t.GetKey()),
		})
	}
	return tables
}
