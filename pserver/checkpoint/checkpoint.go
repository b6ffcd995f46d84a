package checkpoint

import (
	"context"
	"fmt"
	"io"
	"path"

	"trainmaster/pserver/floats"
	"trainmaster/pserver/placement"
)

// Checkpoint is a verified checkpoint. It is read with the context of Open.
type Checkpoint struct {
	Manifest *Manifest
	Share    Share
	Slots    []string // the optimizer's, in the order of their files
	Digest   string   // SHA-256 of the manifest's file, in hexadecimal
	files    files
	within   func(dir string) files // of the shard
}

// Open reads the manifest of a checkpoint and checks the digests of all its files, including the files of its segments.
func (f Folder) Open(ctx context.Context, g Generation) (*Checkpoint, error) {
	c, err := f.read(ctx, g)
	if err != nil {
		return nil, fmt.Errorf("checkpoint %q: %w", f.where(g), err)
	}
	return c, nil
}

func (f Folder) read(ctx context.Context, g Generation) (*Checkpoint, error) {
	c, table, err := f.begin(ctx, g)
	if err != nil {
		return nil, err
	}
	for _, e := range c.Manifest.Files {
		if err := e.verify(c.files); err != nil {
			return nil, err
		}
	}
	c.Share = ShareOf(table, c.Manifest.Shard)
	if c.Slots, err = c.Manifest.slots(); err != nil {
		return nil, err
	}
	return c, c.verifySegments()
}

// begin reads and checks the manifest, but not the other files.
func (f Folder) begin(ctx context.Context, g Generation) (*Checkpoint, *placement.Table, error) {
	text, err := readFile(ctx, f.place, path.Join(f.path(g), ManifestFile))
	if err != nil {
		return nil, nil, err
	}
	c := &Checkpoint{Manifest: &Manifest{}, Digest: digest(text), within: func(dir string) files { return f.within(ctx, dir) }}
	c.files = c.within(g.String())
	if err := unseal(text, c.Manifest); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", ManifestFile, err)
	}
	table, err := c.Manifest.check()
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", ManifestFile, err)
	}
	if c.Manifest.Generation != g {
		return nil, nil, fmt.Errorf("%s is of checkpoint %v", ManifestFile, c.Manifest.Generation)
	}
	return c, table, nil
}

// Manifest reads the manifest of a checkpoint. It does not check the other files; Open does.
func (f Folder) Manifest(ctx context.Context, g Generation) (*Manifest, error) {
	c, _, err := f.begin(ctx, g)
	if err != nil {
		return nil, fmt.Errorf("checkpoint %q: %w", f.where(g), err)
	}
	return c.Manifest, nil
}

// Weights reads the parameters. into returns the memory for a block, nil to skip it.
func (c *Checkpoint) Weights(into func(i int, b placement.Block) []float32) error {
	return c.blocks(WeightsFile, "", into)
}

// Slot reads a slot of the optimizer's state as Weights does parameters.
func (c *Checkpoint) Slot(slot int, into func(i int, b placement.Block) []float32) error {
	return c.blocks(SlotFile(slot), "."+c.Slots[slot], into)
}

func (c *Checkpoint) blocks(name, suffix string, into func(i int, b placement.Block) []float32) error {
	tensors, file, err := c.files.tensors(name)
	if err != nil {
		return err
	}
	defer file.Close()
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
				if _, err := io.ReadFull(io.NewSectionReader(r, at, int64(4*b.Len)), floats.Bytes(values)); err != nil {
					return fmt.Errorf("%s: tensor %q: %w", name, info.Name, err)
				}
			}
			at += int64(4 * b.Len)
		}
	}
	return nil
}
