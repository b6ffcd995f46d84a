package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"math"

	"trainmaster/internal/safetensors"
	"trainmaster/pserver/placement"
)

// Model is the joined model of all shards.
type Model struct {
	parts []*Checkpoint
	infos []safetensors.Info
	of    map[string]source
	state []string
}

// source is where the elements of a tensor are: -1 for parameters, else a slot of the
// optimizer's state.
type source struct{ tensor, slot int }

// Join makes a model of the checkpoints of a set. With state it includes the optimizer state, as "tensor.NAME".
func Join(parts []*Checkpoint, state bool) *Model {
	m := &Model{parts: parts, of: map[string]source{}}
	slots := []string{""}
	if state {
		m.state = parts[0].Slots
		for _, name := range m.state {
			slots = append(slots, "."+name)
		}
	}
	for slot, suffix := range slots {
		for i, t := range parts[0].Share.Table.Tensors {
			info := safetensors.Info{Name: t.Name + suffix, DType: safetensors.F32, Shape: t.Shape}
			m.infos = append(m.infos, info)
			m.of[info.Name] = source{i, slot - 1}
		}
	}
	return m
}

// Version is the version of the parameters. In asynchronous mode it is the number of updates of the block with the fewest, as a
// trainer reads it.
func (m *Model) Version() (uint64, error) {
	if manifest := m.parts[0].Manifest; manifest.Mode != Async {
		return manifest.Version, nil
	}
	least, found := uint64(math.MaxUint64), false
	for _, part := range m.parts {
		marks, err := part.Marks()
		if err != nil {
			return 0, err
		}
		for _, v := range marks.Versions {
			least, found = min(least, v), true
		}
	}
	if !found {
		return 0, nil // no blocks
	}
	return least, nil
}

// State names the values of the optimizer state per parameter, empty without state.
func (m *Model) State() []string { return m.state }

// Tensors describes the tensors, whole ones; all are float32.
func (m *Model) Tensors() []safetensors.Info { return m.infos }

// Read returns the elements of a tensor.
func (m *Model) Read(name string) ([]float32, error) {
	from, ok := m.of[name]
	if !ok {
		return nil, fmt.Errorf("no tensor %q", name)
	}
	values := make([]float32, m.parts[0].Share.Table.Tensors[from.tensor].Elements())
	read := 0
	into := func(_ int, b placement.Block) []float32 {
		if b.Tensor != from.tensor {
			return nil
		}
		read += b.Len
		return values[b.Offset : b.Offset+b.Len]
	}
	for _, part := range m.parts {
		var err error
		if from.slot < 0 {
			err = part.Weights(into)
		} else {
			err = part.Slot(from.slot, into)
		}
		if err != nil {
			return nil, err
		}
	}
	if read != len(values) {
		return nil, fmt.Errorf("tensor %q: the shards have %d of %d elements", name, read, len(values))
	}
	return values, nil
}

// ErrNoSet is returned if the store has no set.
var ErrNoSet = errors.New("no set of checkpoints")

// Newest returns the newest set. Only Open checks that it is complete.
func (s Store) Newest(ctx context.Context) (*Set, error) {
	numbers, err := s.Sets(ctx)
	if err != nil {
		return nil, err
	}
	if len(numbers) == 0 {
		return nil, fmt.Errorf("%w in %q", ErrNoSet, s.Place)
	}
	return s.ReadSet(ctx, numbers[0])
}
