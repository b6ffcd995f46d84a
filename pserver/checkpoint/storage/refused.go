package storage

import (
	"fmt"
	"io/fs"

	"trainmaster/internal/objectstore"
	"trainmaster/pserver/checkpoint"
)

// failed names the operation, the object, the cause and the remedy.
func (b *bucket) failed(do, key string, err error) error {
	if objectstore.IsNotFound(err) {
		return fmt.Errorf("%s %s: %w", do, b.URL(key), fs.ErrNotExist)
	}
	action, err := objectstore.Explain(err)
	//guard:unavailable-is-not-damaged
	return fmt.Errorf("%w: %s %s: %s: %w", checkpoint.ErrUnavailable, do, b.At(key), action, err)
}
