package pserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"trainmaster/internal/failpoint"
	"trainmaster/internal/grpcserver"
	"trainmaster/internal/portsplit"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/checkpoint/storage"
	"trainmaster/pserver/control"
	"trainmaster/pserver/dataport"
	"trainmaster/pserver/persist"
	core "trainmaster/pserver/shard"
	"trainmaster/pserver/wire"
)

// ErrLeaseLost is returned when the lease is lost. The server ends immediately, since another server may own the index.
var ErrLeaseLost = errors.New("lease on the server index lost: this process or etcd was unavailable for longer than the lease: restart the server, it continues from its last checkpoint")

var errStopped = errors.New("stopped")

const gracePeriod = 5 * time.Second

// Server is one parameter server: a port, and while Run runs a shard behind it.
type Server struct {
	cfg    Config
	socket *dataport.Socket // nil: none
	place  checkpoint.Place // nil: no checkpoints are kept
	points failpoint.Hook   // crash points for tests, see checkpoint.Folder
}

// New checks the configuration, creates the checkpoint directory, and opens the port and the socket for trainers on this machine.
// Run must follow.
func New(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg}
	if cfg.CheckpointDir != "" {
		var err error
		if s.place, err = storage.Open(cfg.CheckpointDir); err != nil {
			return nil, fmt.Errorf("--checkpoint-dir: %w", err)
		}
		if err := s.place.Prepare(""); err != nil {
			return nil, fmt.Errorf("checkpoint directory (--checkpoint-dir): %w: choose a directory with write permission", err)
		}
	}
	if cfg.Listener == nil {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("listen for trainers: %w", err)
		}
		cfg.Listener, cfg.Advertise = listener, cmp.Or(cfg.Advertise, listener.Addr().String())
	}
	s.cfg = cfg
	if err := s.openSocket(); err != nil {
		cfg.Listener.Close()
		return nil, err
	}
	return s, nil
}

// openSocket fails only if the configuration names a directory.
func (s *Server) openSocket() (err error) {
	if s.cfg.DataSocket == SocketOff {
		return nil
	}
	s.socket, err = dataport.OpenSocket(s.cfg.socketFolder())
	if err != nil && s.cfg.DataSocket == SocketAuto {
		s.cfg.Log.WithError(err).Warn("no data socket: trainers on this machine use TCP")
		return nil
	}
	if err != nil {
		return fmt.Errorf("data socket: %w", err)
	}
	return nil
}

// Addr is the "ip:port" that trainers use.
func (s *Server) Addr() string { return s.cfg.Advertise }

// Run claims an index, loads the checkpoint set that etcd names and serves until ctx ends. Then it refuses trainers, waits until etcd
// names a set with all its updates, frees the index and returns nil. See the package comment for when it returns an error.
func (s *Server) Run(ctx context.Context) error {
	defer s.cfg.Listener.Close()
	if s.place != nil {
		defer s.place.Close()
	}
	if s.socket != nil {
		defer s.socket.Close()
	}
	claim, err := s.cfg.Registry.ClaimPS(ctx, s.Addr(), func(reason string) {
		s.cfg.Log.WithField("reason", reason).Info("waiting for an index")
	})
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("claim a parameter server's index: %w", err)
	}
	err = s.serve(ctx, claim)
	if errors.Is(err, ErrLeaseLost) {
		return err
	}
	release, cancel := context.WithTimeout(context.WithoutCancel(ctx), gracePeriod)
	defer cancel()
	return errors.Join(err, claim.Release(release))
}

// serve runs the server between claim and release.
func (s *Server) serve(ctx context.Context, claim Claim) error {
	shard, checkpoints, err := s.open(ctx, claim)
	if err != nil {
		return err
	}
	log := s.cfg.Log.WithField("shard", shard.Index())
	log.WithField("addr", s.Addr()).WithField("ready", shard.Ready()).Info("parameter server started")

	port := portsplit.New(s.cfg.Listener, portsplit.Config{HelloTimeout: s.cfg.HelloTimeout, MaxConnections: s.cfg.MaxConnections, Log: log, Misdirected: "this is the data port of a parameter server of trainmaster; a master listens elsewhere"})
	if s.socket != nil {
		port.Join(s.socket)
	}
	data := dataport.New(port.Branch(wire.Magic), &s.cfg.Limits, shard, s.socket, log)
	calls := port.Branch(portsplit.HTTP2)
	service := s.controlServer(shard, checkpoints, data, log)
	group, groupCtx := errgroup.WithContext(context.WithoutCancel(ctx))
	group.Go(func() error { return port.Run(groupCtx) })
	group.Go(data.Run)
	group.Go(func() error {
		err := service.Serve(calls)
		if groupCtx.Err() != nil {
			return nil // normal stop
		}
		return err
	})
	var superseded <-chan struct{}
	if checkpoints != nil {
		superseded = checkpoints.Superseded()
		group.Go(func() error { return checkpoints.AwaitSet(groupCtx, claim) })
	}
	group.Go(func() error {
		select {
		case <-claim.Lost():
			//guard:lost-lease-ends-server
			return ErrLeaseLost
		case <-superseded:
			return checkpoint.ErrSuperseded
		case err := <-shard.Over():
			return cmp.Or(err, core.ErrRetired)
		case <-groupCtx.Done():
			return nil
		}
	})
	group.Go(func() error {
		select {
		case <-ctx.Done():
		case <-groupCtx.Done():
			return nil
		}
		data.Stop()
		//guard:stopping-server-awaits-set
		if checkpoints != nil {
			checkpoints.AwaitLastSet(groupCtx, claim)
		}
		return errStopped
	})
	group.Go(func() error {
		<-groupCtx.Done()
		data.Stop()
		timer := time.AfterFunc(gracePeriod, service.Stop)
		defer timer.Stop()
		service.GracefulStop()
		return nil
	})
	err = group.Wait()
	if errors.Is(err, core.ErrRetired) {
		log.Info("parameter server ended: all its blocks were moved to others")
		return nil
	}
	if errors.Is(err, errStopped) {
		log.Info("parameter server stopped")
		return nil
	}
	return err
}

// open makes the shard, from its checkpoint if there is one.
func (s *Server) open(ctx context.Context, claim Claim) (*core.Shard, *persist.Checkpoints, error) {
	index, job := claim.Index(), claim.Job()
	log := s.cfg.Log.WithField("shard", index)
	if s.place == nil {
		// Nothing survives a restart, so any number works that differs from the last start.
		shard := s.newShard(log, index, uint64(time.Now().UnixNano()), job)
		layout, err := job.Layout()
		if err == nil {
			err = shard.CheckRestored(layout)
		}
		return shard, nil, err
	}
	c, err := persist.Open(ctx, persist.Options{
		Store: checkpoint.Store{Place: s.place, Points: s.points}, Index: index, Job: job, CheckpointsOf: s.cfg.CheckpointsOf,
		CutLimit: s.cfg.CutLimit, Log: log,
	})
	if err != nil {
		return nil, nil, err
	}
	shard := s.newShard(log, index, c.Start(), job)
	return shard, c, c.Restore(ctx, shard)
}

func (s *Server) newShard(log *logrus.Entry, index int, start uint64, job JobState) *core.Shard {
	severities := [...]logrus.Level{core.Info: logrus.InfoLevel, core.Warning: logrus.WarnLevel, core.Error: logrus.ErrorLevel}
	shard := core.New(func(n core.Notice) { log.WithFields(n.Fields).Log(severities[n.Severity], n.Text) }, index, shardEpoch(start), s.cfg.InitTimeout, s.cfg.StageBytes)
	shard.JobID, shard.TableKey, shard.StageWait = job.ID, job.TableKey, s.cfg.StageWait
	//guard:server-starts-with-the-learning-rate
	if job.Rate.Number > 0 {
		shard.SetRate(0, job.Rate) //nolint:errcheck // no later leader has called yet
	}
	return shard
}

func (s *Server) controlServer(shard *core.Shard, checkpoints *persist.Checkpoints, data *dataport.Listener, log *logrus.Entry) *grpc.Server {
	options := append(grpcserver.Contain(log), control.OfOneJob(shard)...)
	//guard:control-message-limit
	server := grpc.NewServer(append(options, grpc.MaxRecvMsgSize(control.MaxMessage), grpc.MaxSendMsgSize(control.MaxMessage),
		grpc.ConnectionTimeout(s.cfg.HelloTimeout), grpc.MaxConcurrentStreams(64),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}))...)
	pb.RegisterParameterServerServer(server, control.New(shard, checkpoints, data.Pause, log))
	healthpb.RegisterHealthServer(server, health.NewServer())
	reflection.Register(server)
	return server
}

// shardEpoch maps the number of a start to 16 bits: never 0, and different for the next 65,534 starts.
func shardEpoch(start uint64) uint16 { return uint16((start-1)%65535) + 1 }
