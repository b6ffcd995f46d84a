package main

import (
	"context"
	"errors"
	"fmt"

	"trainmaster/cmd/internal/cli"
	"trainmaster/etcdstore"
	"trainmaster/local"
)

// runError adds to the error of a run how to continue the run.
func runError(ctx context.Context, dir string, err error) error {
	next := fmt.Sprintf("continue with: master run --resume %s", dir)
	if _, _, noRun := local.Settings(dir); noRun != nil {
		next = "nothing was trained yet: begin another run"
	}
	switch {
	case etcdstore.IsDiskFull(err):
		return cli.ExitWith(cli.ExitStore, fmt.Errorf("%w: free space on the disk of %s, then %s; no finished task is lost", err, dir, next))
	case errors.Is(err, etcdstore.ErrStorage):
		return fmt.Errorf("%w: repair the disk, then %s", err, next)
	case errors.Is(err, etcdstore.ErrInUse):
		return fmt.Errorf("%w: that process continues this run: end it first", err)
	case ctx.Err() != nil:
		return cli.ExitWith(cli.ExitInterrupted, fmt.Errorf("interrupted; %s", next))
	}
	// A process that could not write its file may also have been unable to write the reason into its log.
	if free, statErr := freeBytes(dir); statErr == nil && free < leastFree {
		return cli.ExitWith(cli.ExitStore, fmt.Errorf("%w: the disk of %s is full: free space on it, then %s; no finished task is lost", err, dir, next))
	}
	return err
}

// leastFree is the room below which a disk counts as full.
const leastFree = 64 << 10
