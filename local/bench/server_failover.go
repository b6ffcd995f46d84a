package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/etcdstore"
	"trainmaster/pserver/placement"
	"trainmaster/trainer"
	"trainmaster/trainer/params"
)

// Faults of a parameter server.
const (
	ServerKill    = "server-kill"    // SIGKILL, with a standby
	ServerRestart = "server-restart" // SIGKILL; another process is started 100 ms later
	ServerHang    = "server-hang"    // SIGSTOP, with a standby
)

// ofServer says whether a mode is a fault of a parameter server.
func ofServer(mode string) bool {
	return slices.Contains([]string{ServerKill, ServerRestart, ServerHang}, mode)
}

const restartAfter = 100 * time.Millisecond // as the first restart of `master run`

// serverScene is the running job.
type serverScene struct {
	*Failover
	endpoint, dir string
	masters       daemons
	servers       []*exec.Cmd
	store         *etcdstore.Store
	unfollow      context.CancelFunc
	client        *trainer.Client
	params        *params.Client
	values, grads []params.Tensor
	step          uint64
}

func (s *serverScene) begin(ctx context.Context) (err error) {
	if s.store, err = etcdstore.Open(ctx, etcdstore.Config{Endpoints: []string{s.endpoint}}); err != nil {
		return err
	}
	if err := s.masters.start(); err != nil {
		return err
	}
	if err := s.startServer(); err != nil {
		return err
	}
	if _, err := s.store.WaitPS(ctx, nil); err != nil { // the first server serves then
		return err
	}
	if s.Mode != ServerRestart {
		if err := s.startServer(); err != nil {
			return err
		}
	}
	following, unfollow := context.WithCancel(ctx)
	s.unfollow = unfollow
	follow := trainer.NewFollow()
	go func() {
		for a := range s.store.WatchMasterAddr(following) {
			follow.Set(a.Addr, a.Term)
		}
	}()
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	log := logrus.NewEntry(quiet)
	if s.client, err = trainer.Join(ctx, trainer.Config{ID: "bench", Locate: follow, Log: log}); err != nil {
		return err
	}
	roster := s.store.FollowServers(following)
	if s.params, err = params.Connect(ctx, params.Config{
		Addrs:  func(ctx context.Context) ([]string, error) { return roster.Addrs(ctx, nil) },
		During: roster.During, Mode: params.Async, Optimizer: params.Optimizer{Kind: params.SGD, LearningRate: 0.1},
		Ordinal: uint32(s.client.Ordinal()), Incarnation: s.client.Incarnation(), Log: log,
	}); err != nil {
		return err
	}
	model := func() []params.Tensor {
		return []params.Tensor{{Name: "w", Shape: []int{placement.BlockElements}, Data: make([]float32, placement.BlockElements)}}
	}
	s.values, s.grads = model(), model()
	if err := s.params.Init(ctx, s.values); err != nil {
		return err
	}
	return s.push(ctx)
}

// startServer starts a parameter server, which is on standby if the index is taken.
func (s *serverScene) startServer() error {
	log, err := os.OpenFile(filepath.Join(s.dir, "pservers.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(s.Program[0], "pserver", "--endpoints", s.endpoint, "--listen", "127.0.0.1:0", "--checkpoint-dir", filepath.Join(s.dir, "checkpoints"), "--ps-ttl", s.TTL.String())
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the parent alone
	if err := cmd.Start(); err != nil {
		return err
	}
	s.servers = append(s.servers, cmd)
	return nil
}

func (s *serverScene) push(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*failoverPatience, fmt.Errorf("no reply within %v", 2*failoverPatience))
	defer cancel()
	s.step++
	_, err := s.params.PushPull(ctx, s.step, 1, s.grads, s.values)
	return err
}

// fault makes the server fail while pushes follow each other, and returns how long none was answered.
func (s *serverScene) fault(ctx context.Context) (time.Duration, error) {
	if err := rest(ctx, settleTime); err != nil { // for the standby to wait, and the leader to be connected
		return 0, err
	}
	serving := s.servers[0] // the others started later, and are standbys in this order
	began := time.Now()
	signal := syscall.SIGKILL
	if s.Mode == ServerHang {
		signal = syscall.SIGSTOP
	}
	if err := serving.Process.Signal(signal); err != nil {
		return 0, err
	}
	s.servers = s.servers[1:]
	if s.Mode != ServerHang {
		_ = serving.Wait() // it was killed
	} else if _, err := syscall.Wait4(serving.Process.Pid, nil, syscall.WUNTRACED, nil); err != nil { // until it has stopped
		return 0, err
	}
	restarted := make(chan error, 1)
	if s.Mode == ServerRestart {
		go func() { restarted <- errors.Join(rest(ctx, restartAfter), s.startServer()) }()
	} else {
		restarted <- nil
	}
	err := s.push(ctx)
	took := time.Since(began)
	if err = errors.Join(err, <-restarted); err != nil || s.Mode == ServerRestart {
		return took, err
	}
	if s.Mode == ServerHang {
		_ = serving.Process.Kill()
		_ = serving.Wait()
	}
	return took, s.startServer()
}

func (s *serverScene) close() error {
	var errs []error
	if s.params != nil {
		errs = append(errs, s.params.Close())
	}
	if s.client != nil {
		_ = s.client.Close() // its master is about to go
	}
	if s.unfollow != nil {
		s.unfollow()
	}
	for _, cmd := range s.servers {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	s.masters.kill()
	if s.store != nil {
		errs = append(errs, s.store.Close())
	}
	return errors.Join(errs...)
}
