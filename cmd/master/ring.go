package main

import (
	"io"
	"net"
	"time"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
	"trainmaster/cmd/internal/view"
	"trainmaster/master"
	"trainmaster/master/rendezvous"
	"trainmaster/master/ring"
)

// ringFlags are the flags about the ring.
type ringFlags struct {
	members string
	config  rendezvous.Config
	enabled bool // the master has the component
}

func (r *ringFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&r.members, "ring", "", "number of members `N` of the ring, or MIN:MAX: master worker joins it in each pod or on each machine (default: --workers with --distribution-strategy allreduce, else the job has no ring)")
	flags.DurationVar(&r.config.Window, "ring-window", 5*time.Second, "`time` that the ring waits for more members, up to MAX, before it forms with them")
}

// leastTimeoutOfRing is longer than a trainer keeps a task while it waits for others: with a shorter timeout, it would be taken for a trainer that hangs.
const leastTimeoutOfRing = 20 * time.Second

// check reads the flags. The ring of an all-reduce has the members of --workers by default.
func (r *ringFlags) check(cmd *cobra.Command, s *daemonSettings) error {
	members := r.members
	if members == "" && s.parts.distribution == allReduce {
		if members = s.pods.workers; members == "" {
			return cli.SettingErrorf(cmd, "distribution-strategy", "expected --ring with the number of members, or --workers")
		}
	}
	r.enabled = members != ""
	if !r.enabled {
		if cmd.Flags().Changed("ring-window") {
			return cli.SettingErrorf(cmd, "ring-window", "expected --ring with the number of members")
		}
		return nil
	}
	var err error
	r.config.Min, r.config.Max, err = parseLimits(members, rendezvous.MaxMembers)
	workers := s.pods.plan.Workers
	switch {
	case err != nil && r.members == "":
		return cli.SettingErrorf(cmd, "workers", "expected 1 to %d with --distribution-strategy allreduce, whose ring has all workers", rendezvous.MaxMembers)
	case err != nil:
		return cli.SettingErrorf(cmd, "ring", "%v", err)
	//guard:ring-of-fewer-workers
	case s.pods.need && workers.Count > 0 && r.config.Min > workers.Min:
		return cli.SettingErrorf(cmd, "ring", "expected MIN at most %d, the MIN of --workers: with fewer members the ring waits without end", workers.Min)
	//guard:tasks-outlast-the-wait-of-a-ring
	case s.parts.tasks && s.config.Queue.TimeoutMin < leastTimeoutOfRing:
		return cli.SettingErrorf(cmd, "task-timeout-min", "expected at least %v with a ring, whose members keep a task for 10s while they wait for others", leastTimeoutOfRing)
	case r.config.Window < 0 || r.config.Window > time.Hour:
		return cli.SettingErrorf(cmd, "ring-window", "expected 0 to 1h")
	}
	return nil
}

// component returns the component; nil: the job has no ring. tools is the address of the HTTP port; nil: there is none.
func (r *ringFlags) component(config *master.Config, tools net.Addr) *ring.Ring {
	if !r.enabled {
		return nil
	}
	return ring.New(ring.Config{Rendezvous: r.config, Store: config.Store, Log: config.Log, Horovod: horovodAt(config.Advertise, tools)})
}

// horovodAt returns the address at which members reach the HTTP port; "": they do not. advertise is the address of the master for trainers.
func horovodAt(advertise string, tools net.Addr) string {
	if tools == nil {
		return ""
	}
	host, port, err := net.SplitHostPort(tools.String())
	at, _, badAdvertise := net.SplitHostPort(advertise)
	if err != nil || badAdvertise != nil {
		return ""
	}
	switch ip := net.ParseIP(host); {
	case ip == nil || ip.IsUnspecified():
		host = at
	case ip.IsLoopback() && !isLoopback(advertise):
		return "" // members run on other machines
	}
	return net.JoinHostPort(host, port)
}

func ringCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ring",
		Short: "Show the ring of a job",
		Long: `Ring shows the current generation of the ring, as the leader reports it: its members by rank, why it was formed, and the members
that wait or are parked. docs/rendezvous.md describes the states.`,
		Example: `  master ring
  # the members in rank order
  master ring -o json | jq -r '.members[] | "\(.rank) \(.id)"'`,
		Args: cobra.NoArgs,
	}
	_, open := admin.AddLeaderFlags(cmd)
	format := cli.AddOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		l, err := open(cmd.Context())
		if err != nil {
			return err
		}
		defer l.Close()
		v, err := admin.AskRing(cmd.Context(), l)
		if err != nil {
			return err
		}
		return cli.Render(cmd.OutOrStdout(), *format, v, func(w io.Writer) { view.RingTable(w, v) })
	}
	return cmd
}
