package main

import (
	"context"
	"encoding/hex"
	"path/filepath"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
	"trainmaster/etcdstore"
	"trainmaster/pserver"
	"trainmaster/pserver/table"
	"trainmaster/pserver/wire"
)

// pserverSettings are the flags of `master pserver`.
type pserverSettings struct {
	etcd   *etcdstore.Config
	listen string
	ttl    time.Duration
	config pserver.Config
	open   func(context.Context, etcdstore.Config, *logrus.Entry) (*etcdstore.Store, error)

	leaderTimeout func(watched bool) (time.Duration, error)
}

// pserverCommand is a parameter server process.
func pserverCommand() *cobra.Command {
	s := &pserverSettings{}
	cmd := &cobra.Command{
		Use:   "pserver",
		Short: "Hold a share of a model's parameters",
		Long: `Pserver claims the first free index of the job's parameter servers, or waits for a free index, and holds that share of the
model: it sends parameters to trainers and applies their gradients. With --checkpoint-dir it saves its share when the master
takes a checkpoint of all servers, and in an asynchronous job also when it stops. The next server with this index continues
from that checkpoint. If it loses its index, it exits with an error, since another server may hold the index.`,
		Example: `  # one of the parameter servers of the job whose state is in this etcd
  master pserver --endpoints 127.0.0.1:2379 --checkpoint-dir checkpoints
  # with checkpoints in an object store with the S3 protocol; credentials come from the environment
  # or from ~/.aws
  master pserver --endpoints 127.0.0.1:2379 \
    --checkpoint-dir "s3://bucket/job?endpoint=http://127.0.0.1:9000&use_path_style=true"`,
	}
	s.etcd = cli.AddEtcdFlags(cmd)
	s.open = cli.AddStoreTimeout(cmd)
	s.leaderTimeout = cli.AddLeaderTimeout(cmd)
	c := &s.config
	flags := cmd.Flags()
	flags.StringVar(&s.listen, "listen", "127.0.0.1:0", "`host:port` for trainers and the master; port 0: a free one")
	flags.StringVar(&c.Advertise, "advertise", "", "`host:port` that trainers dial (default: POD_IP with the port of --listen, else --listen)")
	flags.StringVar(&c.DataSocket, "data-socket", pserver.SocketAuto,
		"`directory` of this user for a unix socket, which trainers on this machine use instead of TCP; auto: a temporary directory; off: none")
	flags.DurationVar(&s.ttl, "ps-ttl", 10*time.Second, "`time` until the index of a dead server is free")
	flags.StringVar(&c.CheckpointDir, "checkpoint-dir", "", "`directory`, or s3://bucket/prefix (azblob://, gs://), for checkpoints, the same for all servers of the job (default: none, a restart loses the parameters)")
	flags.StringVar(&c.CheckpointsOf, "checkpoints-of", "", "another `job`, whose checkpoints in --checkpoint-dir this job may begin with (default: such are refused)")
	flags.IntVar(&c.MaxConnections, "max-connections", 4096, "more are turned away (0: the default)")
	flags.Int64Var(&c.StageBytes, "stage-bytes", 4<<30, "`bytes` for gradients that wait for their step; beyond it trainers wait (0: the default)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case c.MaxConnections < 0:
			return cli.SettingErrorf(cmd, "max-connections", "expected 0 (the default) or more")
		case c.StageBytes != 0 && c.StageBytes < wire.MaxPayload:
			return cli.SettingErrorf(cmd, "stage-bytes", "expected 0 (the default) or at least %d", wire.MaxPayload)
		}
		logger := cli.NewLogger(cmd)
		return orStopped(cmd.Context(), unlessStopped(cmd.Context(), logger.WithField("job", s.etcd.Job), s.run(cmd.Context(), logger)))
	}
	return cmd
}

func (s *pserverSettings) run(ctx context.Context, logger *logrus.Logger) error {
	if len(s.etcd.Endpoints) == 0 {
		return cli.UsageErrorf("--endpoints: expected the etcd of the job, found nothing")
	}
	limit, err := s.leaderTimeout(true)
	if err != nil {
		return err
	}
	if s.ttl < time.Second {
		return cli.UsageErrorf("--ps-ttl %v: expected at least 1s", s.ttl)
	}
	if c := &s.config; c.DataSocket != pserver.SocketAuto && c.DataSocket != pserver.SocketOff {
		if c.DataSocket, err = filepath.Abs(c.DataSocket); err != nil {
			return cli.UsageErrorf("--data-socket: %w", err)
		}
	}
	if folder, err := openCheckpoints(s.config.CheckpointDir); err != nil {
		return err
	} else if err := folder.Place.Close(); err != nil {
		return err
	}
	listener, err := cli.Listen(s.listen, "--listen")
	if err != nil {
		return err
	}
	defer listener.Close()
	if s.config.Advertise, err = cli.Advertise(s.config.Advertise, listener.Addr()); err != nil {
		return err
	}
	log := logger.WithField("job", s.etcd.Job)
	if s.config.CheckpointDir == "" {
		log.Warn("no --checkpoint-dir: a restart of this server loses its share of the parameters")
	}
	store, err := s.open(ctx, *s.etcd, log)
	if err != nil {
		return err
	}
	defer store.Close()
	s.config.Listener, s.config.Log, s.config.Registry = listener, log, psRegistry{store, s.ttl}
	if err := s.config.Validate(); err != nil {
		return cli.UsageErrorf("%w", err)
	}
	server, err := pserver.New(s.config)
	if err != nil {
		return err
	}
	return admin.WhileLed(ctx, store, limit, log, server.Run)
}

// psRegistry makes the store what a parameter server wants to see.
type psRegistry struct {
	store *etcdstore.Store
	ttl   time.Duration
}

func (r psRegistry) ClaimPS(ctx context.Context, addr string, waiting func(string)) (pserver.Claim, error) {
	claim, err := r.store.ClaimPS(ctx, addr, r.ttl, waiting)
	if err != nil {
		return nil, err
	}
	return psClaim{claim}, nil
}

type psClaim struct{ *etcdstore.Claim }

func (c psClaim) Job() pserver.JobState { return jobState(c.Claim.Job()) }

func (c psClaim) Current(ctx context.Context) (pserver.JobState, error) {
	job, err := c.Claim.Current(ctx)
	return jobState(job), err
}

func jobState(job etcdstore.ServedJob) pserver.JobState {
	rate := pserver.Rate{Number: job.Rate.Number, Scale: job.Rate.Scale}
	if job.Rate.From > 0 { // of a synchronous job, whose steps have their rates
		rate = pserver.Rate{}
	}
	return pserver.JobState{
		Name: job.Name, ID: hex.EncodeToString(job.ID), Epoch: job.Epoch, Shards: job.Desired, Led: job.Led,
		LatestSet: job.LatestSet, Named: job.Named, Placement: job.Placement, TableKey: table.KeyOf(job.TableKey), Rate: rate,
	}
}
