package checkpoint

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"trainmaster/pserver/placement"
	"trainmaster/pserver/wire"
	"trainmaster/safetensors"
)

// Checkpoint is one on the disk, whose digests held when it was opened.
type Checkpoint struct {
	Manifest *Manifest
	Share    Share
	Slots    []string // the optimizer's, in the order of their files
	dir      string
}

// Open reads the manifest of a checkpoint and checks the digests of all its files.
func (f Folder) Open(g Generation) (*Checkpoint, error) {
	c, err := f.read(g)
	if err != nil {
		return nil, fmt.Errorf("checkpoint %q: %w", f.path(g), err)
	}
	return c, nil
}

func (f Folder) read(g Generation) (*Checkpoint, error) {
	dir := f.path(g)
	text, err := os.ReadFile(filepath.Join(dir, ManifestFile))
	if err != nil {
		return nil, err
	}
	c := &Checkpoint{Manifest: &Manifest{}, dir: dir}
	if err := unseal(text, c.Manifest); err != nil {
		return nil, fmt.Errorf("%s: %w", ManifestFile, err)
	}
	table, err := c.Manifest.check()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ManifestFile, err)
	}
	if c.Manifest.Generation != g {
		return nil, fmt.Errorf("%s is of checkpoint %v", ManifestFile, c.Manifest.Generation)
	}
	for _, e := range c.Manifest.Files {
		if err := e.verify(dir); err != nil {
			return nil, err
		}
	}
	c.Share = ShareOf(table, c.Manifest.Shard)
	c.Slots, err = c.Manifest.slots()
	return c, err
}

// Weights reads the parameters: into says where those of a block belong, nil if nowhere.
func (c *Checkpoint) Weights(into func(i int, b placement.Block) []float32) error {
	return c.blocks(WeightsFile, "", into)
}

// Slot reads a slot of the optimizer's state as Weights does parameters.
func (c *Checkpoint) Slot(slot int, into func(i int, b placement.Block) []float32) error {
	return c.blocks(SlotFile(slot), "."+c.Slots[slot], into)
}

func (c *Checkpoint) blocks(name, suffix string, into func(i int, b placement.Block) []float32) error {
	file, err := os.Open(filepath.Join(c.dir, name))
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
	list := c.Share.runs()
	for n, info := range c.Share.Tensors(suffix) {
		r, err := tensors.Open(info.Name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if want, err := info.Bytes(); err != nil || r.Size() != want {
			return fmt.Errorf("%s: tensor %q has %d bytes, expected %d", name, info.Name, r.Size(), want)
		}
		at := int64(0)
		for i := list[n].first; i <= list[n].last; i++ {
			b := c.Share.Blocks[i]
			if values := into(i, b); values != nil {
				if _, err := io.ReadFull(io.NewSectionReader(r, at, int64(4*b.Len)), wire.FloatBytes(values)); err != nil {
					return fmt.Errorf("%s: tensor %q: %w", name, info.Name, err)
				}
			}
			at += int64(4 * b.Len)
		}
	}
	return nil
}
