package checkpoint

import (
	"fmt"

	"trainmaster/internal/safetensors"
	"trainmaster/pserver/placement"
)

// Share is the part of a model on one shard.
type Share struct {
	Table  *placement.Table
	Blocks []placement.Block // by number
}

// ShareOf is the share that a table gives to a shard.
func ShareOf(table *placement.Table, shard int) Share { return Share{table, table.Owned(shard)} }

// run is a sequence of adjacent blocks in a tensor.
type run struct{ first, last int } // indices in Share.Blocks

func (s Share) runs() []run {
	var list []run
	for i, b := range s.Blocks {
		if i > 0 {
			if before := s.Blocks[i-1]; before.Tensor == b.Tensor && before.Offset+before.Len == b.Offset {
				list[len(list)-1].last = i
				continue
			}
		}
		list = append(list, run{i, i})
	}
	return list
}

// Tensors describes the share as safetensors: a whole tensor has its own name and shape. A tensor on several shards has one entry
// for each run of blocks, named "tensor[from:to]". suffix follows the name of the tensor.
func (s Share) Tensors(suffix string) []safetensors.Info {
	list := s.runs()
	infos := make([]safetensors.Info, len(list))
	for i, r := range list {
		first, last := s.Blocks[r.first], s.Blocks[r.last]
		t := s.Table.Tensors[first.Tensor]
		from, to := first.Offset, last.Offset+last.Len
		infos[i] = safetensors.Info{Name: t.Name + suffix, DType: safetensors.F32, Shape: t.Shape}
		if from != 0 || to != t.Elements() {
			infos[i].Name = fmt.Sprintf("%s%s[%d:%d]", t.Name, suffix, from, to)
			infos[i].Shape = []int{to - from}
		}
	}
	return infos
}
