package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
	"trainmaster/etcdstore"
	"trainmaster/internal/portsplit"
	"trainmaster/ledger"
	"trainmaster/local"
	"trainmaster/master"
	"trainmaster/master/election"
	"trainmaster/master/grpcapi"
	"trainmaster/master/httpapi"
	"trainmaster/master/netrpc"
	"trainmaster/master/progress"
	"trainmaster/master/psclient"
	"trainmaster/master/pscontrol"
	"trainmaster/master/restore"
	"trainmaster/taskqueue"
)

// daemonSettings are the flags of the daemon, `master` without a subcommand.
type daemonSettings struct {
	etcd       *etcdstore.Config
	dataDir    string
	embedded   embeddedFlags
	dataProxy  string // proxySelf or host:port
	listen     string
	http       string
	httpChosen bool     // by the user
	tools      net.Addr // of the HTTP port; nil: there is none
	leaseTTL   time.Duration
	ps         int
	config     master.Config
	servers    pscontrol.Config // the settings of parameter servers
	evaluation evaluationFlags
	pods       podFlags
	parts      combination
	ring       ringFlags
	progress   *progress.Publisher // nil: the progress is not published
	podCodes   bool                // --exit-codes pod
	endpoints  []string            // of the etcd that is open, for other machines
	datasets   datasetFlags
	strategy   string    // path of the strategy file; "": none
	metrics    io.Writer // of --metrics-out; nil: none
	passMode   *string
	update     *string
	lostTask   *string
	fault      bool
	// Networks of trainers with TrainerControl.
	controlHosts []string
	ledger       bool
	sealing      ledger.Config
	keep         string
	checkpoint   string // how often
	resume       string // the directory or bucket of checkpoints to begin from
	open         func(context.Context, etcdstore.Config, *logrus.Entry) (*etcdstore.Store, error)
	failed       chan error // of the embedded etcd
}

// addDaemon makes cmd the daemon.
func addDaemon(cmd *cobra.Command) {
	s := &daemonSettings{etcd: cli.AddEtcdFlags(cmd)}
	c, q := &s.config, &s.config.Queue
	flags := cmd.Flags()
	flags.StringVar(&s.dataDir, "data-dir", "trainmaster-data", "`directory` of the embedded etcd, used when there are no --endpoints")
	s.embedded.add(cmd)
	flags.StringVar(&s.listen, "listen", "127.0.0.1:8080", "`host:port` for trainers (net/rpc and gRPC)")
	flags.StringVar(&s.http, "http", "127.0.0.1:8081", "`host:port` for HTTP (/healthz, /readyz, /metrics); empty: none")
	flags.StringVar(&c.Advertise, "advertise", "", "`host:port` that trainers dial (default: POD_IP with the port of --listen, else --listen)")
	flags.DurationVar(&s.leaseTTL, "lease-ttl", 5*time.Second, "how long the lock outlives a leader that died")
	flags.DurationVar(&c.Holddown, "holddown", 10*time.Second, "minimum time between two forced takeovers of the lock (0 = the default)")
	flags.BoolVar(&s.etcd.OwnEtcd, "own-etcd", false, "this job is the only user of etcd: the master compacts its history (starts no etcd)")
	s.open = cli.AddStoreTimeout(cmd)
	flags.BoolVar(&c.AcceptCluster, "accept-cluster", false, "continue from a state that another etcd cluster wrote")

	flags.IntVar(&q.Passes, "passes", 1, "number of walks over the dataset (0 = no limit)")
	s.passMode = cli.AddChoice(cmd, "pass-mode", "", "a pass begins when the previous pass is finished (barrier) or dispatched (rolling)", "barrier", "rolling")
	flags.BoolVar(&c.Shuffle, "shuffle", true, "each pass in an order of its own")
	flags.Uint64Var(&c.Seed, "seed", 0, "of the order of passes")
	flags.IntVar(&c.ChunksPerTask, "chunks-per-task", 0, "`chunks` in a task, which takes at most 3 MiB with their paths (0: so that there are 8 tasks for each of --trainers)")
	flags.IntVar(&c.Trainers, "trainers", 8, "how many trainers to expect (0: the default)")
	flags.StringSliceVar(&c.Roots, "data-roots", nil, "`directories` that datasets must be in, and URLs that objects must be below, such as s3://bucket/prefix (default: any directory, no URL)")

	flags.StringVar(&s.dataProxy, "data-proxy", "", "where trainers over gRPC read their records: a `host:port` of a data proxy, self (this master, files below --data-roots), or empty (from the files)")

	flags.DurationVar(&q.TimeoutMin, "task-timeout-min", 30*time.Second, "minimum task timeout")
	flags.DurationVar(&q.TimeoutMax, "task-timeout-max", time.Hour, "maximum task timeout, also of a task whose failures double it")
	flags.IntVar(&q.MaxFailures, "task-max-failures", 3, "a task that failed more often is set aside (0: the default)")
	flags.IntVar(&q.MaxSetAside, "max-set-aside", 1000, "more tasks set aside pause the job (0: the default)")
	flags.BoolVar(&q.ExplicitCommit, "explicit-commit", false, "tasks count when a saved step of the model has them, not when they are finished")
	flags.BoolVar(&q.Speculate, "speculate", false, "give second copies of the slowest tasks at the end of a pass")
	flags.DurationVar(&q.SessionTTL, "session-ttl", 15*time.Second, "a trainer silent for longer is lost")
	flags.StringSliceVar(&s.controlHosts, "allow-trainer-address", nil, "`CIDR` of hosts at which trainers may serve TrainerControl, in addition to the hosts of their connections; repeatable")
	flags.IntVar(&q.MaxSessions, "max-sessions", 50_000, "maximum `number` of trainer sessions (0 = the default)")
	flags.BoolVar(&s.fault, "task-fault-tolerance", true, "return the tasks of a lost trainer immediately, not after their timeout")

	flags.IntVar(&s.ps, "ps", 0, "number of parameter servers of the job, written to etcd if absent (0: whatever etcd says)")
	s.update = cli.AddChoice(cmd, "update-mode", "", "how gradients are applied: on arrival (async) or in steps of all trainers (sync)", "async", "sync")
	flags.IntVar(&c.Backups, "backup-workers", 0, "trainers that a synchronous step does not wait for")
	flags.BoolVar(&c.Deterministic, "deterministic", false, "two runs of as many trainers as --trainers says agree bit by bit, with synchronous steps")
	flags.StringVar(&s.checkpoint, "checkpoint-every", "1m", "how often to take a checkpoint of all parameter servers: a `cadence` such as 60s, 1pass, 500steps (with --update-mode sync), 60s,1pass (whichever comes first), or never")
	s.lostTask = addTrainerLoss(cmd)
	flags.IntVar(&s.servers.CheckpointKeep, "checkpoint-keep", 2, "sets of checkpoints to keep (0: the default)")
	s.evaluation.add(cmd)
	s.datasets.add(cmd)
	s.pods.add(cmd)
	s.parts.add(cmd)
	s.ring.add(cmd)
	flags.DurationVar(&c.DatasetWatch, "dataset-watch", 10*time.Second, "`time` between two looks for new files of the online datasets of --dataset")
	addStrategy(cmd, &s.strategy)
	flags.StringVar(&s.resume, "resume", "", "`directory`, or s3://bucket/prefix, of the checkpoints of a job that etcd has lost: restore data and parameters from the newest set; a restored job continues")
	flags.BoolVar(&s.ledger, "ledger", true, "write the ledger, from which master verify proves what was counted")
	flags.StringVar(&s.sealing.Dir, "ledger-dir", "", "`directory` for the sealed ledger, the same for all masters of the job (default: ledger in --data-dir; with --endpoints, etcd)")
	flags.StringVar(&s.keep, "ledger-keep", "", "how much of the sealed ledger to keep: a `size` such as 10GiB, an age such as 720h, or all (default 1GiB in a directory, 64MiB in etcd)")
	flags.Uint64Var(&s.sealing.Every, "ledger-seal-every", 10_000, "seal the ledger after so many `commits`, or 1 MiB")
	flags.DurationVar(&c.Linger, "linger", 30*time.Second, "`time` that the master of an ended job waits for its trainers to leave")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s.httpChosen, s.podCodes = cmd.Flags().Changed("http"), cli.UsesPodCodes(cmd, nil)
		if err := s.validate(cmd); err != nil {
			return err
		}
		metrics, closeMetrics, err := s.evaluation.openMetrics(cmd)
		if err != nil {
			return err
		}
		s.metrics, s.failed = metrics, make(chan error, 1)
		log := cli.NewLogger(cmd).WithField("job", s.etcd.Job)
		err = orFailed(func() error { return unlessStopped(cmd.Context(), log, s.run(cmd.Context(), log)) }, s.failed)
		return cmp.Or(err, closeMetrics())
	}
}

// unlessStopped returns the error of a daemon. A daemon that is stopped while it starts has nothing to end: that is no error, except in a
// pod.
func unlessStopped(ctx context.Context, log *logrus.Entry, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		log.Info("stopped during the start")
		return cli.ErrStopped
	}
	return err
}

// orStopped returns cli.ErrStopped if a process has ended without an error after a signal.
func orStopped(ctx context.Context, err error) error {
	//guard:stopped-process-in-a-pod
	if err == nil && ctx.Err() != nil {
		return cli.ErrStopped
	}
	return err
}

// leastSessionTTL is more than a commit and the heartbeat after it take together.
const leastSessionTTL = 2 * time.Second

// validate copies the flags into the configuration, and returns an error that names the first flag with an invalid value.
func (s *daemonSettings) validate(cmd *cobra.Command) error {
	s.config.Job = s.etcd.Job
	s.config.Queue.Rolling = *s.passMode == "rolling"
	s.config.Queue.LossesIgnored = !s.fault
	s.config.NoLedger = !s.ledger
	s.config.Sync = *s.update == "sync"
	if q := &s.config.Queue; s.config.Sync {
		if q.ExplicitCommit {
			return cli.SettingErrorf(cmd, "explicit-commit", "expected it without --update-mode sync, where the master commits the steps")
		}
		q.ExplicitCommit, q.Cuts = true, true
		q.RetrainLost = *s.lostTask == local.Retrain && !(s.config.Deterministic && !cmd.Flags().Changed("on-trainer-loss"))
	}
	var err error
	if s.sealing.Keep, err = ledger.ParseKeep(s.keep); err != nil {
		return cli.SettingErrorf(cmd, "ledger-keep", "expected a size such as 64MiB or 10GiB, an age such as 720h, or all")
	}
	if err := s.evaluation.check(cmd); err != nil {
		return err
	}
	if s.evaluation.config.Every.Steps > 0 && !s.config.Sync && s.ps > 0 {
		return cli.SettingErrorf(cmd, "evaluate-every", "expected no steps with asynchronous parameter servers: the master counts them in synchronous mode only")
	}
	s.config.Queue.HoldEnd = len(s.evaluation.data) > 0
	if !s.config.Queue.HoldEnd {
		if err := s.evaluation.checkUsed(cmd, "--evaluation-data"); err != nil {
			return err
		}
	}
	if err := s.readStrategy(cmd); err != nil {
		return err
	}
	if s.config.Datasets, err = s.datasets.parse(cmd); err != nil {
		return err
	}
	if s.servers.CheckpointEvery, err = pscontrol.ParseCadence(s.checkpoint); err != nil {
		return cli.SettingErrorf(cmd, "checkpoint-every", "expected never, or at most one of each, separated by commas: a time such as 60s, steps such as 500steps, passes such as 1pass")
	}
	if s.sealing.Every == 0 {
		return cli.SettingErrorf(cmd, "ledger-seal-every", "expected at least 1")
	}
	s.sealing.Job = s.etcd.Job
	if s.sealing.Dir == "" && len(s.etcd.Endpoints) == 0 {
		s.sealing.Dir = ledgerDir(s.dataDir)
	}
	if s.leaseTTL < time.Second {
		return cli.SettingErrorf(cmd, "lease-ttl", "expected at least 1s")
	}
	if err := s.validateBounds(cmd); err != nil {
		return err
	}
	if err := s.pods.check(cmd, s); err != nil {
		return err
	}
	if err := s.parts.check(cmd, s); err != nil {
		return err
	}
	s.parts.apply(&s.config, &s.pods)
	if err := s.ring.check(cmd, s); err != nil {
		return err
	}
	if err := s.validateDataProxy(cmd); err != nil {
		return err
	}
	if err := s.parseControlHosts(cmd); err != nil {
		return err
	}
	q := &s.config.Queue
	if q.SessionTTL < leastSessionTTL {
		return cli.SettingErrorf(cmd, "session-ttl", "expected at least %v: it must outlast a slow commit", leastSessionTTL)
	}
	for name, d := range map[string]time.Duration{
		"task-timeout-min": q.TimeoutMin, "task-timeout-max": q.TimeoutMax, "linger": s.config.Linger,
	} {
		if d < time.Millisecond { // 0 would be taken for the default
			return cli.SettingErrorf(cmd, name, "expected at least 1ms")
		}
	}
	servers := s.servers
	servers.Sync = s.config.Sync
	if err := cmp.Or(s.config.Validate(), servers.Validate()); err != nil {
		return cli.UsageErrorf("--%w", err)
	}
	if err := s.embedded.check(cmd, s.etcd.Endpoints); err != nil {
		return err
	}
	etcd := *s.etcd
	if len(etcd.Endpoints) == 0 {
		etcd.Endpoints = []string{"127.0.0.1:2379"} // any address: the embedded etcd has not started yet
	}
	if err := etcd.Validate(); err != nil {
		return cli.UsageErrorf("--%w", err)
	}
	return nil
}

// parseControlHosts reads --allow-trainer-address.
func (s *daemonSettings) parseControlHosts(cmd *cobra.Command) error {
	s.config.ControlHosts = nil
	for _, text := range s.controlHosts {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return cli.SettingErrorf(cmd, "allow-trainer-address", "expected networks such as 10.0.0.0/8 or fd00::/8")
		}
		s.config.ControlHosts = append(s.config.ControlHosts, prefix.Masked())
	}
	return nil
}

// Beyond these a setting is a slip of the hand.
const (
	mostServers       = 1024
	mostTrainers      = 1_000_000
	mostChunksPerTask = 1_000_000
	mostLeaseTTL      = time.Hour
)

// validateBounds names the first number that no job can have.
func (s *daemonSettings) validateBounds(cmd *cobra.Command) error {
	c := &s.config
	switch {
	case s.leaseTTL > mostLeaseTTL:
		return cli.SettingErrorf(cmd, "lease-ttl", "expected at most %v: without the leader's machine, no master leads for this time", mostLeaseTTL)
	case c.Holddown < 0:
		return cli.SettingErrorf(cmd, "holddown", "expected 0 (the default) or more")
	case s.ps < 0 || s.ps > mostServers:
		return cli.SettingErrorf(cmd, "ps", "expected 0 (whatever etcd says) to %d", mostServers)
	case c.Sync && s.ps == 0:
		return cli.SettingErrorf(cmd, "ps", "expected how many parameter servers the job has: --update-mode sync needs them")
	case c.Trainers < 0 || c.Trainers > mostTrainers:
		return cli.SettingErrorf(cmd, "trainers", "expected 0 (the default) to %d", mostTrainers)
	case c.ChunksPerTask < 0 || c.ChunksPerTask > mostChunksPerTask:
		return cli.SettingErrorf(cmd, "chunks-per-task", "expected 0 (by --trainers) to %d", mostChunksPerTask)
	}
	return nil
}

// ledgerDir is where the ledger of a master with an embedded etcd is sealed.
func ledgerDir(dataDir string) string { return filepath.Join(dataDir, "ledger") }

// run serves until the job has ended or ctx ends. It stops in this order: the committer
// finishes what waits, the lock is resigned, the port closes, the store closes.
func (s *daemonSettings) run(ctx context.Context, log *logrus.Entry) (err error) {
	if err := s.evaluation.checkFiles(ctx, s.config.Roots); len(s.evaluation.data) > 0 && err != nil {
		return err
	}
	listener, err := cli.Listen(s.listen, "--listen")
	if err != nil {
		return err
	}
	defer listener.Close()
	face, closeFace, err := s.serveTools(ctx, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeFace()) }()
	if s.config.Advertise, err = cli.Advertise(s.config.Advertise, listener.Addr()); err != nil {
		return err
	}
	store, closeStore, err := s.openStore(ctx, log)
	if err != nil {
		return err
	}
	defer closeStore()
	if s.resume != "" {
		r := restore.Resumption{From: s.resume, Job: s.etcd.Job, Roots: s.config.Roots, Ledger: s.ledger, Log: log}
		if err := r.Into(ctx, store); err != nil {
			return err
		}
	}
	if begun, _, err := store.Value(ctx, taskqueue.StateKey); err != nil {
		return fmt.Errorf("read %s: %w", taskqueue.StateKey, err)
	} else if begun != nil {
		if err := s.desire(ctx, store, log); err != nil {
			return err
		}
	} else if err := s.datasets.checkFiles(ctx, s.config); err != nil {
		return err
	}
	before, err := admin.StoredOutcome(ctx, store)
	ended := err == nil && before.Ended()
	if ended {
		log.Warnf("job %q already %v; to start over, choose another --job, or another --data-dir", s.etcd.Job, before)
	}
	if err := s.serve(ctx, listener, face, store, log); err != nil { // also of a job that has ended: trainers may not know it yet
		return err
	}
	from := admin.Location{Etcd: s.etcd, DataDir: &s.dataDir}
	if ended {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), admin.OutcomeTimeout)
		defer cancel()
		return admin.ReportSetAside(bounded, store, before, from, log)
	}
	return admin.LogOutcome(ctx, store, from, log)
}

// desire writes the number of parameter servers to etcd if it is absent. It refuses a master without parameter servers for a job that has
// them: it would lead the job without their checkpoints and rollbacks. The servers start when the key exists, so it is written only
// after the job has begun: each server then knows its job instance.
func (s *daemonSettings) desire(ctx context.Context, store *etcdstore.Store, log *logrus.Entry) error {
	if !s.parts.tasks { // servers of other programs: they do not register
		return nil
	}
	if s.ps == 0 {
		switch desired, _, err := store.Value(ctx, "/ps_desired"); {
		case err != nil:
			return fmt.Errorf("read /ps_desired: %w", err)
		case desired != nil:
			return cli.UsageErrorf("%w: --ps: expected %s, the parameter servers of the job, found 0", master.ErrOtherJob, desired)
		}
		return nil
	}
	if n, err := store.SetDesiredIfAbsent(ctx, s.ps); err != nil {
		return fmt.Errorf("write /ps_desired: %w", err)
	} else if placed, _, err := store.Value(ctx, pscontrol.PlacementKey); err != nil {
		return fmt.Errorf("read %s: %w", pscontrol.PlacementKey, err)
	} else if n != s.ps && placed != nil {
		log.WithFields(logrus.Fields{"ps": n, "given": s.ps}).Info("ignoring --ps: master scale has changed the number of parameter servers")
	} else if n != s.ps {
		return cli.UsageErrorf("%w: --ps: expected %d, which the job began with, found %d", master.ErrOtherJob, n, s.ps)
	}
	return nil
}

// serveTools serves the HTTP port from the start: while the process waits for etcd, it is healthy and not ready. Without a port
// it serves nothing.
func (s *daemonSettings) serveTools(ctx context.Context, log *logrus.Entry) (face *httpapi.Server, closeFace func() error, err error) {
	face = httpapi.Starting(log)
	listener, err := s.listenTools(log)
	if err != nil || listener == nil {
		return face, func() error { return nil }, err
	}
	s.tools = listener.Addr()
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- face.Serve(serving, listener) }()
	return face, func() error { stop(); return <-ended }, nil
}

// listenTools opens the HTTP port. If another process uses the default port, the listener is nil; if the flag was set, it is an
// error.
func (s *daemonSettings) listenTools(log *logrus.Entry) (net.Listener, error) {
	if s.http == "" {
		return nil, nil
	}
	l, err := cli.Listen(s.http, "--http")
	if err != nil && !s.httpChosen {
		log.WithField("http", s.http).Warn("the port for tools is in use, perhaps by another master: there is none here; choose one with --http")
		return nil, nil
	}
	return l, err
}

func (s *daemonSettings) serve(ctx context.Context, listener net.Listener, face *httpapi.Server, store *etcdstore.Store, log *logrus.Entry) error {
	watching, unwatch := context.WithCancel(context.WithoutCancel(ctx))
	defer unwatch()
	roster := store.FollowServers(watching)
	var m *master.Master // the components call it when it leads
	client := &psclient.Client{
		Addrs:   func(ctx context.Context) ([]string, error) { return roster.Addrs(ctx, nil) },
		Present: store.Servers, Registered: store.RegisteredServers, During: roster.During, JobID: func() string { return m.JobID() },
	}
	defer client.Close()
	var err error
	config := s.config
	config.LeaseTTL = s.leaseTTL
	config.Store, config.Log = store, log
	config.Ledger = &ledger.Sealer{Store: store, Config: s.sealing, Log: log}
	servers := s.servers
	servers.Servers, servers.Registry = client, roster
	config.Ring = s.ring.component(&config, s.tools)
	if config.Pods, err = s.pods.manager(&config, roster, s.endpoints, log); err != nil {
		return err
	}
	s.components(&config, servers, func(ctx context.Context) error { return s.desire(ctx, store, log) }, func() *master.Master { return m })
	created, err := master.New(config)
	if err != nil {
		return cli.UsageErrorf("%v", err)
	}
	m = created
	split := portsplit.New(listener, portsplit.Config{Log: log, Reserved: portsplit.HTTPGet}) // heartbeats for standbys
	rpcs := &netrpc.Server{Master: m, Log: log}
	proxy, err := s.proxy()
	if err != nil {
		return err
	}
	grpcs := grpcapi.New(m, log, proxy)
	rpcListener, grpcListener, httpListener := split.Branch(portsplit.HTTPConnect), split.Branch(portsplit.HTTP2), split.Branch(portsplit.HTTPGet)

	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var group errgroup.Group
	group.Go(func() error { return split.Run(serving) })
	group.Go(func() error { return rpcs.Serve(serving, rpcListener) })
	group.Go(func() error { return grpcs.Serve(serving, grpcListener) })
	group.Go(func() error { return serveBeats(serving, m, httpListener) })
	face.Attend(m, func(ctx context.Context) (int64, int64, error) {
		size, err := store.Size(ctx)
		return size.Total, size.Quota, err
	})
	if store.OwnEtcd() {
		group.Go(func() error { return store.CompactLoop(serving, time.Minute, etcdstore.KeepRevisions) })
	} else if warning, err := store.CheckAutoCompaction(ctx); err == nil && warning != "" {
		log.Warn(warning)
	}
	log.WithFields(logrus.Fields{"listen": listener.Addr().String(), "advertise": s.config.Advertise}).Info("serving")
	err = m.Run(ctx)
	hasEnded := ctx.Err() == nil && (err == nil || errors.Is(err, master.ErrJobFailed))
	var steps []endStep
	if hasEnded && s.progress != nil {
		steps = append(steps, endStep{"progress of the ended job not published: the annotation of the Job has an earlier state", func() error { return s.publishEnd(ctx, store) }})
	}
	if hasEnded && config.Pods != nil {
		steps = append(steps, endStep{"pods of the ended job not cleaned", func() error { return config.Pods.Clean(ctx) }})
	}
	err = settled(err, s.podCodes, log, steps)
	stop()
	if serveErr := group.Wait(); err == nil {
		err = serveErr
	}
	if errors.Is(err, master.ErrOtherJob) || errors.Is(err, master.ErrOtherLedger) {
		return cli.UsageErrorf("%w", err)
	}
	return err
}

// serveBeats serves the heartbeats that standby masters read.
func serveBeats(ctx context.Context, m *master.Master, l net.Listener) error {
	routes := http.NewServeMux()
	routes.HandleFunc("GET "+election.HeartbeatPath, m.ServeHeartbeats)
	server := &http.Server{Handler: routes, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 10 * time.Second, MaxHeaderBytes: 8 << 10}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(l); ctx.Err() == nil {
		return fmt.Errorf("serve heartbeats: %w", err)
	}
	return nil
}

// openStore opens the given etcd, or an embedded one.
func (s *daemonSettings) openStore(ctx context.Context, log *logrus.Entry) (*etcdstore.Store, func(), error) {
	closeEtcd := func() {}
	config := *s.etcd
	s.endpoints = config.Endpoints
	if len(config.Endpoints) == 0 {
		etcd, err := s.embedded.start(ctx, s.dataDir, log)
		if err != nil {
			return nil, nil, err
		}
		go func() {
			if err, failed := <-etcd.Err(); failed {
				s.failed <- admin.EmbeddedError(err)
			}
		}()
		s.endpoints = []string{etcd.Advertised()}
		config.Endpoints, config.OwnEtcd, closeEtcd = []string{etcd.Endpoint()}, true, etcd.Close
	}
	store, err := s.open(ctx, config, log)
	if err != nil {
		closeEtcd()
		return nil, nil, err
	}
	return store, func() {
		store.Close()
		closeEtcd()
	}, nil
}

// addTrainerLoss gives cmd the flag --on-trainer-loss.
func addTrainerLoss(cmd *cobra.Command) *string {
	return cli.AddChoice(cmd, "on-trainer-loss", "", "with --update-mode sync, action if a trainer is lost with a task: train that task again (retrain) or roll back the job (rewind; the default with --deterministic)", local.Retrain, local.Rewind)
}
