package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"trainmaster/dataset/convert"
	"trainmaster/etcdstore"
	"trainmaster/local/drill"
	"trainmaster/master/podmanager"
	"trainmaster/master/podmanager/processes"
)

// leaveTimeout is the time for trainers to exit after the master has exited. A trainer that was disconnected at the end of the
// job waits for another master, and must be stopped.
const leaveTimeout = 5 * time.Second

// linger is how long the master of an ended job stays while trainers keep their sessions. On a busy machine, a trainer of a resumed run can
// begin long after the master; own trainers can save a model after the last task.
const linger = "10m"

// Own trainers without a session are stopped ownLeaveTimeout after the master has left.
const ownLeaveTimeout = time.Minute

// Job is one run on this machine.
type Job struct {
	config   Config
	data     convert.Result
	folder   string // working directory of own trainers; "": the directory of this process
	endpoint string
	register *drill.Register   // processes that run; nil: not registered
	gate     *gate             // the address for own trainers; nil: the trainers are built in
	proxied  map[string]string // name of a master -> address of its proxy; absent: no proxy
	masters  []processes.Process
	servers  []processes.Process
	trainers []processes.Process

	storeFailed atomic.Bool // etcd has failed
	restarts    atomic.Int64
}

// New checks the configuration.
func New(c Config) (*Job, error) {
	if c.Binary == "" || c.Dir == "" {
		return nil, errors.New("local.Config: expected Binary and Dir")
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &Job{config: c}, nil
}

func (j *Job) path(names ...string) string {
	return filepath.Join(append([]string{j.config.Dir}, names...)...)
}

// Run prepares the data, runs the job and evaluates its model. watch (may be nil) is called
// once, with the endpoint of etcd, when the processes start; its context ends with the job.
func (j *Job) Run(ctx context.Context, watch func(ctx context.Context, endpoint string)) (Result, error) {
	began := time.Now()
	for _, dir := range []string{"data", "logs", checkpointsDir} {
		if err := os.MkdirAll(j.path(dir), 0o755); err != nil {
			return Result{}, fmt.Errorf("create the directory of the run: %w", err)
		}
	}
	if err := j.begin(ctx); err != nil {
		return Result{}, fmt.Errorf("prepare the data: %w", err)
	}
	etcd, err := etcdstore.StartEmbedded(ctx, etcdstore.EmbeddedConfig{Dir: j.path("etcd")})
	if err != nil {
		return Result{}, fmt.Errorf("start etcd: %w", err)
	}
	defer etcd.Close()
	j.endpoint = etcd.Endpoint()
	ended, err := j.runOn(ctx, etcd.Err(), watch)
	if err != nil {
		return Result{}, err
	}
	result, err := j.result(ctx, ended)
	result.Elapsed = time.Since(began)
	result.Seconds = result.Elapsed.Seconds()
	return result, err
}

// runOn runs the processes on the etcd that was started. If that etcd fails, they are killed, and its failure is the error.
func (j *Job) runOn(ctx context.Context, failed <-chan error, watch func(ctx context.Context, endpoint string)) (r Result, err error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case err, ok := <-failed:
			if ok {
				j.config.Log.WithError(err).Error("etcd failed, ending the run")
				j.storeFailed.Store(true)
				stop(err)
			}
		case <-ended:
		}
	}()
	hasEnded, err := j.continueJob(ctx)
	if err == nil && !hasEnded {
		err = j.superviseNoted(ctx, watch)
	}
	if err == nil {
		r, err = j.finished(ctx)
	}
	return r, j.reason(ctx, err)
}

// reason returns why a run ended with err: the failure of etcd if there was one, since what else went wrong follows from it.
func (j *Job) reason(ctx context.Context, err error) error {
	if err != nil && j.storeFailed.Load() {
		<-ctx.Done() // the cause is set after storeFailed, which the children must find when ctx ends
		return context.Cause(ctx)
	}
	return err
}

// superviseNoted supervises the processes, and registers them for `master drill` while they run.
func (j *Job) superviseNoted(ctx context.Context, watch func(ctx context.Context, endpoint string)) (err error) {
	scene := drill.Scene{Endpoint: j.endpoint}
	if j.config.Drillable {
		stop, err := j.putProxies(ctx, &scene)
		if err != nil {
			return fmt.Errorf("start the proxies of etcd: %w", err)
		}
		defer stop()
	}
	if j.register, err = drill.NewRegister(j.config.Dir, scene); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.register.Close()) }()
	if len(j.config.Command) > 0 {
		if j.gate, err = openGate(ctx, j.endpoint); err != nil {
			return fmt.Errorf("open an address for the trainers: %w", err)
		}
		defer j.gate.close()
	}
	j.define()
	return j.supervise(ctx, watch)
}

// supervise runs the processes until the master has ended the job, then stops the rest:
// trainers first, parameter servers last.
func (j *Job) supervise(ctx context.Context, watch func(ctx context.Context, endpoint string)) error {
	serving, stopServers := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServers()
	leading, stopMaster := context.WithCancel(context.WithoutCancel(ctx))
	defer stopMaster()
	training, stopTrainers := context.WithCancel(ctx)
	defer stopTrainers()

	var servers errgroup.Group
	servers.Go(func() error {
		err := j.set(podmanager.Server, j.config.MaxRelaunch, j.servers...).Run(serving, nil)
		if err != nil {
			stopTrainers()
		}
		return err
	})
	over := make(chan struct{}) // closed when the job has ended: a trainer that starts then finds no master
	left := make(chan struct{}) // closed when all trainers have ended, with trainersErr set
	var trainersErr error
	go func() {
		defer close(left)
		trainersErr = j.set(podmanager.Worker, j.config.MaxRelaunch, j.trainers...).Run(training, over)
		if trainersErr != nil {
			stopTrainers()
		}
	}()
	ended := make(chan error, 1)
	go func() { ended <- j.lead(leading) }()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if watch != nil {
			watch(training, j.endpoint)
		}
	}()
	own := j.superviseOwn(training, left, stopTrainers)

	var err error
	select {
	case err = <-ended: // the job has ended
		close(over)
		if err != nil {
			stopTrainers()
		}
		late := time.AfterFunc(j.leaveTimeout(), stopTrainers)
		<-left
		err = errors.Join(err, trainersErr)
		late.Stop()
		stopTrainers()
	case <-training.Done(): // interrupted, or a process that cannot run
		<-left
		err = trainersErr
		stopServers()  // before the master, which takes their last checkpoint set
		servers.Wait() //nolint:errcheck // see below
		stopMaster()
		err = errors.Join(err, <-ended, context.Cause(ctx))
	}
	<-watched
	stopServers()
	return errors.Join(err, own(), servers.Wait())
}

// lead runs the masters until one of them ends the job, and then stops the standbys.
func (j *Job) lead(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var group errgroup.Group
	for _, p := range j.masters {
		group.Go(func() error {
			defer stop()
			return j.set(podmanager.Worker, 0, p).Run(ctx, nil)
		})
	}
	return group.Wait()
}

const (
	firstPause = 100 * time.Millisecond
	failFast   = 30 * time.Second
)

// set returns the supervision of processes, by the rules for pods. A program that does not work ends the run immediately: its user waits for it.
func (j *Job) set(role podmanager.Role, maxRelaunch int, list ...processes.Process) *processes.Set {
	return &processes.Set{
		Role: role, Processes: list, Plan: podmanager.Config{MaxRelaunch: maxRelaunch, FirstPause: firstPause, FailFast: failFast},
		Stop: func() syscall.Signal {
			if j.storeFailed.Load() {
				return syscall.SIGKILL
			}
			return syscall.SIGTERM
		},
		Noted: j.noted, Restarts: &j.restarts, Log: j.config.Log,
	}
}

// noted registers a process for drills, or removes it.
func (j *Job) noted(name string, pid int) {
	if j.register == nil {
		return
	}
	var err error
	if pid == 0 {
		err = j.register.Ended(name)
	} else {
		err = j.register.Started(name, pid)
	}
	if err != nil && !j.storeFailed.Load() { // after a failure of etcd, that error is reported
		j.config.Log.WithError(err).WithField("process", name).Warn("process not registered: drills cannot find it")
	}
}
