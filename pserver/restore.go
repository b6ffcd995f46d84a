package pserver

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/sirupsen/logrus"

	"trainmaster/pserver/wire"
	"trainmaster/safetensors"
)

// restore fills the shard from the newest checkpoint in dir that is whole and
// undamaged, and returns its generation; false when there is none. Damaged ones
// are passed over and said; when all are, that is an error: to start empty
// would hide the loss.
func (s *shard) restore(dir string) (generation, bool, error) {
	list, err := generations(dir)
	if err != nil {
		return generation{}, false, err
	}
	var damaged []error
	for _, g := range list {
		folder := filepath.Join(dir, g.String())
		err := s.restoreFrom(folder)
		switch {
		case err == nil:
			s.log.WithFields(logrus.Fields{"checkpoint": folder, "version": s.version.Load(), "epoch": s.epoch}).Info("parameters restored")
			return g, true, nil
		case errors.Is(err, fs.ErrNotExist) && missing(folder, manifestFile):
			continue // its writer was stopped: it never was a checkpoint
		}
		err = fmt.Errorf("checkpoint %q: %w", folder, err)
		s.log.WithError(err).Error("checkpoint is damaged: trying the one before it")
		damaged = append(damaged, err)
	}
	if len(damaged) > 0 {
		return generation{}, false, fmt.Errorf("no usable checkpoint in %q; to start without one, move the folder away: %w", dir, errors.Join(damaged...))
	}
	return generation{}, false, nil
}

func missing(dir, name string) bool {
	_, err := os.Stat(filepath.Join(dir, name))
	return errors.Is(err, fs.ErrNotExist)
}

// restoreFrom changes the shard only when everything could be read.
func (s *shard) restoreFrom(folder string) error {
	man, err := readManifest(folder)
	if err != nil {
		return err
	}
	m, err := man.model()
	if err != nil {
		return fmt.Errorf("%s: %w", manifestFile, err)
	}
	if man.Shard != s.index {
		return fmt.Errorf("%s is of shard %d, this is shard %d", manifestFile, man.Shard, s.index)
	}
	if man.JobEpoch == 0 || man.JobEpoch > math.MaxUint16 {
		return fmt.Errorf("%s has job epoch %d", manifestFile, man.JobEpoch)
	}
	h := newHolding(m, s.index)
	if err := readBlocks(folder, weightsFile, h, "", func(b *block, values []float32) { b.params = values }); err != nil {
		return err
	}
	for i, slot := range m.rule.Slots() {
		if err := readBlocks(folder, slotFile(i), h, "."+slot, func(b *block, values []float32) {
			if b.state == nil {
				b.state = make([]float32, 0, len(m.rule.Slots())*b.Len)
			}
			b.state = append(b.state, values...)
		}); err != nil {
			return err
		}
	}
	trainers, err := readMarks(folder, h, man.counted())
	if err != nil {
		return err
	}
	s.holding.Store(h)
	s.trainers = trainers
	s.version.Store(man.Version)
	s.jobEpoch.Store(man.JobEpoch)
	s.restored = true
	s.ready.Store(true)
	return nil
}

// readBlocks gives every block its part of a tensor file.
func readBlocks(folder, name string, h *holding, suffix string, set func(*block, []float32)) error {
	file, err := os.Open(filepath.Join(folder, name))
	if err != nil {
		return err
	}
	defer file.Close()
	stat, err := file.Stat()
	if err != nil {
		return err
	}
	tensors, err := safetensors.NewFile(file, stat.Size())
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	list := h.runs()
	for i, info := range runs(h, suffix) {
		r, err := tensors.Open(info.Name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if want, err := info.Bytes(); err != nil || r.Size() != want {
			return fmt.Errorf("%s: tensor %q has %d bytes, expected %d", name, info.Name, r.Size(), want)
		}
		for _, b := range h.blocks[list[i].first : list[i].last+1] {
			values := make([]float32, b.Len)
			if _, err := io.ReadFull(r, wire.FloatBytes(values)); err != nil {
				return fmt.Errorf("%s: tensor %q: %w", name, info.Name, err)
			}
			set(b, values)
		}
	}
	return nil
}

// readMarks gives every block its version, and its number of updates if that is
// counted, and returns the trainers.
func readMarks(folder string, h *holding, counted bool) (map[uint32]*trainer, error) {
	tensors, _, err := safetensors.ReadFile(filepath.Join(folder, pushesFile))
	if err != nil {
		return nil, err
	}
	read := func(name string, elements int) []uint64 {
		i := slices.IndexFunc(tensors, func(t safetensors.Tensor) bool { return t.Name == name && t.DType == safetensors.U64 })
		if i < 0 || elements >= 0 && len(tensors[i].Data) != 8*elements {
			err = errors.Join(err, fmt.Errorf("%s: no tensor %q with dtype %s and %d elements", pushesFile, name, safetensors.U64, elements))
			return nil
		}
		values := make([]uint64, len(tensors[i].Data)/8)
		for j := range values {
			values[j] = binary.LittleEndian.Uint64(tensors[i].Data[8*j:])
		}
		return values
	}
	versions := read(blockVersions, len(h.blocks))
	updates := make([]uint64, len(h.blocks))
	if counted {
		updates = read(blockUpdates, len(h.blocks))
	}
	ords := read(ordinals, -1)
	incs := read(incarnations, len(ords))
	steps := read(appliedSteps, len(ords)*len(h.blocks))
	if err != nil {
		return nil, err
	}
	for i, b := range h.blocks {
		b.version, b.updates = versions[i], updates[i]
	}
	trainers := make(map[uint32]*trainer, len(ords))
	for i, ordinal := range ords {
		trainers[uint32(ordinal)] = &trainer{
			ordinal: uint32(ordinal), incarnation: incs[i],
			applied: steps[i*len(h.blocks) : (i+1)*len(h.blocks) : (i+1)*len(h.blocks)],
		}
	}
	return trainers, nil
}
