package main

import (
	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/dataset"
	"trainmaster/internal/objectstore"
)

// addDataCache adds the flags of a cache for objects. The result opens it; without a directory it has no cache.
func addDataCache(cmd *cobra.Command) func() (*dataset.Stores, error) {
	flags := cmd.Flags()
	dir := flags.String("cache-dir", "", "`directory` that keeps what was read of objects for later passes; several processes can share it (default: none)")
	limit := flags.Int64("cache-bytes", 10<<30, "maximum size of the cache in `bytes`")
	return func() (*dataset.Stores, error) {
		stores := new(dataset.Stores)
		if *limit < 1 {
			return nil, cli.SettingErrorf(cmd, "cache-bytes", "expected 1 or more")
		}
		if *dir == "" {
			return stores, nil
		}
		cache, err := objectstore.NewCache(*dir, *limit)
		if err != nil {
			return nil, cli.SettingErrorf(cmd, "cache-dir", "%w", err)
		}
		stores.Cache = cache
		return stores, nil
	}
}
