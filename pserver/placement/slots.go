package placement

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"trainmaster/pserver/table"
)

// placeSlots gives every shard a run of slots of each table, of equal length within one. The next table begins one shard further, so
// that the remainder is spread over the shards.
func (t *Table) placeSlots() {
	for k := range t.Sparse {
		owners := make([]uint32, table.Slots)
		for slot := range owners {
			owners[slot] = uint32((slot*t.Shards/table.Slots + k) % t.Shards)
		}
		t.SlotOwners = append(t.SlotOwners, owners)
	}
}

// HeldSlots lists the slots of a table on a shard, in ascending order.
func (t *Table) HeldSlots(table, shard int) (slots []uint32) {
	for slot, owner := range t.SlotOwners[table] {
		if owner == uint32(shard) {
			slots = append(slots, uint32(slot))
		}
	}
	return slots
}

func (t *Table) checkTables() error {
	if len(t.Sparse) > table.MaxTables {
		return fmt.Errorf("%d tables: expected at most %d", len(t.Sparse), table.MaxTables)
	}
	for i, table := range t.Sparse {
		if err := table.Validate(); err != nil {
			return err
		}
		if i > 0 && t.Sparse[i-1].Name >= table.Name {
			return fmt.Errorf("table %q is a duplicate or out of order: expected tables sorted by name", table.Name)
		}
		if slices.ContainsFunc(t.Tensors, func(tensor Tensor) bool { return tensor.Name == table.Name }) {
			return fmt.Errorf("%q is the name of a tensor and of a table: choose another one", table.Name)
		}
	}
	if len(t.SlotOwners) != len(t.Sparse) {
		return fmt.Errorf("placement has the slots of %d tables, there are %d", len(t.SlotOwners), len(t.Sparse))
	}
	for i, owners := range t.SlotOwners {
		if err := checkOwners(fmt.Sprintf("slots of table %q", t.Sparse[i].Name), owners, table.Slots, t.Shards); err != nil {
			return err
		}
	}
	return nil
}

// appendTables adds the tables to the digest input; it adds nothing without tables.
func (t *Table) appendTables(buf []byte) []byte {
	if len(t.Sparse) == 0 {
		return buf
	}
	text := func(s string) {
		buf = binary.AppendUvarint(buf, uint64(len(s)))
		buf = append(buf, s...)
	}
	buf = append(buf, "tables 1\x00"...)
	buf = binary.AppendUvarint(buf, uint64(len(t.Sparse)))
	for i, table := range t.Sparse {
		text(table.Name)
		buf = binary.AppendUvarint(buf, uint64(table.Dim))
		text(table.Init)
		buf = binary.LittleEndian.AppendUint32(buf, math.Float32bits(table.Scale))
		buf = binary.AppendUvarint(buf, table.Seed)
		buf = binary.AppendUvarint(buf, table.Expiry)
		buf = binary.AppendUvarint(buf, uint64(table.Admission))
		for _, owner := range t.SlotOwners[i] {
			buf = binary.AppendUvarint(buf, uint64(owner))
		}
	}
	for _, table := range t.Sparse {
		if key := table.Key.Bytes(); key != nil {
			buf = append(append(buf, "key\x00"...), key...)
		}
	}
	return buf
}
