package main

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
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"trainmaster/etcdstore"
	"trainmaster/local"
	"trainmaster/local/drill"
	"trainmaster/master"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

const (
	defaultAddr = "127.0.0.1:8080" // where a daemon listens by default
	askTimeout  = 10 * time.Second
)

// leader sends requests to the leader of a job. It is found by --addr, or through etcd before each request, since it may
// change.
type leader struct {
	addr  string // "": through etcd
	job   string // to be named in requests; "": whichever the master leads
	place place
	store *etcdstore.Store // nil with addr
	close func()
	hint  string // commands for the newest run here that no process uses, if no address was given and no run is under way
	conn  *grpc.ClientConn
	at    string // where conn leads to
}

// addLeaderFlags gives cmd the flags that lead to the leader. The function that it returns is called once cmd runs; what
// it returns is to be closed.
func addLeaderFlags(cmd *cobra.Command) (from place, open func(ctx context.Context) (*leader, error)) {
	from = place{etcd: addEtcdFlags(cmd)}
	flags := cmd.Flags()
	addr := flags.String("addr", "", "`host:port` of the master (default: looked up in etcd if --endpoints are given, else the master of a run in this directory, else "+defaultAddr+")")
	from.dataDir = flags.String("data-dir", "trainmaster-data", "`directory` of an embedded etcd, whether its master runs or not")
	dir := flags.String("dir", runsDir, "`directory` of a master run, or of several: the newest that is under way")
	return from, func(ctx context.Context) (*leader, error) {
		l := &leader{addr: *addr, place: from, close: func() {}}
		if cmd.Flag("job").Changed {
			l.job = from.etcd.Job
		}
		switch {
		case l.addr != "":
			if !isHostPort(l.addr) {
				return nil, settingErrorf(cmd, "addr", "expected host:port")
			}
			return l, nil
		case len(from.etcd.Endpoints) > 0:
		case cmd.Flag("data-dir").Changed:
			if err := from.findRunning(); err != nil {
				return nil, err
			}
		default:
			scene, found, err := findRun(*dir)
			switch {
			case cmd.Flag("dir").Changed && isStoppedRun(*dir):
				*from.dataDir = filepath.Join(*dir, etcdDir)
			case err == nil:
				from.etcd.Endpoints = []string{scene.Endpoint}
				if !cmd.Flag("dir").Changed {
					fmt.Fprintf(cmd.ErrOrStderr(), "%s: the run in %s; another master: --addr or --endpoints\n", cmd.CommandPath(), found)
				}
			case cmd.Flag("dir").Changed:
				return nil, usageErrorf("--dir %q: %w%s", *dir, err, stoppedRunHint(*dir))
			default:
				l.addr, l.hint = defaultAddr, stoppedRunHint(*dir)
				return l, nil
			}
		}
		var err error
		if l.store, l.close, err = l.place.open(ctx); err != nil {
			return nil, err
		}
		return l, nil
	}
}

// runsDir is where `master run` makes its folders, and where others look for them.
const runsDir = "trainmaster-run"

// findRun finds a run that is under way: in dir, or the newest below it.
func findRun(dir string) (scene *drill.Scene, found string, err error) {
	if _, err := os.Stat(filepath.Join(dir, drill.SceneFile)); err != nil {
		if dir, err = drill.LatestRun(dir); err != nil {
			return nil, "", err
		}
	}
	scene, err = drill.ReadScene(dir)
	return scene, dir, err
}

// etcdDir is the directory of the embedded etcd in the directory of a run.
const etcdDir = "etcd"

// isStoppedRun reports whether `master run` made a directory that no process uses now.
func isStoppedRun(dir string) bool {
	if _, _, err := local.Settings(dir); err != nil {
		return false
	}
	is, err := etcdstore.IsEmbedded(filepath.Join(dir, etcdDir))
	if err != nil || !is {
		return false
	}
	at, err := etcdstore.RunningEmbedded(filepath.Join(dir, etcdDir))
	return err == nil && at == ""
}

// stoppedRunHint returns the commands that show and continue the newest run below a directory that no process uses; "": there is none.
// Its etcd is not started, so the job may have ended.
func stoppedRunHint(parent string) string {
	found, err := filepath.Glob(filepath.Join(parent, "*", etcdDir))
	if err != nil {
		return ""
	}
	slices.Sort(found)
	for _, path := range slices.Backward(found) {
		if run := filepath.Dir(path); isStoppedRun(run) {
			return fmt.Sprintf("; no process uses the newest run here, %s: show its state with: master status --dir %s; if the job has not ended, continue it with: master run --resume %s",
				run, run, run)
		}
	}
	return ""
}

// hangUp closes the connections to the leader and to etcd.
func (l *leader) hangUp() {
	if l.conn != nil {
		_ = l.conn.Close() // it is only ever closed already
	}
	l.close()
}

// flags lead another command to the same leader.
func (l *leader) flags() string {
	switch {
	case l.store != nil:
		return l.place.flags()
	case l.job != "":
		return "--addr " + l.addr + " --job " + l.job
	}
	return "--addr " + l.addr
}

// find returns the address of the leader.
func (l *leader) find(ctx context.Context) (string, error) {
	if l.store == nil {
		return l.addr, nil
	}
	bounded, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	found, err := l.store.MasterAddr(bounded)
	if err != nil {
		return "", fmt.Errorf("%w: %w", etcdstore.ErrUnreachable, err)
	}
	// In an etcd that this command started, the stored address belongs to a master that was killed.
	if found.Addr == "" || len(l.place.etcd.Endpoints) == 0 {
		return "", l.nobodyLeads(bounded)
	}
	return found.Addr, nil
}

// nobodyLeads returns an error that describes the state of a job without a leader.
func (l *leader) nobodyLeads(ctx context.Context) error {
	if state, _, err := l.store.State(ctx); err == nil && state == nil {
		return l.place.noSuchJob(ctx, l.store)
	}
	if o, err := storedOutcome(ctx, l.store); err == nil && o.over() {
		return &overError{fmt.Errorf("job %q %v, and no master leads it: show its tasks with: master queues --literal %s; verify it with: master verify %s",
			l.place.etcd.Job, o, l.place.flags(), l.place.flags())}
	}
	err := fmt.Errorf("no master leads job %q now; continue with: %s; its last state: master queues --literal %s", l.place.etcd.Job, l.place.startCommand(), l.place.flags())
	if len(l.place.etcd.Endpoints) == 0 {
		return &stoppedError{err}
	}
	return l.withFullStore(ctx, err)
}

// stoppedError is the error of a job that has not ended and whose directory no process uses.
type stoppedError struct{ error }

// over reports whether the job has ended by its stored state: its master may then have left since the last request.
func (l *leader) over(ctx context.Context) bool {
	if l.store == nil {
		return false
	}
	o, err := storedOutcome(ctx, l.store)
	return err == nil && o.over()
}

// overError is the error of a job that no master leads because it has ended.
type overError struct{ error }

// ask sends a request to the leader.
func (l *leader) ask(ctx context.Context, call func(ctx context.Context, o pb.OperatorClient) error) error {
	addr, err := l.find(ctx)
	if err != nil {
		return err
	}
	if addr != l.at {
		if l.conn != nil {
			_ = l.conn.Close() // it is only ever closed already
		}
		// The address is dialled as it is: no look-up of services, no proxy.
		if l.conn, err = grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy()); err != nil {
			return fmt.Errorf("the address of the master: %w", err)
		}
		l.at = addr
	}
	bounded, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	err = call(bounded, pb.NewOperatorClient(l.conn))
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return l.withFullStore(ctx, l.explain(addr, err))
}

// withFullStore adds to err that etcd is full, if it is full: no master can lead a job then.
func (l *leader) withFullStore(ctx context.Context, err error) error {
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
func (l *leader) explain(addr string, err error) error {
	s := status.Convert(err)
	// gRPC wraps why it has no connection in words of its own.
	_, why, dialled := strings.Cut(strings.TrimSuffix(s.Message(), `"`), "while dialing: ")
	switch {
	case strings.Contains(s.Message(), "http2: "), strings.Contains(s.Message(), "error reading server preface"):
		why = "the process there does not use gRPC"
	case !dialled:
		why = s.Message()
	}
	if _, ours := errors.AsType[*exitError](err); ours { // found before anything was asked
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
	case reason == "OTHER_JOB":
		return usageErrorf("--job: %s", s.Message())
	case s.Code() == codes.Unavailable && l.store != nil:
		return fmt.Errorf("the leader at %s does not answer: %s: if it has died, another master takes over when its lease expires; start a master with: master %s",
			addr, why, l.place.flags())
	case s.Code() == codes.Unavailable:
		return fmt.Errorf("no master answers at %s: %s: start a master with: master --listen %s, or name its address with --addr, or its etcd with --endpoints. A job that has ended has no master: show it with master queues --literal or master verify%s", addr, why, addr, l.hint)
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
