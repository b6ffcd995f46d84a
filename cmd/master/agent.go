package main

import (
	"context"
	"fmt"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
	"trainmaster/etcdstore"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/trainer"
	"trainmaster/trainer/agent"
	"trainmaster/trainer/rendezvous"
)

// agentCommand is the client of a job for a training process in another language.
func agentCommand() *cobra.Command {
	var (
		a        agent.Config
		addr     string
		isMember bool
		host     string
		servers  []string
		proxy    proxyFlags
	)
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Serve a training process in another language",
		Long: `Agent is the client of a job for a training process in another language, which starts it: the Python SDK does so for each trainer. It joins
the job, sends heartbeats, requests tasks, and reads and verifies the records. The process sends its requests over a socket pair
(docs/formats/agent.md).

It ignores SIGINT, SIGTERM and SIGHUP, and ends when the process ends or closes the socket pair. If the process dies, its tasks return
to the queue immediately.

Exit codes: 0 if the process has ended or has closed the socket pair, 1 if a request could not be read.`,
		Example: `  # as a training process starts it, whose end of the socket pair is another descriptor
  master agent --fd 3 --parent 4711 --socket /tmp/tm-x7/agent --addr 127.0.0.1:8080 --id trainer-0`,
		Args: cobra.NoArgs,
	}
	etcd := cli.AddEtcdFlags(cmd)
	open := cli.AddStoreTimeout(cmd)
	flags := cmd.Flags()
	flags.IntVar(&a.FD, "fd", 3, "`number` of the open descriptor of the socket pair")
	flags.IntVar(&a.Parent, "parent", 0, "process `id` of the training process, the parent of this process (required)")
	flags.StringVar(&a.Socket, "socket", "", "`path` of the Unix socket to create for other processes of the trainer (default: none)")
	flags.StringVar(&addr, "addr", "", "`host:port` of the master (default: found through etcd)")
	flags.StringVar(&a.Trainer.ID, "id", defaultID(), "`name` of this trainer; a second one with the same name takes its place")
	flags.BoolVar(&isMember, "ring", false, "take part in the ring of the job. Take no tasks")
	flags.StringVar(&host, "ring-host", "", "`address` of this machine for the other members (default: the address of the connection to the master)")
	flags.StringSliceVar(&servers, "servers", nil, "`host:port` of every parameter server (default: found through etcd)")
	flags.IntVar(&a.Trainer.Window, "window", trainer.MinWindow, "maximum `number` of tasks that the trainer holds at the same time, 2 to 64")
	proxy.add(cmd)
	openStores := addDataCache(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		// The training process decides when this one ends. Ctrl-C at a terminal signals both.
		//guard:agent-ignores-signals
		signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
		switch {
		case len(etcd.Endpoints) == 0 && addr == "":
			return cli.UsageErrorf("expected --endpoints of etcd, or --addr of the master, found none of them")
		case addr != "" && !cli.IsHostPort(addr):
			return cli.SettingErrorf(cmd, "addr", "expected host:port")
		case slices.ContainsFunc(servers, func(s string) bool { return !cli.IsHostPort(s) }):
			return cli.SettingErrorf(cmd, "servers", "expected host:port of each")
		case !trainerName.MatchString(a.Trainer.ID):
			return cli.SettingErrorf(cmd, "id", "expected 1 to 128 letters, digits, '.', '_' and '-'")
		case a.Parent < 1:
			return cli.SettingErrorf(cmd, "parent", "expected the process id of the training process, which starts the agent")
		case a.Trainer.Window < trainer.MinWindow || a.Trainer.Window > trainer.MaxWindow:
			return cli.SettingErrorf(cmd, "window", "expected %d to %d", trainer.MinWindow, trainer.MaxWindow)
		case a.FD < 3:
			return cli.SettingErrorf(cmd, "fd", "expected 3 or more: 0 to 2 are the standard streams")
		}
		var err error
		if a.Trainer.Stores, err = openStores(); err != nil {
			return err
		}
		if a.Trainer.DialOptions, err = proxy.options(cmd, addr != ""); err != nil {
			return err
		}
		a.Log = cli.NewLogger(cmd).WithField("trainer", a.Trainer.ID)
		serve := func(ctx context.Context) error { return agent.Run(ctx, a) }
		if isMember {
			serve = func(ctx context.Context) error { return runMember(ctx, a, etcd.Job, cmd.Flag("job").Changed, host) }
		}
		a.Trainer.Log, a.Job, a.Program = a.Log, etcd.Job, readVersion().Version
		if len(etcd.Endpoints) > 0 || cmd.Flag("job").Changed {
			a.Trainer.Job = etcd.Job // a master of another job at --addr refuses the trainer
		}
		ctx, cancel := context.WithCancel(context.WithoutCancel(cmd.Context()))
		defer cancel()
		switch {
		case len(servers) > 0:
			a.Servers.Servers = func(context.Context) ([]string, error) { return servers, nil }
		case len(etcd.Endpoints) > 0:
			late := &lateRoster{ctx: ctx, open: func() (*etcdstore.Store, error) { return open(ctx, *etcd, a.Log) }, log: a.Log}
			defer late.close()
			a.Servers.Servers, a.Servers.During = late.addrs, late.during
		}
		if addr != "" {
			a.Trainer.Locate = trainer.At(addr)
			return serve(ctx)
		}
		// The process can ask from the beginning; the first answer waits for etcd.
		follow := trainer.NewFollow()
		a.Trainer.Locate = follow
		following := make(chan struct{})
		go func() {
			defer close(following)
			store, err := open(ctx, *etcd, a.Log)
			if err != nil {
				if ctx.Err() == nil {
					a.Log.WithError(err).Error("etcd cannot be used")
					follow.End(fmt.Errorf("find the master: %w", err))
				}
				return
			}
			defer store.Close()
			admin.FollowLeader(ctx, store, follow, a.Log)
		}()
		err = serve(ctx)
		cancel()
		<-following
		return err
	}
	return cmd
}

// memberPorts are no ports that a program uses: torchrun chooses its own.
var memberPorts = []uint32{1}

// runMember runs an agent that takes part in the ring.
func runMember(ctx context.Context, a agent.Config, job string, named bool, host string) error {
	client := &rendezvous.Client{
		Locate: a.Trainer.Locate, DialOptions: a.Trainer.DialOptions, Log: a.Log, Member: &pb.RingMember{Id: a.Trainer.ID, Host: host, Ports: memberPorts, Processes: 1},
	}
	if named {
		client.Job = job // a master of another job at --addr refuses the member
	}
	return agent.RunMember(ctx, agent.MemberConfig{FD: a.FD, Parent: a.Parent, Program: a.Program, Member: client, Log: a.Log})
}
