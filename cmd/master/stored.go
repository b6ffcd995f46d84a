package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"trainmaster/etcdstore"
	"trainmaster/local"
	"trainmaster/master/committer"
	"trainmaster/taskqueue"
)

const jobsShown = 20 // in a message that names the jobs there are

// place is where the state of a job lies: in the etcd that its endpoints name or, without any, in the embedded one of a
// directory.
type place struct {
	etcd    *etcdstore.Config
	dataDir *string
}

// addPlaceFlags gives cmd the flags of a place, for commands that look at a job that no master need lead.
func addPlaceFlags(cmd *cobra.Command, etcd *etcdstore.Config) place {
	return place{etcd, cmd.Flags().String("data-dir", "trainmaster-data", "`directory` of the embedded etcd, used when there are no --endpoints")}
}

func (p place) String() string {
	if len(p.etcd.Endpoints) > 0 {
		return "the etcd at " + strings.Join(p.etcd.Endpoints, ",")
	}
	return "the embedded etcd in " + *p.dataDir
}

// flags lead another command to the same job.
func (p place) flags() string {
	text := "--endpoints " + strings.Join(p.etcd.Endpoints, ",")
	if len(p.etcd.Endpoints) == 0 {
		text = "--data-dir " + *p.dataDir
	}
	if p.etcd.Job != "" && p.etcd.Job != "default" {
		text += " --job " + p.etcd.Job
	}
	return text
}

// startCommand is the command that starts a master of the job.
func (p place) startCommand() string {
	if len(p.etcd.Endpoints) > 0 || filepath.Base(*p.dataDir) != etcdDir {
		return "master " + p.flags()
	}
	run := filepath.Dir(filepath.Clean(*p.dataDir))
	if _, _, err := local.Settings(run); err != nil {
		return "master " + p.flags()
	}
	return "master run --resume " + run
}

// open opens an etcd that must answer now, or starts the embedded one. A directory without any stays as it is.
func (p place) open(ctx context.Context) (store *etcdstore.Store, closeAll func(), err error) {
	c, closeEtcd := *p.etcd, func() {}
	if len(c.Endpoints) == 0 {
		if err := p.checkDataDir(); err != nil {
			return nil, nil, err
		}
		etcd, err := etcdstore.StartEmbedded(ctx, etcdstore.EmbeddedConfig{Dir: *p.dataDir})
		if errors.Is(err, etcdstore.ErrInUse) {
			if at, _ := etcdstore.RunningEmbedded(*p.dataDir); at != "" { // else it has ended since
				return nil, nil, &exitError{exitStore, fmt.Errorf("%w: end that process, or look into its etcd while it runs: --endpoints %s", err, at)}
			}
		}
		if err != nil {
			return nil, nil, &exitError{exitStore, embeddedError(err)}
		}
		c.Endpoints, closeEtcd = []string{etcd.Endpoint()}, etcd.Close
	}
	if err := c.Validate(); err != nil {
		closeEtcd()
		return nil, nil, usageErrorf("--%w", err)
	}
	if store, err = etcdstore.Open(ctx, c); err != nil {
		closeEtcd()
		return nil, nil, err
	}
	return store, func() {
		_ = store.Close() // nothing was written
		closeEtcd()
	}, nil
}

// findRunning takes the etcd of the process that uses the directory; if none does, open starts it.
func (p place) findRunning() error {
	if err := p.checkDataDir(); err != nil {
		return err
	}
	at, err := etcdstore.RunningEmbedded(*p.dataDir)
	if err != nil {
		return usageErrorf("--data-dir %q: %w", *p.dataDir, err)
	}
	if at != "" {
		p.etcd.Endpoints = []string{at}
	}
	return nil
}

// checkDataDir reports why there is no embedded etcd in the directory. In the directory of a `master run` it takes the one below it.
func (p place) checkDataDir() error {
	is, err := etcdstore.IsEmbedded(*p.dataDir)
	if below := filepath.Join(*p.dataDir, etcdDir); err == nil && !is {
		if _, _, noRun := local.Settings(*p.dataDir); noRun == nil {
			if is, err = etcdstore.IsEmbedded(below); is {
				*p.dataDir = below
			}
		}
	}
	switch {
	case err != nil:
		if wrong := checkFolder(*p.dataDir); wrong != nil {
			err = wrong
		}
		return usageErrorf("--data-dir %q: %w", *p.dataDir, err)
	case !is:
		return usageErrorf("--data-dir %q: expected the embedded etcd of a master, found none: name another --data-dir, or the etcd with --endpoints", *p.dataDir)
	}
	return nil
}

// noSuchJob is the usage error of a job that never ran there.
func (p place) noSuchJob(ctx context.Context, store *etcdstore.Store) error {
	names, err := store.Jobs(ctx, jobsShown)
	switch {
	case err != nil: // the user may have no access to the list of jobs
		return usageErrorf("no job %q in %v", p.etcd.Job, p)
	case len(names) == 0:
		return usageErrorf("no job has run in %v yet; start a master with: %s", p, p.startCommand())
	}
	return usageErrorf("no job %q in %v; name one of these with --job: %s", p.etcd.Job, p, strings.Join(names, ", "))
}

// readQueue rebuilds the queue of a job from the state in etcd. values has the keys of the state.
func readQueue(ctx context.Context, store *etcdstore.Store, from place) (queue *taskqueue.Queue, values map[string][]byte, err error) {
	if values, _, err = store.Together(ctx, taskqueue.StateKey, taskqueue.RosterPrefix, taskqueue.AsidePrefix); err != nil {
		return nil, nil, err
	}
	if values[taskqueue.StateKey] == nil {
		return nil, nil, from.noSuchJob(ctx, store)
	}
	queue, err = committer.Stored(ctx, store, values[taskqueue.StateKey], rosterOf(values))
	return queue, values, err
}

func rosterOf(values map[string][]byte) map[string][]byte {
	roster := map[string][]byte{}
	for key, value := range values {
		if id, ok := strings.CutPrefix(key, taskqueue.RosterPrefix); ok {
			roster[id] = value
		}
	}
	return roster
}
