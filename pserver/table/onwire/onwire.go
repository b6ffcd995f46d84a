// Package onwire implements the protobuf form of package table.
package onwire

import (
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/table"
)

// ToProto describes tables.
func ToProto(tables []table.Config) []*pb.ParameterTable {
	var list []*pb.ParameterTable
	for _, t := range tables {
		list = append(list, &pb.ParameterTable{
			Name: t.Name, Dim: uint32(t.Dim), Initialiser: t.Init, Scale: t.Scale, Seed: t.Seed, Expiry: t.Expiry, Admission: t.Admission, Key: t.Key.Bytes(),
		})
	}
	return list
}

// FromProto is what ToProto describes; it may be anything, see [table.Config.Validate].
func FromProto(list []*pb.ParameterTable) []table.Config {
	var tables []table.Config
	for _, t := range list {
		//guard:table-key-kept
		tables = append(tables, table.Config{
			Name: t.GetName(), Dim: int(t.GetDim()), Init: t.GetInitialiser(), Scale: t.GetScale(), Seed: t.GetSeed(), Expiry: t.GetExpiry(), Admission: t.GetAdmission(), Key: table.KeyOf(t.GetKey()),
		})
	}
	return tables
}

// SlotsToProto is the shard of every slot, table after table.
func SlotsToProto(owners [][]uint32) []uint32 {
	var flat []uint32
	for _, table := range owners {
		flat = append(flat, table...)
	}
	return flat
}

// SlotsFromProto is what SlotsToProto describes; the last table may be too short.
func SlotsFromProto(flat []uint32) (owners [][]uint32) {
	for len(flat) > 0 {
		n := min(len(flat), table.Slots)
		owners, flat = append(owners, flat[:n:n]), flat[n:]
	}
	return owners
}
