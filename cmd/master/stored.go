package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"trainmaster/etcdstore"
)

// addDataDir gives cmd the folder of an embedded etcd, for commands that look at a job that no master leads.
func addDataDir(cmd *cobra.Command) *string {
	return cmd.Flags().String("data-dir", "trainmaster-data", "`folder` of the embedded etcd, used when there are no --endpoints")
}

// openStored opens the given etcd, or the embedded one of a folder that is there.
func openStored(ctx context.Context, c etcdstore.Config, dataDir string) (store *etcdstore.Store, closeAll func(), err error) {
	if len(c.Endpoints) > 0 {
		if store, err = openStore(ctx, c); err != nil {
			return nil, nil, err
		}
		return store, func() { _ = store.Close() }, nil // nothing was written
	}
	if _, err := os.Stat(dataDir); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil, usageErrorf("--data-dir %q: there is no such folder; name the one of the master whose state you look for, or its etcd with --endpoints", dataDir)
		}
		return nil, nil, fmt.Errorf("--data-dir: %w", err)
	}
	etcd, err := etcdstore.StartEmbedded(ctx, etcdstore.EmbeddedConfig{Dir: dataDir})
	if err != nil {
		return nil, nil, err
	}
	c.Endpoints = []string{etcd.Endpoint()}
	if store, err = openStore(ctx, c); err != nil {
		etcd.Close()
		return nil, nil, err
	}
	return store, func() {
		_ = store.Close() // nothing was written
		etcd.Close()
	}, nil
}
