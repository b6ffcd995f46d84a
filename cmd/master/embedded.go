package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"trainmaster/etcdstore"
)

// startEmbedded starts the embedded etcd in a directory, or reports what to do.
func startEmbedded(ctx context.Context, dir string) (*etcdstore.Embedded, error) {
	etcd, err := etcdstore.StartEmbedded(ctx, etcdstore.EmbeddedConfig{Dir: dir})
	return etcd, embeddedError(err)
}

// embeddedError adds to the failure of an embedded etcd what to do about it.
func embeddedError(err error) error {
	switch {
	case err == nil:
		return nil
	case etcdstore.IsDiskFull(err):
		return fmt.Errorf("%w: free space on that disk and start the same command again: the job continues, and no acknowledged change is lost", err)
	case errors.Is(err, etcdstore.ErrInUse):
		return fmt.Errorf("%w: end that process, name another --data-dir, or join its etcd with --endpoints", err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.EROFS), isWrongKind(err):
		return fmt.Errorf("%w: name a directory that can be written with --data-dir", err)
	}
	return err
}

// orFailed returns what run does, or the failure of the embedded etcd if that comes first. After such a failure nothing can be
// stored or confirmed any more, and the process ends as if it were killed: run is not waited for.
func orFailed(run func() error, failed <-chan error) error {
	ended := make(chan error, 1)
	go func() { ended <- run() }()
	select {
	case err := <-ended:
		return err
	case err := <-failed:
		return err
	}
}
