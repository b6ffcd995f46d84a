package placement

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Layout is what the store keeps of the table of a job whose blocks are moved: where
// they lie, and on how many shards they shall. The tensors are the servers'.
type Layout struct {
	Epoch  uint32 `json:"epoch"`
	Shards int    `json:"shards"`
	Goal   int    `json:"goal"`   // shards that there shall be
	Owners Owners `json:"owners"` // the shard of every block
}

// Owners is written as the shards of blocks in a row: "0*3 1" is 0, 0, 0, 1.
type Owners []uint32

// MaxLayout is the size of a Layout in bytes that the store takes.
const MaxLayout = 1 << 20

// LayoutOf is the layout of a table.
func LayoutOf(t *Table, goal int) *Layout {
	return &Layout{Epoch: t.Epoch, Shards: t.Shards, Goal: goal, Owners: slices.Clone(t.Owners)}
}

// Encode returns the stored form, or says that it is too long.
func (l *Layout) Encode() ([]byte, error) {
	text, err := json.Marshal(l)
	if err == nil && len(text) > MaxLayout {
		err = fmt.Errorf("the placement of %d blocks takes %d bytes, the store has room for %d", len(l.Owners), len(text), MaxLayout)
	}
	return text, err
}

// ParseLayout reads the stored form.
func ParseLayout(text []byte) (*Layout, error) {
	l := &Layout{}
	if err := json.Unmarshal(text, l); err != nil {
		return nil, fmt.Errorf("placement %.40q: %w", text, err)
	}
	if l.Epoch == 0 || l.Shards < 1 || l.Shards > MaxShards || l.Goal < 1 || l.Goal > MaxShards {
		return nil, fmt.Errorf("placement has epoch %d, %d shards, goal %d: expected an epoch from 1, and 1 to %d shards", l.Epoch, l.Shards, l.Goal, MaxShards)
	}
	for id, owner := range l.Owners {
		if int(owner) >= l.Shards {
			return nil, fmt.Errorf("placement gives block %d to shard %d of %d", id, owner, l.Shards)
		}
	}
	return l, nil
}

// Apply is t as the layout has it.
func (l *Layout) Apply(t *Table) (*Table, error) {
	if len(t.Sparse) > 0 {
		return nil, errors.New("the model has tables of embeddings, whose slots are not moved")
	}
	moved := &Table{Epoch: l.Epoch, Shards: l.Shards, Tensors: t.Tensors, Owners: l.Owners}
	return moved, moved.Check()
}

// Owns says whether a shard has any block.
func (l *Layout) Owns(shard int) bool { return slices.Contains(l.Owners, uint32(shard)) }

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
