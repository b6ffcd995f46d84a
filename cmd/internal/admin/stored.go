package admin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/etcdstore"
	"trainmaster/internal/filekind"
	"trainmaster/local"
	"trainmaster/master/committer"
	"trainmaster/taskqueue"
)

// OpenTarget opens the etcd to restore into; an embedded one is made if there is none yet.
func (p Location) OpenTarget(ctx context.Context) (*etcdstore.Store, func(), error) {
	if is, _ := etcdstore.IsEmbedded(*p.DataDir); len(p.Etcd.Endpoints) == 0 && !is { // an error of IsEmbedded recurs when etcd starts
		if err := os.MkdirAll(*p.DataDir, 0o750); err != nil {
			return nil, nil, cli.UsageErrorf("--data-dir: %w", err)
		}
		etcd, err := StartEmbedded(ctx, etcdstore.EmbeddedConfig{Dir: *p.DataDir})
		if err != nil {
			return nil, nil, err
		}
		etcd.Close()
	}
	return p.Open(ctx)
}

const jobsShown = 20 // in a message that names the jobs there are

// Location is the etcd that has the state of a job: the etcd at its endpoints or, if there are none, the embedded etcd of a directory.
type Location struct {
	Etcd    *etcdstore.Config
	DataDir *string
}

// AddLocationFlags gives cmd the flags of a location, for commands that read a job without a master.
func AddLocationFlags(cmd *cobra.Command, etcd *etcdstore.Config) Location {
	return Location{Etcd: etcd, DataDir: cmd.Flags().String("data-dir", "trainmaster-data", "`directory` of the embedded etcd, used when there are no --endpoints")}
}

// AddRunFlags gives cmd the flags of a location and --dir. find, called once cmd runs, finds the etcd of a process that uses the directory,
// in the order of AddLeaderFlags. Without any it leaves the directory of an embedded etcd that no process uses: of the newest run, if the
// default directory does not exist.
func AddRunFlags(cmd *cobra.Command) (from Location, find func() error) {
	from = AddLocationFlags(cmd, cli.AddEtcdFlags(cmd))
	dir := cmd.Flags().String("dir", RunsDir, "`directory` of a master run, or of several: the newest that is under way")
	return from, func() error {
		isNamed := cmd.Flag("dir").Changed
		if len(from.Etcd.Endpoints) > 0 {
			return nil
		}
		if cmd.Flag("data-dir").Changed {
			return from.findRunning()
		}
		scene, found, err := FindRun(*dir)
		switch {
		case isNamed && isStoppedRun(*dir):
			*from.DataDir = filepath.Join(*dir, EtcdDir)
		case err == nil:
			from.Etcd.Endpoints = []string{scene.Endpoint}
			if !isNamed {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s: the run in %s; another job: --endpoints or --data-dir\n", cmd.CommandPath(), found)
			}
			return nil
		case isNamed:
			return cli.UsageErrorf("--dir %q: %w%s", *dir, err, stoppedRunHint(*dir))
		}
		if _, err := os.Stat(*from.DataDir); errors.Is(err, fs.ErrNotExist) {
			if run := newestStoppedRun(*dir); run != "" {
				*from.DataDir = filepath.Join(run, EtcdDir)
				fmt.Fprintf(cmd.ErrOrStderr(), "%s: the run in %s, which no process uses; another job: --endpoints or --data-dir\n", cmd.CommandPath(), run)
				return nil
			}
		}
		if err := from.findRunning(); err != nil {
			return fmt.Errorf("%w%s", err, stoppedRunHint(*dir))
		}
		return nil
	}
}

// String names the etcd in a message.
func (p Location) String() string {
	if len(p.Etcd.Endpoints) > 0 {
		return "the etcd at " + strings.Join(p.Etcd.Endpoints, ",")
	}
	return "the embedded etcd in " + *p.DataDir
}

// Flags lead another command to the same job.
func (p Location) Flags() string {
	text := "--endpoints " + strings.Join(p.Etcd.Endpoints, ",")
	if len(p.Etcd.Endpoints) == 0 {
		text = "--data-dir " + *p.DataDir
	}
	if p.Etcd.Job != "" && p.Etcd.Job != "default" {
		text += " --job " + p.Etcd.Job
	}
	return text
}

// startCommand is the command that starts a master of the job.
func (p Location) startCommand() string {
	if len(p.Etcd.Endpoints) > 0 || filepath.Base(*p.DataDir) != EtcdDir {
		return "master " + p.Flags()
	}
	run := filepath.Dir(filepath.Clean(*p.DataDir))
	if _, _, err := local.Settings(run); err != nil {
		return "master " + p.Flags()
	}
	return "master run --resume " + run
}

// Open opens an etcd that must answer now, or starts the embedded one. A directory without any stays as it is.
func (p Location) Open(ctx context.Context) (store *etcdstore.Store, closeAll func(), err error) {
	c, closeEtcd := *p.Etcd, func() {}
	if len(c.Endpoints) == 0 {
		if err := p.checkDataDir(); err != nil {
			return nil, nil, err
		}
		etcd, err := etcdstore.StartEmbedded(ctx, etcdstore.EmbeddedConfig{Dir: *p.DataDir})
		if errors.Is(err, etcdstore.ErrInUse) {
			if at, _ := etcdstore.RunningEmbedded(*p.DataDir); at != "" { // else it has ended since
				return nil, nil, cli.ExitWith(cli.ExitStore, fmt.Errorf("%w: end that process, or look into its etcd while it runs: --endpoints %s", err, at))
			}
		}
		if err != nil {
			return nil, nil, cli.ExitWith(cli.ExitStore, EmbeddedError(err))
		}
		c.Endpoints, closeEtcd = []string{etcd.Endpoint()}, etcd.Close
	}
	if err := c.Validate(); err != nil {
		closeEtcd()
		return nil, nil, cli.UsageErrorf("--%w", err)
	}
	if store, err = etcdstore.Open(ctx, c); err != nil {
		closeEtcd()
		//guard:directory-in-use-elsewhere
		if at, _ := etcdstore.RunningEmbedded(*p.DataDir); at != "" && slices.Equal(c.Endpoints, []string{at}) {
			return nil, nil, fmt.Errorf("data directory %q: in use by another process, whose etcd does not answer at %s: it may be a master in another pod: run the command there, or wait for its end: %w",
				*p.DataDir, at, err)
		}
		return nil, nil, err
	}
	return store, func() {
		_ = store.Close() // nothing was written
		closeEtcd()
	}, nil
}

// findRunning takes the etcd of the process that uses the directory; if none does, open starts it.
func (p Location) findRunning() error {
	if err := p.checkDataDir(); err != nil {
		return err
	}
	at, err := etcdstore.RunningEmbedded(*p.DataDir)
	if err != nil {
		return cli.UsageErrorf("--data-dir %q: %w", *p.DataDir, err)
	}
	if at != "" {
		p.Etcd.Endpoints = []string{at}
	}
	return nil
}

// checkDataDir reports why there is no embedded etcd in the directory. In the directory of a `master run` it takes the one below it.
func (p Location) checkDataDir() error {
	is, err := etcdstore.IsEmbedded(*p.DataDir)
	if below := filepath.Join(*p.DataDir, EtcdDir); err == nil && !is {
		if _, _, noRun := local.Settings(*p.DataDir); noRun == nil {
			if is, err = etcdstore.IsEmbedded(below); is {
				*p.DataDir = below
			}
		}
	}
	switch {
	case err != nil:
		if wrong := filekind.CheckFolder(*p.DataDir); wrong != nil {
			err = wrong
		}
		return cli.UsageErrorf("--data-dir %q: %w", *p.DataDir, err)
	case !is:
		return cli.UsageErrorf("--data-dir %q: expected the embedded etcd of a master, found none: name another --data-dir, or the etcd with --endpoints", *p.DataDir)
	}
	return nil
}

// NoSuchJob is the usage error of a job that never ran there.
func (p Location) NoSuchJob(ctx context.Context, store *etcdstore.Store) error {
	names, err := store.Jobs(ctx, jobsShown)
	switch {
	case err != nil: // the user may have no access to the list of jobs
		return cli.UsageErrorf("no job %q in %v", p.Etcd.Job, p)
	case len(names) == 0:
		return cli.UsageErrorf("no job has run in %v yet; start a master with: %s", p, p.startCommand())
	}
	return cli.UsageErrorf("no job %q in %v; name one of these with --job: %s", p.Etcd.Job, p, strings.Join(names, ", "))
}

// ReadQueue rebuilds the queue of a job from the state in etcd. values has the keys of the state.
func ReadQueue(ctx context.Context, store *etcdstore.Store, from Location) (queue *taskqueue.Queue, values map[string][]byte, err error) {
	if values, _, err = store.ReadAll(ctx, taskqueue.StateKey, taskqueue.RosterPrefix, taskqueue.AsidePrefix); err != nil {
		return nil, nil, err
	}
	if values[taskqueue.StateKey] == nil {
		return nil, nil, from.NoSuchJob(ctx, store)
	}
	queue, err = committer.Stored(ctx, store, values[taskqueue.StateKey], committer.RosterOf(values))
	return queue, values, err
}
