// Package onwire implements the protobuf form of package placement.
package onwire

import (
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/table/onwire"
)

// ToProto describes a placement. The result shares memory with t.
func ToProto(t *placement.Table) *pb.ParameterPlacement {
	return &pb.ParameterPlacement{
		Epoch: t.Epoch, Shards: uint32(t.Shards), Tensors: TensorsToProto(t.Tensors), Owners: t.Owners,
		Tables: onwire.ToProto(t.Sparse), SlotOwners: onwire.SlotsToProto(t.SlotOwners),
	}
}

// TensorsToProto describes tensors.
func TensorsToProto(list []placement.Tensor) []*pb.ParameterTensor {
	tensors := make([]*pb.ParameterTensor, len(list))
	for i, t := range list {
		tensors[i] = &pb.ParameterTensor{Name: t.Name}
		for _, d := range t.Shape {
			tensors[i].Shape = append(tensors[i].Shape, int64(d))
		}
	}
	return tensors
}

// FromProto reverses ToProto and checks the result.
func FromProto(p *pb.ParameterPlacement) (*placement.Table, error) {
	table := &placement.Table{
		Epoch: p.GetEpoch(), Shards: int(p.GetShards()), Tensors: TensorsFromProto(p.GetTensors()), Owners: p.GetOwners(),
		Sparse: onwire.FromProto(p.GetTables()), SlotOwners: onwire.SlotsFromProto(p.GetSlotOwners()),
	}
	return table, table.Check()
}

// TensorsFromProto is what TensorsToProto describes.
func TensorsFromProto(list []*pb.ParameterTensor) []placement.Tensor {
	tensors := make([]placement.Tensor, len(list))
	for i, t := range list {
		tensors[i].Name = t.GetName()
		for _, d := range t.GetShape() {
			tensors[i].Shape = append(tensors[i].Shape, int(d))
		}
	}
	return tensors
}
