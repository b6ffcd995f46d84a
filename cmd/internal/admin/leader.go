package admin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"trainmaster/cmd/internal/cli"
	"trainmaster/etcdstore"
	"trainmaster/internal/grpcdial"
	"trainmaster/internal/usage"
	"trainmaster/local"
	"trainmaster/local/drill"
	"trainmaster/master"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

const (
	DefaultAddr = "127.0.0.1:8080" // where a daemon listens by default
	askTimeout  = 10 * time.Second
)

// Leader sends requests to the leader of a job. It is found by --addr, or through etcd before each request, since it may
// change.
type Leader struct {
	Addr       string // "": through etcd
	Job        string // to be named in requests; "": whichever the master leads
	location   Location
	store      *etcdstore.Store // nil with addr
	closeStore func()
	hint       string // commands for the newest run here that no process uses, if no address was given and no run is under way
	conn       *grpc.ClientConn
	dialed     string // where conn leads to
}

// AddLeaderFlags gives cmd the flags that lead to the leader. The function that it returns is called once cmd runs; what
// it returns is to be closed.
func AddLeaderFlags(cmd *cobra.Command) (from Location, open func(ctx context.Context) (*Leader, error)) {
	from = Location{Etcd: cli.AddEtcdFlags(cmd)}
	flags := cmd.Flags()
	addr := flags.String("addr", "", "`host:port` of the master (default: looked up in etcd if --endpoints are given, else the master of a run in this directory, else "+DefaultAddr+")")
	from.DataDir = flags.String("data-dir", "trainmaster-data", "`directory` of an embedded etcd, whether its master runs or not")
	dir := flags.String("dir", RunsDir, "`directory` of a master run, or of several: the newest that is under way")
	return from, func(ctx context.Context) (*Leader, error) {
		l := &Leader{Addr: *addr, location: from, closeStore: func() {}}
		if cmd.Flag("job").Changed {
			l.Job = from.Etcd.Job
		}
		switch {
		case l.Addr != "":
			if !cli.IsHostPort(l.Addr) {
				return nil, cli.SettingErrorf(cmd, "addr", "expected host:port")
			}
			return l, nil
		case len(from.Etcd.Endpoints) > 0:
		case cmd.Flag("data-dir").Changed:
			if err := from.findRunning(); err != nil {
				return nil, err
			}
		default:
			scene, found, err := FindRun(*dir)
			switch {
			case cmd.Flag("dir").Changed && isStoppedRun(*dir):
				*from.DataDir = filepath.Join(*dir, EtcdDir)
			case err == nil:
				from.Etcd.Endpoints = []string{scene.Endpoint}
				if !cmd.Flag("dir").Changed {
					fmt.Fprintf(cmd.ErrOrStderr(), "%s: the run in %s; another master: --addr or --endpoints\n", cmd.CommandPath(), found)
				}
			case cmd.Flag("dir").Changed:
				return nil, cli.UsageErrorf("--dir %q: %w%s", *dir, err, stoppedRunHint(*dir))
			default:
				l.Addr, l.hint = DefaultAddr, stoppedRunHint(*dir)
				return l, nil
			}
		}
		var err error
		if l.store, l.closeStore, err = l.location.Open(ctx); err != nil {
			return nil, err
		}
		return l, nil
	}
}

// RunsDir is where `master run` makes its folders, and where others look for them.
const RunsDir = "trainmaster-run"

// FindRun finds a run that is under way: in dir, or the newest below it.
func FindRun(dir string) (scene *drill.Scene, found string, err error) {
	if _, err := os.Stat(filepath.Join(dir, drill.SceneFile)); err != nil {
		if dir, err = drill.LatestRun(dir); err != nil {
			return nil, "", err
		}
	}
	scene, err = drill.ReadScene(dir)
	return scene, dir, err
}

// EtcdDir is the directory of the embedded etcd in the directory of a run.
const EtcdDir = "etcd"

// isStoppedRun reports whether `master run` made a directory that no process uses now.
func isStoppedRun(dir string) bool {
	if _, _, err := local.Settings(dir); err != nil {
		return false
	}
	is, err := etcdstore.IsEmbedded(filepath.Join(dir, EtcdDir))
	if err != nil || !is {
		return false
	}
	at, err := etcdstore.RunningEmbedded(filepath.Join(dir, EtcdDir))
	return err == nil && at == ""
}

// newestStoppedRun returns the directory of the newest run below a directory that no process uses; "": there is none.
func newestStoppedRun(parent string) string {
	found, err := filepath.Glob(filepath.Join(parent, "*", EtcdDir))
	if err != nil {
		return ""
	}
	slices.Sort(found)
	for _, path := range slices.Backward(found) {
		if run := filepath.Dir(path); isStoppedRun(run) {
			return run
		}
	}
	return ""
}

// stoppedRunHint returns the commands that show and continue the newest run below a directory that no process uses; "": there is none.
// Its etcd is not started, so the job may have ended.
func stoppedRunHint(parent string) string {
	run := newestStoppedRun(parent)
	if run == "" {
		return ""
	}
	return fmt.Sprintf("; no process uses the newest run here, %s: show its state with: master status --dir %s; if the job has not ended, continue it with: master run --resume %s",
		run, run, run)
}

// Close closes the connections to the leader and to etcd.
func (l *Leader) Close() {
	if l.conn != nil {
		_ = l.conn.Close() // it is only ever closed already
	}
	l.closeStore()
}

// flags lead another command to the same leader.
func (l *Leader) flags() string {
	switch {
	case l.store != nil:
		return l.location.Flags()
	case l.Job != "":
		return "--addr " + l.Addr + " --job " + l.Job
	}
	return "--addr " + l.Addr
}

// find returns the address of the leader.
func (l *Leader) find(ctx context.Context) (string, error) {
	if l.store == nil {
		return l.Addr, nil
	}
	bounded, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	found, err := l.store.MasterAddr(bounded)
	if err != nil {
		return "", fmt.Errorf("%w: %w", etcdstore.ErrUnreachable, err)
	}
	// In an etcd that this command started, the stored address belongs to a master that was killed.
	if found.Addr == "" || len(l.location.Etcd.Endpoints) == 0 {
		return "", l.noLeader(bounded)
	}
	return found.Addr, nil
}

// noLeader returns an error that describes the state of a job without a leader.
func (l *Leader) noLeader(ctx context.Context) error {
	if state, _, err := l.store.State(ctx); err == nil && state == nil {
		return l.location.NoSuchJob(ctx, l.store)
	}
	if o, err := StoredOutcome(ctx, l.store); err == nil && o.Ended() {
		return &EndedError{fmt.Errorf("job %q %v, and no master leads it: show its tasks with: master queues --literal %s; verify it with: master verify %s",
			l.location.Etcd.Job, o, l.location.Flags(), l.location.Flags())}
	}
	err := fmt.Errorf("no master leads job %q now; continue with: %s; its last state: master queues --literal %s", l.location.Etcd.Job, l.location.startCommand(), l.location.Flags())
	if len(l.location.Etcd.Endpoints) == 0 {
		return &StoppedError{err}
	}
	return l.withFullStore(ctx, err)
}

// StoppedError is the error of a job that has not ended and whose directory no process uses.
type StoppedError struct{ error }

// HasEnded reports whether the job has ended by its stored state: its master may then have left since the last request.
func (l *Leader) HasEnded(ctx context.Context) bool {
	if l.store == nil {
		return false
	}
	o, err := StoredOutcome(ctx, l.store)
	return err == nil && o.Ended()
}

// EndedError is the error of a job that no master leads because it has ended.
type EndedError struct{ error }

// waitError is the answer to a request that changed nothing and can be repeated when the parameter servers are complete.
type waitError struct{ error }

// Ask sends a request to the leader.
func (l *Leader) Ask(ctx context.Context, call func(ctx context.Context, client pb.AdminClient) error) error {
	return l.AskWithin(ctx, askTimeout, call)
}

// AskWithin is Ask with another limit of the time that the call takes.
func (l *Leader) AskWithin(ctx context.Context, limit time.Duration, call func(ctx context.Context, client pb.AdminClient) error) error {
	addr, err := l.find(ctx)
	if err != nil {
		return err
	}
	if addr != l.dialed {
		if l.conn != nil {
			_ = l.conn.Close() // it is only ever closed already
		}
		if l.conn, err = grpcdial.Open(addr); err != nil {
			return fmt.Errorf("the address of the master: %w", err)
		}
		l.dialed = addr
	}
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err = call(bounded, pb.NewAdminClient(l.conn))
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return l.withFullStore(ctx, l.explain(addr, err))
}

// withFullStore adds to err that etcd is full, if it is full: no master can lead a job then.
func (l *Leader) withFullStore(ctx context.Context, err error) error {
	if l.store == nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	full := l.store.CheckSpace(bounded)
	//guard:status-reads-alarms
	if errors.Is(full, taskqueue.ErrStoreFull) {
		return fmt.Errorf("%w; %w", err, full)
	}
	return err
}

// explain turns the error of a call into what a user can act on.
func (l *Leader) explain(addr string, err error) error {
	s := status.Convert(err)
	// gRPC wraps why it has no connection in words of its own.
	_, why, dialled := strings.Cut(strings.TrimSuffix(s.Message(), `"`), "while dialing: ")
	switch {
	case strings.Contains(s.Message(), "http2: "), strings.Contains(s.Message(), "error reading server preface"):
		why = "the process there does not use gRPC"
	case !dialled:
		why = s.Message()
	}
	if usage.Is(err) { // found before the request was sent
		return err
	}
	switch reason := reasonOf(s); {
	case reason == "NOT_LEADER" || reason == "STOPPING":
		if l.store != nil {
			return fmt.Errorf("the master at %s is about to lead, or no longer does; ask again", addr)
		}
		if _, reason, said := strings.Cut(s.Message(), master.ErrNotLeader.Error()+": "); said {
			return fmt.Errorf("master at %s: not the leader: %s", addr, reason)
		}
		return fmt.Errorf("the master at %s is not the leader: it is a standby, or waits for etcd: find the leader with the --endpoints of its etcd", addr)
	case reason == "SERVER_MISSING" || reason == "SERVER_NOT_READY":
		return &waitError{errors.New(l.completed(s.Message()))}
	case reason == "OTHER_JOB":
		return cli.UsageErrorf("--job: %s", s.Message())
	case s.Code() == codes.Unavailable && l.store != nil:
		return fmt.Errorf("the leader at %s does not answer: %s: if it has died, another master takes over when its lease expires; start a master with: master %s",
			addr, why, l.location.Flags())
	case s.Code() == codes.Unavailable && l.hint != "":
		return fmt.Errorf("no run is under way in this directory, and no master answers at %s%s; for another master, give --addr or --endpoints", addr, l.hint)
	case s.Code() == codes.Unavailable:
		return fmt.Errorf("no master answers at %s: %s: start a master with: master --listen %s, or name its address with --addr, or its etcd with --endpoints. A job that has ended has no master: show it with master queues --literal or master verify", addr, why, addr)
	case s.Code() == codes.Unimplemented:
		return fmt.Errorf("the process at %s is not a master of this version: %s", addr, s.Message())
	case s.Code() == codes.DeadlineExceeded:
		return fmt.Errorf("the master at %s did not answer within %v: check that its etcd is reachable", addr, askTimeout)
	}
	return fmt.Errorf("the master at %s: %s", addr, s.Message())
}

func reasonOf(s *status.Status) string {
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.Reason
		}
	}
	return ""
}
