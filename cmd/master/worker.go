package main

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
	"trainmaster/etcdstore"
	"trainmaster/internal/freeport"
	"trainmaster/local/worker"
	"trainmaster/master/rendezvous"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/trainer"
	ringclient "trainmaster/trainer/rendezvous"
)

const (
	fewestPorts  = 4 // that an agent chooses: generations in a row have different ones
	longestGrace = time.Hour
)

// workerCommand is the agent of a member of the ring.
func workerCommand() *cobra.Command {
	var (
		addr, host, id string
		ports          []int
		processes      int
		servers        []string
		a              worker.Agent
	)
	cmd := &cobra.Command{
		Use:   "worker [flags] -- COMMAND [ARGS]",
		Short: "Run a command in each generation of the ring",
		Long: `Worker joins the ring of a job and runs a training program, with the rank of each process in its environment: for PyTorch (RANK,
WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_*), Horovod (HOROVOD_*), JAX (JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES,
JAX_PROCESS_ID) and TensorFlow (TF_CONFIG). When a member is lost, fails, joins or leaves, the master forms the next generation, and each
worker starts its command again with new ranks. Programs continue from their last checkpoint.

The ring is closed when the command has ended with exit code 0 on all members. The master must have --ring. docs/rendezvous.md has
all variables and the effects of faults.

Exit codes: 0 if the ring is closed and the command has completed or does not run, or after a signal (143 with --exit-codes pod); the
code of the command if it failed too often, or 128 and the number of the signal that ended it.`,
		Example: `  # two members on this machine, of a job whose master runs here with --ring 2
  master worker --addr 127.0.0.1:8080 --id a -- python3 train.py
  master worker --addr 127.0.0.1:8080 --id b -- python3 train.py
  # four processes on a machine with four GPUs
  master worker --endpoints 10.0.0.5:2379 --processes 4 -- python3 train.py`,
	}
	etcd := cli.AddEtcdFlags(cmd)
	open := cli.AddStoreTimeout(cmd)
	leaderTimeout := cli.AddLeaderTimeout(cmd)
	flags := cmd.Flags()
	flags.StringVar(&addr, "addr", "", "`host:port` of the master (default: found through etcd)")
	flags.StringVar(&id, "id", defaultID(), "`name` of this member; a second one with the same name takes its place")
	flags.StringVar(&host, "host", "", "`address` at which other members reach this one (default: POD_IP, else the address of the connection to the master)")
	flags.IntSliceVar(&ports, "ports", nil, "`ports` for the training program, at most 16; the coordinator of generation g uses the port at place g, modulo their number. Each process has its own port in TF_CONFIG (default: 4 free ports, more with more --processes)")
	flags.IntVar(&processes, "processes", 1, "number of processes of the command on this member")
	flags.IntVar(&a.MaxRestarts, "max-restarts", 3, "maximum number of failures of the command on this member; failures because of other members do not count")
	flags.DurationVar(&a.Grace, "stop-grace", 10*time.Second, "`time` from SIGTERM to SIGKILL for the command")
	flags.StringSliceVar(&servers, "servers", nil, "`host:port` of parameter servers of another framework, for TF_CONFIG")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 || cmd.ArgsLenAtDash() != 0 {
			return cli.UsageErrorf("expected the command after --, as in: master worker -- python3 train.py")
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case len(etcd.Endpoints) == 0 && addr == "":
			return cli.UsageErrorf("expected --endpoints of etcd, or --addr of the master, found none of them")
		case addr != "" && !cli.IsHostPort(addr):
			return cli.SettingErrorf(cmd, "addr", "expected host:port")
		case !trainerName.MatchString(id):
			return cli.SettingErrorf(cmd, "id", "expected 1 to 128 letters, digits, dots, dashes and underscores")
		case processes < 1 || processes > rendezvous.MaxProcesses:
			return cli.SettingErrorf(cmd, "processes", "expected 1 to %d", rendezvous.MaxProcesses)
		case a.MaxRestarts < 0:
			return cli.SettingErrorf(cmd, "max-restarts", "expected 0 or more")
		case a.Grace < 0 || a.Grace > longestGrace:
			return cli.SettingErrorf(cmd, "stop-grace", "expected 0 to %v", longestGrace)
		case len(ports) > rendezvous.MaxPorts || slices.ContainsFunc(ports, func(p int) bool { return p < 1 || p > 65535 }):
			return cli.SettingErrorf(cmd, "ports", "expected at most %d ports from 1 to 65535", rendezvous.MaxPorts)
		//guard:ports-of-the-processes
		case len(ports) > 0 && len(ports) < min(processes, rendezvous.MaxPorts):
			return cli.SettingErrorf(cmd, "ports", "expected at least %d ports for --processes %d", min(processes, rendezvous.MaxPorts), processes)
		case len(servers) > 0 && processes > rendezvous.MaxPorts:
			return cli.SettingErrorf(cmd, "servers", "expected at most %d --processes, each with a port of its own in TF_CONFIG", rendezvous.MaxPorts)
		case slices.ContainsFunc(servers, func(s string) bool { return !cli.IsHostPort(s) }):
			return cli.SettingErrorf(cmd, "servers", "expected host:port of each")
		case host != "" && rendezvous.CheckHost(host) != nil:
			return cli.SettingErrorf(cmd, "host", "%w", rendezvous.CheckHost(host))
		}
		limit, err := leaderTimeout(addr == "")
		if err != nil {
			return err
		}
		program, err := exec.LookPath(args[0])
		if err != nil {
			return cli.UsageErrorf("command: expected a program in PATH, or a path to an executable file: %w", err)
		}
		if host == "" {
			host = os.Getenv("POD_IP")
		}
		if len(ports) == 0 {
			if ports, err = freePorts(min(max(fewestPorts, processes), rendezvous.MaxPorts)); err != nil {
				return err
			}
		}
		member := &pb.RingMember{Id: id, Host: host, Processes: uint32(processes)}
		for _, p := range ports {
			member.Ports = append(member.Ports, uint32(p))
		}
		log := cli.NewLogger(cmd).WithField("member", id)
		a.Client = &ringclient.Client{Locate: trainer.At(addr), Member: member, Log: log}
		if len(etcd.Endpoints) > 0 || cmd.Flag("job").Changed {
			a.Client.Job = etcd.Job
		}
		a.Command, a.Servers, a.Log = append([]string{program}, args[1:]...), servers, log
		a.Stdout, a.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
		a.Stop = stopSignal()
		if addr != "" {
			return workUntilClosed(cmd.Context(), &a)
		}
		store, err := open(cmd.Context(), *etcd, log)
		if err != nil {
			return err
		}
		defer store.Close()
		return admin.WhileLed(cmd.Context(), store, limit, log, func(ctx context.Context) error { return workBy(ctx, store, &a) })
	}
	return cmd
}

// workBy works with the leader that etcd names.
func workBy(ctx context.Context, store *etcdstore.Store, a *worker.Agent) error {
	watching, stop := context.WithCancel(context.WithoutCancel(ctx)) // the agent leaves after ctx
	follow := trainer.NewFollow()
	done := make(chan struct{})
	defer func() {
		stop()
		<-done
	}()
	go func() {
		defer close(done)
		admin.FollowLeader(watching, store, follow, a.Log)
	}()
	a.Client.Locate = follow
	return workUntilClosed(ctx, a)
}

// workUntilClosed runs the agent.
func workUntilClosed(ctx context.Context, a *worker.Agent) error {
	err := a.Run(ctx)
	if e, ok := errors.AsType[*worker.ExitError](err); ok {
		return &cli.CommandError{Code: e.Code, Err: e}
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return cli.ErrStopped
	}
	return err
}

// stopSignal returns a function with the signal that this process has received, for the command; SIGTERM before it.
func stopSignal() func() syscall.Signal {
	received := make(chan os.Signal, 1)
	signal.Notify(received, os.Interrupt, syscall.SIGTERM)
	var mu sync.Mutex
	last := syscall.SIGTERM
	return func() syscall.Signal {
		mu.Lock()
		defer mu.Unlock()
		select {
		case s := <-received:
			last = s.(syscall.Signal)
		default:
		}
		return last
	}
}

// freePorts returns ports that no process listens at.
func freePorts(n int) (ports []int, err error) {
	for range n {
		addr, err := freeport.Addr("")
		if err != nil {
			return nil, err
		}
		_, text, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		port, err := strconv.Atoi(text)
		if err != nil {
			return nil, err
		}
		ports = append(ports, port)
	}
	return ports, nil
}
