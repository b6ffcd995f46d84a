package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"trainmaster/internal/safetensors"
)

// The tensors of pushes.safetensors.
const (
	blockVersions = "block_versions" // U64 [blocks]
	blockUpdates  = "block_updates"  // U64 [blocks]
	ordinals      = "ordinals"       // U64 [trainers]
	incarnations  = "incarnations"   // U64 [trainers]
	appliedSteps  = "applied_steps"  // U64 [trainers, blocks]
)

// Marks holds the applied steps, by which a server detects a repeated push.
type Marks struct {
	Versions []uint64 // by block of the share
	Updates  []uint64 // by block of the share
	Trainers []Trainer
}

// Trainer is the newest incarnation of a trainer that the shard knew.
type Trainer struct {
	Ordinal     uint32
	Incarnation uint64
	Applied     []uint64 // by block of the share: the last step applied
}

// Marks writes pushes.safetensors.
func (w *Writer) Marks(m *Marks, metadata map[string]string) error {
	var ords, incs, steps []uint64
	for _, t := range m.Trainers {
		ords = append(ords, uint64(t.Ordinal))
		incs = append(incs, t.Incarnation)
		steps = append(steps, t.Applied...)
	}
	blocks, trainers := len(m.Versions), len(m.Trainers)
	tensors := []safetensors.Tensor{
		fromUint64(blockVersions, m.Versions, blocks),
		fromUint64(blockUpdates, m.Updates, blocks),
		fromUint64(ordinals, ords, trainers),
		fromUint64(incarnations, incs, trainers),
		fromUint64(appliedSteps, steps, trainers, blocks),
	}
	return w.small(&w.own, PushesFile, tensors, metadata)
}

func fromUint64(name string, values []uint64, shape ...int) safetensors.Tensor {
	data, _ := binary.Append(nil, binary.LittleEndian, values)
	return safetensors.Tensor{Info: safetensors.Info{Name: name, DType: safetensors.U64, Shape: shape}, Data: data}
}

func toUint64(t safetensors.Tensor) []uint64 {
	values := make([]uint64, len(t.Data)/8)
	binary.Decode(t.Data, binary.LittleEndian, values) //nolint:errcheck // it fails without enough bytes only
	return values
}

// Marks reads pushes.safetensors.
func (c *Checkpoint) Marks() (*Marks, error) {
	tensors, err := c.files.all(PushesFile)
	if err != nil {
		return nil, err
	}
	read := func(name string, elements int) []uint64 {
		i := slices.IndexFunc(tensors, func(t safetensors.Tensor) bool { return t.Name == name && t.DType == safetensors.U64 })
		if i < 0 || elements >= 0 && len(tensors[i].Data) != 8*elements {
			err = errors.Join(err, fmt.Errorf("%s: no tensor %q with dtype %s and %d elements", PushesFile, name, safetensors.U64, elements))
			return nil
		}
		return toUint64(tensors[i])
	}
	blocks := len(c.Share.Blocks)
	m := &Marks{Versions: read(blockVersions, blocks), Updates: read(blockUpdates, blocks)}
	ords := read(ordinals, -1)
	incs := read(incarnations, len(ords))
	steps := read(appliedSteps, len(ords)*blocks)
	if err != nil {
		return nil, err
	}
	for i, ordinal := range ords {
		m.Trainers = append(m.Trainers, Trainer{uint32(ordinal), incs[i], steps[i*blocks : (i+1)*blocks : (i+1)*blocks]})
	}
	return m, nil
}
