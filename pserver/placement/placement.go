// Package placement implements the assignment of blocks and slots to shards. It is pure: the same tensors and the same number of
// shards give the same table on every machine. Two sides compare the digests of their tables.
//
// Tensors are taken in the order of their names and cut into blocks of [BlockElements]. The last block of a tensor may be
// shorter, and no block spans two tensors. Blocks are numbered from 0 in this order. The largest block is assigned first (equal
// blocks by number), to the shard with the fewest bytes so far (equal shards by index). Two shards therefore differ by at most one
// block.
//
// The slots of a table of embeddings ([table.Slots]) are assigned in runs, the same number to each shard within one.
package placement

import (
	"cmp"
	"container/heap"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"trainmaster/pserver/table"
)

// BlockElements is the number of float32 elements in a full block: 1 MiB.
const BlockElements = 1 << 18

// Limits for tables from untrusted peers.
const (
	MaxTensors  = 1 << 20
	MaxName     = 512     // bytes in a tensor's name
	MaxRank     = 16      // dimensions of a tensor
	MaxElements = 1 << 38 // elements in the whole model: 1 TiB
	MaxShards   = 1 << 16
)

// reservedName has another meaning in the files that models are saved to.
const reservedName = "__metadata__"

// Tensor is a name and a shape; an empty shape is a scalar. Elements are float32.
type Tensor struct {
	Name  string
	Shape []int
}

// Elements is the product of the shape.
func (t Tensor) Elements() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Table assigns every block to a shard. Epoch starts at 1 and grows with each migration.
type Table struct {
	Epoch   uint32
	Shards  int
	Tensors []Tensor // sorted by name
	Owners  []uint32 // the shard of every block

	Sparse     []table.Config // tables of embeddings, sorted by name
	SlotOwners [][]uint32     // the shard of every slot, by table
}

// Block is a slice of a tensor.
type Block struct {
	ID     uint64
	Tensor int // index in Table.Tensors
	Offset int // of its first element in the tensor
	Len    int // elements
}

// New computes the table for tensors, and tables of embeddings, on a number of shards.
func New(tensors []Tensor, shards int, tables ...table.Config) (*Table, error) {
	if shards < 1 || shards > MaxShards {
		return nil, fmt.Errorf("%d shards: expected 1 to %d", shards, MaxShards)
	}
	t := &Table{Epoch: 1, Shards: shards, Tensors: slices.Clone(tensors), Sparse: slices.Clone(tables)}
	slices.SortFunc(t.Tensors, func(a, b Tensor) int { return cmp.Compare(a.Name, b.Name) })
	if err := checkTensors(t.Tensors); err != nil {
		return nil, err
	}
	slices.SortFunc(t.Sparse, func(a, b table.Config) int { return cmp.Compare(a.Name, b.Name) })
	for i := range t.Sparse {
		if err := t.Sparse[i].Validate(); err != nil {
			return nil, err
		}
	}
	t.placeSlots()
	if err := t.checkTables(); err != nil {
		return nil, err
	}
	blocks := t.Blocks()
	t.Owners = make([]uint32, len(blocks))
	slices.SortStableFunc(blocks, func(a, b Block) int { return cmp.Compare(b.Len, a.Len) })
	loads := make(loads, shards)
	for i := range loads {
		loads[i].shard = uint32(i)
	}
	for _, b := range blocks {
		t.Owners[b.ID] = loads[0].shard
		loads[0].elements += b.Len
		heap.Fix(&loads, 0)
	}
	return t, nil
}

// Check returns an error if a received table is unusable.
func (t *Table) Check() error {
	if t.Epoch == 0 {
		return errors.New("placement has epoch 0")
	}
	if t.Shards < 1 || t.Shards > MaxShards {
		return fmt.Errorf("placement over %d shards: expected 1 to %d", t.Shards, MaxShards)
	}
	if err := checkTensors(t.Tensors); err != nil {
		return err
	}
	if err := checkOwners("blocks", t.Owners, t.count(), t.Shards); err != nil {
		return err
	}
	return t.checkTables()
}

// checkOwners returns an error unless n partitions belong to some shards.
func checkOwners(of string, owners []uint32, n, shards int) error {
	if len(owners) != n {
		return fmt.Errorf("placement has owners for %d %s: expected %d", len(owners), of, n)
	}
	for number, owner := range owners {
		if int(owner) >= shards {
			return fmt.Errorf("placement gives number %d of the %s to shard %d of %d", number, of, owner, shards)
		}
	}
	return nil
}

func checkTensors(sorted []Tensor) error {
	if len(sorted) == 0 || len(sorted) > MaxTensors {
		return fmt.Errorf("%d tensors: expected 1 to %d", len(sorted), MaxTensors)
	}
	total := 0
	for i, t := range sorted {
		if t.Name == "" || len(t.Name) > MaxName {
			return fmt.Errorf("tensor name %.40q has %d bytes: expected 1 to %d", t.Name, len(t.Name), MaxName)
		}
		if t.Name == reservedName || !utf8.ValidString(t.Name) {
			return fmt.Errorf("tensor name %q is not UTF-8, or reserved: choose another one", t.Name)
		}
		if i > 0 && sorted[i-1].Name >= t.Name {
			return fmt.Errorf("tensor %q is a duplicate or out of order: expected tensors sorted by name", t.Name)
		}
		if len(t.Shape) > MaxRank {
			return fmt.Errorf("tensor %q has %d dimensions: expected at most %d", t.Name, len(t.Shape), MaxRank)
		}
		n := 1
		for _, d := range t.Shape {
			if d < 1 || d > MaxElements/n {
				return fmt.Errorf("tensor %q has shape %v: expected dimensions of at least 1, at most %d elements in the model", t.Name, t.Shape, MaxElements)
			}
			n *= d
		}
		if total += n; total > MaxElements {
			return fmt.Errorf("the tensors up to %q have over %d elements", t.Name, MaxElements)
		}
	}
	return nil
}

func (t *Table) count() int {
	n := 0
	for _, tensor := range t.Tensors {
		n += (tensor.Elements() + BlockElements - 1) / BlockElements
	}
	return n
}

// Blocks lists all blocks by number.
func (t *Table) Blocks() []Block {
	blocks := make([]Block, 0, t.count())
	for i, tensor := range t.Tensors {
		n := tensor.Elements()
		for offset := 0; offset < n; offset += BlockElements {
			blocks = append(blocks, Block{
				ID: uint64(len(blocks)), Tensor: i, Offset: offset, Len: min(BlockElements, n-offset),
			})
		}
	}
	return blocks
}

// Owned lists the blocks of one shard by number.
func (t *Table) Owned(shard int) []Block {
	return slices.DeleteFunc(t.Blocks(), func(b Block) bool { return t.Owners[b.ID] != uint32(shard) })
}

// Digest is equal for equal tables, and only for them.
func (t *Table) Digest() [sha256.Size]byte {
	buf := []byte("trainmaster placement 1\x00")
	buf = binary.LittleEndian.AppendUint32(buf, t.Epoch)
	buf = binary.AppendUvarint(buf, uint64(t.Shards))
	buf = binary.AppendUvarint(buf, uint64(len(t.Tensors)))
	for _, tensor := range t.Tensors {
		buf = binary.AppendUvarint(buf, uint64(len(tensor.Name)))
		buf = append(buf, tensor.Name...)
		buf = binary.AppendUvarint(buf, uint64(len(tensor.Shape)))
		for _, d := range tensor.Shape {
			buf = binary.AppendUvarint(buf, uint64(d))
		}
	}
	for _, owner := range t.Owners {
		buf = binary.AppendUvarint(buf, uint64(owner))
	}
	return sha256.Sum256(t.appendTables(buf))
}

// loads is a heap: the shard with the fewest elements first, equal ones by index.
type loads []struct {
	elements int
	shard    uint32
}

func (l loads) Len() int { return len(l) }
func (l loads) Less(i, j int) bool {
	return l[i].elements < l[j].elements || l[i].elements == l[j].elements && l[i].shard < l[j].shard
}
func (l loads) Swap(i, j int) { l[i], l[j] = l[j], l[i] }
func (l loads) Push(any)      { panic("the number of shards is fixed") }
func (l loads) Pop() any      { panic("the number of shards is fixed") }
