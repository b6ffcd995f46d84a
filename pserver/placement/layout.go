package placement

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"trainmaster/pserver/partition"
	"trainmaster/pserver/table"
)

// Layout is the stored placement of a job whose blocks were moved: owners, and the current and the wanted number of shards. The
// servers have the tensors and tables.
type Layout struct {
	Format int      `json:"format"`
	Epoch  uint32   `json:"epoch"`
	Shards int      `json:"shards"`
	Goal   int      `json:"goal"`            // wanted number of shards
	Owners Owners   `json:"owners"`          // the shard of every block
	Slots  []Owners `json:"slots,omitempty"` // the shard of every slot, by table of embeddings
}

const layoutFormat = 2

// Owners is written as the shards of blocks, or slots, in a row: "0*3 1" is 0, 0, 0, 1.
type Owners []uint32

// MaxLayout is the size of a Layout in bytes that the store takes.
const MaxLayout = 1 << 20

// LayoutOf is the layout of a table.
func LayoutOf(t *Table, goal int) *Layout {
	l := &Layout{Epoch: t.Epoch, Shards: t.Shards, Goal: goal, Owners: slices.Clone(t.Owners)}
	for _, owners := range t.SlotOwners {
		l.Slots = append(l.Slots, slices.Clone(owners))
	}
	return l
}

// Encode returns the stored form, or an error if it exceeds the maximum length.
func (l *Layout) Encode() ([]byte, error) {
	l.Format = layoutFormat
	text, err := json.Marshal(l)
	if err == nil && len(text) > MaxLayout {
		err = fmt.Errorf("the placement of %d blocks and %d tables takes %d bytes, the store has room for %d", len(l.Owners), len(l.Slots), len(text), MaxLayout)
	}
	return text, err
}

// ParseLayout reads the stored form.
func ParseLayout(text []byte) (*Layout, error) {
	l := &Layout{}
	if err := json.Unmarshal(text, l); err != nil {
		return nil, fmt.Errorf("placement %.40q: %w", text, err)
	}
	if l.Format != layoutFormat {
		return nil, fmt.Errorf("placement has format %d: this version reads %d", l.Format, layoutFormat)
	}
	if l.Epoch == 0 || l.Shards < 1 || l.Shards > MaxShards || l.Goal < 1 || l.Goal > MaxShards {
		return nil, fmt.Errorf("placement has epoch %d, %d shards, goal %d: expected an epoch from 1, and 1 to %d shards", l.Epoch, l.Shards, l.Goal, MaxShards)
	}
	err := checkOwners("blocks", l.Owners, len(l.Owners), l.Shards)
	for k, owners := range l.Slots {
		err = cmp.Or(err, checkOwners(fmt.Sprintf("slots of table %d", k), owners, table.Slots, l.Shards))
	}
	return l, err
}

// Apply returns t with the owners of the layout.
func (l *Layout) Apply(t *Table) (*Table, error) {
	moved := &Table{Epoch: l.Epoch, Shards: l.Shards, Tensors: t.Tensors, Owners: l.Owners, Sparse: t.Sparse}
	for _, owners := range l.Slots {
		moved.SlotOwners = append(moved.SlotOwners, owners)
	}
	return moved, moved.Check()
}

// Owner is the shard of a partition.
func (l *Layout) Owner(id partition.ID) *uint32 {
	if id.Table == 0 {
		return &l.Owners[id.Number]
	}
	return &l.Slots[id.Table-1][id.Number]
}

// Owns reports whether a shard has any block, or slot.
func (l *Layout) Owns(shard int) bool {
	return slices.Contains(l.Owners, uint32(shard)) || slices.ContainsFunc(l.Slots, func(owners Owners) bool { return slices.Contains(owners, uint32(shard)) })
}

// Gives reports whether a shard has a block, or a slot, that it has not in t.
func (l *Layout) Gives(t *Table, shard int) bool {
	if l.Owners.gives(t.Owners, shard) {
		return true
	}
	for k, owners := range l.Slots {
		if owners.gives(t.SlotOwners[k], shard) {
			return true
		}
	}
	return false
}

func (o Owners) gives(before []uint32, shard int) bool {
	for i, owner := range o {
		if int(owner) == shard && before[i] != owner {
			return true
		}
	}
	return false
}

// MarshalText writes rows of equal owners as one.
func (o Owners) MarshalText() ([]byte, error) {
	var text []byte
	for i := 0; i < len(o); {
		n := 1
		for i+n < len(o) && o[i+n] == o[i] {
			n++
		}
		if i > 0 {
			text = append(text, ' ')
		}
		text = strconv.AppendUint(text, uint64(o[i]), 10)
		if n > 1 {
			text = strconv.AppendInt(append(text, '*'), int64(n), 10)
		}
		i += n
	}
	return text, nil
}

// UnmarshalText is the reverse.
func (o *Owners) UnmarshalText(text []byte) error {
	*o = nil
	for row := range strings.FieldsSeq(string(text)) {
		shard, times, many := strings.Cut(row, "*")
		owner, err := strconv.ParseUint(shard, 10, 32)
		n := 1
		if err == nil && many {
			n, err = strconv.Atoi(times)
		}
		if err != nil || n < 1 || len(*o)+n > MaxElements>>8 {
			return fmt.Errorf("owners have %.40q: expected shard, or shard*blocks", row)
		}
		*o = append(*o, slices.Repeat([]uint32{uint32(owner)}, n)...)
	}
	return nil
}
