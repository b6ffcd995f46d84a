package main

import (
	"context"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/etcdstore"
)

// isSpare reports whether another master of the job leads or waits for the lock, or may do so since etcd does not answer. cmd has ended with wrong usage,
// maybe before all flags and settings were read. The flags before the error and the environment count.
func isSpare(ctx context.Context, cmd *cobra.Command) bool {
	if cmd != cmd.Root() {
		return false // no master
	}
	setting := func(name string) string {
		f := cmd.Flags().Lookup(name)
		if value := os.Getenv(cli.EnvName(name)); value != "" && !f.Changed {
			return value
		}
		return f.Value.String()
	}
	endpoints, err := cmd.Flags().GetStringSlice("endpoints")
	if value := os.Getenv(cli.EnvName("endpoints")); len(endpoints) == 0 && value != "" && !cmd.Flags().Changed("data-dir") {
		endpoints = strings.Split(value, ",")
	}
	if err != nil || len(endpoints) == 0 {
		return false // the embedded etcd is of one master
	}
	dial, err := cmd.Flags().GetDuration("dial-timeout")
	if err != nil {
		return false
	}
	config := etcdstore.Config{
		Endpoints: endpoints, Job: setting("job"), CACert: setting("cacert"), Cert: setting("cert"), Key: setting("key"),
		User: setting("user"), Password: setting("password"), DialTimeout: dial,
	}
	if config.Validate() != nil {
		return false
	}
	store, err := etcdstore.Open(ctx, config)
	if err != nil {
		return true
	}
	defer store.Close()
	masters, _, err := store.Prefixed(ctx, etcdstore.LockPrefix)
	return err != nil || len(masters) > 0
}
