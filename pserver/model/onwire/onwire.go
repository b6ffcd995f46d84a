// Package onwire implements the protobuf form of package model.
package onwire

import (
	"fmt"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/model"
	"trainmaster/pserver/optimizer/onwire"
	"trainmaster/pserver/placement"
	placewire "trainmaster/pserver/placement/onwire"
	"trainmaster/pserver/staleness"
	tablewire "trainmaster/pserver/table/onwire"
)

// FromProto checks the model that a trainer declared and computes its first placement.
func FromProto(p *pb.ParameterModel) (*model.Model, error) {
	if p.GetMode() != pb.UpdateMode_UPDATE_MODE_ASYNC && p.GetMode() != pb.UpdateMode_UPDATE_MODE_SYNC {
		return nil, fmt.Errorf("model has update mode %v: expected asynchronous or synchronous", p.GetMode())
	}
	placed, err := placement.New(placewire.TensorsFromProto(p.GetTensors()), int(p.GetShards()), tablewire.FromProto(p.GetTables())...)
	if err != nil {
		return nil, err
	}
	m, err := model.New(onwire.FromProto(p.GetOptimizer()), p.GetMode() == pb.UpdateMode_UPDATE_MODE_SYNC, placed)
	if err != nil {
		return nil, err
	}
	return m.WithStaleness(staleness.Bound{Policy: p.GetStaleness().GetPolicy(), Limit: p.GetStaleness().GetLimit()})
}

// ToProto describes m.
func ToProto(m *model.Model) *pb.ParameterModel {
	return &pb.ParameterModel{
		Tensors:   placewire.TensorsToProto(m.Placement.Tensors),
		Optimizer: onwire.ToProto(m.Optimizer),
		Mode:      ModeToProto(m),
		Shards:    uint32(m.Placement.Shards),
		Staleness: &pb.StalenessBound{Policy: m.Staleness.Policy, Limit: m.Staleness.Limit},
		Tables:    tablewire.ToProto(m.Placement.Sparse),
	}
}

// ModeToProto returns the update mode of m.
func ModeToProto(m *model.Model) pb.UpdateMode {
	if m.Sync {
		return pb.UpdateMode_UPDATE_MODE_SYNC
	}
	return pb.UpdateMode_UPDATE_MODE_ASYNC
}
