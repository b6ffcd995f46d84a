package checkpoint

import (
	"context"
	"errors"
	"fmt"
)

// Base names the checkpoint of the same shard with all rows of the tables. The checkpoint that names it has the rows changed since.
type Base struct {
	Generation
	SHA256 string `json:"sha256"` // of its MANIFEST.json
}

// openBase opens the base of c, nil without one. c is complete only with its base.
func (f Folder) openBase(ctx context.Context, c *Checkpoint) (*Checkpoint, error) {
	b := c.Manifest.TablesBase
	if b == nil {
		return nil, nil
	}
	base, err := f.readBase(ctx, b, c.Manifest.Generation)
	if err != nil {
		return nil, fmt.Errorf("it has the rows that changed since checkpoint %v: %w", b.Generation, err)
	}
	return base, nil
}

func (f Folder) readBase(ctx context.Context, b *Base, of Generation) (*Checkpoint, error) {
	if b.Compare(of) >= 0 {
		return nil, fmt.Errorf("that one is not older than %v", of)
	}
	base, err := f.read(ctx, b.Generation)
	switch {
	case err != nil:
		return nil, err
	case base.Digest != b.SHA256:
		return nil, fmt.Errorf("%s has a SHA-256 that starts with %.12s, expected %.12s", ManifestFile, base.Digest, b.SHA256)
	case base.base != nil:
		return nil, fmt.Errorf("that one has not all rows either")
	}
	return base, nil
}

// baseOf returns the base of g, nil if g has none or is damaged.
func (f Folder) baseOf(ctx context.Context, g Generation) (*Generation, error) {
	m, err := f.Manifest(ctx, g)
	//guard:unavailable-base-kept
	if errors.Is(err, ErrUnavailable) {
		return nil, err
	}
	if err != nil || m.TablesBase == nil {
		return nil, nil //nolint:nilerr // see above
	}
	return &m.TablesBase.Generation, nil
}
