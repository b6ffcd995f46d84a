package admin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"trainmaster/etcdstore"
	"trainmaster/internal/filekind"
)

// StartEmbedded starts the embedded etcd in a directory, or reports what to do.
func StartEmbedded(ctx context.Context, c etcdstore.EmbeddedConfig) (*etcdstore.Embedded, error) {
	etcd, err := etcdstore.StartEmbedded(ctx, c)
	return etcd, EmbeddedError(err)
}

// EmbeddedError adds to the failure of an embedded etcd what to do about it.
func EmbeddedError(err error) error {
	switch {
	case err == nil:
		return nil
	case etcdstore.IsDiskFull(err):
		return fmt.Errorf("%w: free space on that disk and start the same command again: the job continues, and no acknowledged change is lost", err)
	case errors.Is(err, etcdstore.ErrInUse):
		return fmt.Errorf("%w: end that process, name another --data-dir, or join its etcd with --endpoints", err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.EROFS), filekind.IsWrong(err):
		return fmt.Errorf("%w: name a directory that can be written with --data-dir", err)
	}
	return err
}
