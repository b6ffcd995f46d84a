package trainer

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"

	"trainmaster/dataset"
	"trainmaster/master/netrpc/wire"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
	"trainmaster/trainer/session"
)

// Config configures a trainer. Locate is required.
type Config struct {
	ID        string // name of the trainer; a second trainer with the same ID ends the session of the first
	Job       string // name of the job; "": the job of the found master
	Address   string // Address for operators. "": the address of its connection to the master.
	Locate    Locator
	Accepts   taskqueue.Kinds // of tasks; default: training. See [Client.Round] for evaluation tasks
	Heartbeat time.Duration   // default: a fifth of the session TTL, at most 3 s
	Log       *logrus.Entry   // default: the standard logger
	Protocol  Protocol        // default: GRPC
	Answered  func(Answer)    // called after each answered call, by several goroutines; may be nil
	// DialOptions are of gRPC connections to a master, such as the credentials for a TLS proxy before it. Default: no TLS.
	DialOptions []grpc.DialOption
	// ShuffleRecords is the seed of the order of the records in a training task; 0: in the order of the files. All trainers of a job must
	// have the same seed, since a task can continue on another trainer. Records then has all records of the task in memory. Ranges and
	// RowGroups are not shuffled.
	ShuffleRecords uint64
	// Window is the number of tasks that a session of JoinWindow wants to hold, 2 to 64; 0: 2.
	Window int
	// Stores opens files in object stores. nil: dataset.DefaultStores.
	Stores *dataset.Stores

	// Control is the address, "host:port", at which the client serves the gRPC service TrainerControl; "": it serves none, and receives
	// commands with its heartbeats. The master calls the port at the host that the connection of the trainer comes from.
	Control string
	// Model returns the current model and its version, for GetModel. Another goroutine calls it. nil: the trainer sends no model.
	Model func(ctx context.Context) (version int64, content []byte, err error)

	// Evaluate measures the current model on the records of a task, for EvaluateCurrentModel, and returns the encoded metrics, as for Measured. It must
	// pause the training. ctx ends with ErrStopped as its cause if the master stops the task; the result is not used then. Another
	// goroutine calls it, one call at a time. nil: the trainer refuses the call.
	Evaluate func(ctx context.Context, task *taskqueue.Task, records iter.Seq2[[]byte, error]) (metrics []byte, err error)

	copyStall time.Duration // 0: the default; for tests
}

// Answer is a call that a master answered.
type Answer struct {
	Call   string        // Next, Heartbeat, ...
	Master string        // its address
	Took   time.Duration // from the first attempt to the answer
}

// Errors that a client returns.
var (
	ErrSessionLost = errors.New("the session was lost: join again")
	ErrJobFailed   = wire.ErrJobFailed
	// ErrOtherDataset is returned by ReportDataset if other files are the dataset of the job.
	ErrOtherDataset = wire.ErrOtherDataset
	// ErrDamaged is returned by ReportDataset if a file is damaged, and ErrFiles if a name is of no file that the master reads.
	ErrDamaged = errors.New("damaged file")
	ErrFiles   = errors.New("not a file of a dataset")
	ErrDrained = errors.New("drained: an operator ended the work of this trainer")
)

// Client is a joined trainer. Only Progressed may be called concurrently with other methods.
type Client struct {
	config   Config
	link     *link
	who      wire.Trainer
	jobID    [16]byte
	sync     bool
	window   int            // tasks that may be held; 0: the master knows no windows
	cuts     *cuts          // nil: the master takes none
	explicit *session.Steps // nil: a finish counts as soon as it is stored
	session  *session.Session
	files    files

	ctx    context.Context // ends with Close
	stop   context.CancelFunc
	failed context.Context         // ends when the job fails
	fail   context.CancelCauseFunc // of failed
	owned  sync.WaitGroup

	flight  chan fetched // outcome of the request under way; nil: there is none
	ended   bool         // the job has ended: its master may have exited
	ready   *taskqueue.Task
	stamps  map[taskqueue.Token][]dataset.Stamp
	rounds  map[taskqueue.Token]taskqueue.Round // of evaluation tasks
	metrics map[taskqueue.Token][]byte          // of evaluation tasks that are measured
	models  map[taskqueue.Token]taskqueue.Model // that are stored after training tasks
	wait    taskqueue.WaitFor                   // of the last reply
	held    heldTasks                           // without the training tasks of explicit commits: losing one ends the session

	evaluator evaluator // of the current model

	stats map[taskqueue.Token]taskqueue.RunStats // of training tasks
	hyper map[taskqueue.Token]map[string]float64
	from  map[taskqueue.Token]taskqueue.ModelSource // the models that training tasks begin with
	kept  map[taskqueue.Token]string                // why the trainer has kept its model instead

	mu       sync.Mutex
	progress taskqueue.Progress
	running  []taskqueue.Token
	moved    bool  // since the last heartbeat
	steps    int64 // calls of Progressed

	drained chan struct{} // closed by the first heartbeat whose answer has a drain
}

type fetched struct {
	reply *wire.NextReply
	err   error
}

// Join begins a session. It waits until a master leads. Close ends the session.
func Join(ctx context.Context, config Config) (*Client, error) {
	if config.Log == nil {
		config.Log = logrus.NewEntry(logrus.StandardLogger())
	}
	l, err := newLink(config)
	if err != nil {
		return nil, err
	}
	served, err := listenControl(config.Control, cmp.Or(config.copyStall, copyStall))
	if err != nil {
		l.close()
		return nil, err
	}
	reply, err := call[wire.JoinReply](ctx, l, "Join", wire.JoinRequest{ID: config.ID, Address: config.Address, Job: config.Job, Control: served.address(), Window: config.Window})
	if err != nil {
		served.close()
		l.close()
		return nil, fmt.Errorf("join as %q: %w", config.ID, err)
	}
	if config.Heartbeat == 0 {
		config.Heartbeat = heartbeatFor(reply.TTL)
	}
	c := &Client{config: config, link: l, who: reply.Trainer, jobID: reply.JobID, sync: reply.Sync, session: session.New(reply), stamps: map[taskqueue.Token][]dataset.Stamp{}}
	c.drained = make(chan struct{})
	c.files.stores = cmp.Or(config.Stores, dataset.DefaultStores)
	c.rounds, c.metrics, c.models = map[taskqueue.Token]taskqueue.Round{}, map[taskqueue.Token][]byte{}, map[taskqueue.Token]taskqueue.Model{}
	c.stats, c.hyper = map[taskqueue.Token]taskqueue.RunStats{}, map[taskqueue.Token]map[string]float64{}
	c.from, c.kept = map[taskqueue.Token]taskqueue.ModelSource{}, map[taskqueue.Token]string{}
	c.session.Accepts, c.window = config.Accepts, reply.Window
	c.evaluator.files.stores, c.evaluator.due, c.evaluator.known = c.files.stores, make(chan struct{}, 1), make(chan struct{})
	if reply.Explicit {
		c.explicit = session.NewSteps()
	}
	if reply.Cuts {
		c.cuts = newCuts(reply.Epoch)
	}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.failed, c.fail = context.WithCancelCause(context.Background())
	c.owned.Go(c.beat)
	if served != nil {
		served.client = c
		c.owned.Go(func() { served.serve(c.ctx) })
	}
	return c, nil
}

const (
	heartbeatMost  = 3 * time.Second
	heartbeatLeast = 50 * time.Millisecond
	beatsOfSession = 5 // heartbeats within the TTL of a session
)

// heartbeatFor returns the interval between heartbeats for a session TTL. A TTL of 0 is not known.
func heartbeatFor(ttl time.Duration) time.Duration {
	if ttl == 0 {
		return heartbeatMost
	}
	return min(max(ttl/beatsOfSession, heartbeatLeast), heartbeatMost)
}

// Ordinal is the small number of this trainer in its job.
func (c *Client) Ordinal() taskqueue.Ordinal { return c.who.Ordinal }

// Incarnation is the number of this session: unique in the job and growing.
func (c *Client) Incarnation() uint64 { return c.who.Incarnation }

// JobID returns the id of the job instance. It is the same for all trainers, and after a failover.
func (c *Client) JobID() string { return hex.EncodeToString(c.jobID[:]) }

// Instance returns the bytes of JobID.
func (c *Client) Instance() [16]byte { return c.jobID }

// Sync reports whether the job applies gradients in synchronous steps.
func (c *Client) Sync() bool { return c.sync }

// ReportDataset registers the files of names (paths and globs on the machine of the master) as the dataset of the job. It has no
// effect if another trainer has registered the same files.
func (c *Client) ReportDataset(ctx context.Context, names []string) error {
	return report(ctx, c.link, names)
}

func report(ctx context.Context, l *link, names []string) error {
	size := 0
	for _, name := range names {
		size += len(name) + 4 // its length in front
	}
	if size > wire.MaxMessage {
		return fmt.Errorf("report the dataset: %d names of %d bytes together, at most %d are taken: name them by a glob", len(names), size, wire.MaxMessage)
	}
	if _, err := call[int](ctx, l, "ReportDataset", names); err != nil {
		return fmt.Errorf("report the dataset: %w", err)
	}
	return nil
}

// Next reports finished, unless it is nil, and returns the next task. It waits while there
// is none. It returns io.EOF when the job has ended, and ErrDrained when an operator
// drained this trainer: its finished tasks are counted, and the caller must call Close.
//
// In a job of explicit commits it may also return ErrCommitFirst, ErrRollbackFirst and ErrRolledBack. Each names the action that
// must precede the next call. The next call is with nil.
func (c *Client) Next(ctx context.Context, finished *taskqueue.Task) (*taskqueue.Task, error) {
	if finished != nil {
		c.recordOutcome(finished, "", "")
	}
	if c.cuts != nil && !c.cuts.entered {
		if err := c.enter(ctx); err != nil {
			return nil, err
		}
	}
	if err := c.collect(ctx); err != nil {
		return nil, err
	}
	c.dropStopped()
	c.dropIfDraining()
	for c.ready == nil {
		if err := c.Boundary(ctx); err != nil {
			return nil, err
		}
		c.send(true)
		if err := c.collect(ctx); err != nil {
			return nil, err
		}
		if err := c.mustDo(); err != nil {
			return nil, err
		}
	}
	task := c.ready
	c.ready = nil
	c.run(task.Token)
	c.send(true) // reports the finish and prefetches the next task
	return task, nil
}

// dropIfDraining drops a prefetched task if an operator drains the trainer, since the master has dispatched it to another trainer.
func (c *Client) dropIfDraining() {
	if c.Draining() && c.ready != nil && c.explicit == nil {
		c.drop(c.ready.Token)
		c.ready = nil
	}
}

// Fail returns a task to the queue that could not be trained. A [NotFiniteError] in reason is noted in the round of an evaluation task.
func (c *Client) Fail(ctx context.Context, task *taskqueue.Task, reason error) error {
	notFinite := ""
	if e, ok := errors.AsType[*NotFiniteError](reason); ok {
		notFinite = e.Metric
	}
	c.recordOutcome(task, reason.Error(), notFinite)
	if err := c.collect(ctx); err != nil {
		return err
	}
	c.send(c.ready == nil)
	return nil
}

// recordOutcome records that a task is finished or, with a reason, failed.
func (c *Client) recordOutcome(task *taskqueue.Task, reason, notFinite string) {
	r := taskqueue.Result{Token: task.Token, Error: reason, Step: c.explicit.Finish(task.Token), NotFinite: notFinite}
	if reason == "" {
		r.Metrics, r.Model, r.Stats = c.metrics[task.Token], c.models[task.Token], c.stats[task.Token]
		r.Kept = c.kept[task.Token]
	}
	c.session.Report(r)
	c.held.end(task.Token)
	c.forget(task.Token)
	c.run()
}

// forget forgets what came with a task.
func (c *Client) forget(token taskqueue.Token) {
	delete(c.stamps, token)
	delete(c.rounds, token)
	delete(c.metrics, token)
	delete(c.models, token)
	delete(c.stats, token)
	delete(c.hyper, token)
	delete(c.from, token)
	delete(c.kept, token)
}

// send sends the next request; collect takes its outcome.
func (c *Client) send(want bool) {
	c.mu.Lock()
	request := c.session.Next(want, c.progress)
	c.mu.Unlock()
	flight := make(chan fetched, 1)
	c.flight = flight
	c.owned.Go(func() {
		reply, err := call[wire.NextReply](c.ctx, c.link, "Next", request)
		if err == nil {
			c.files.prepare(&reply.Task, reply.Stamps)
		}
		flight <- fetched{reply, err}
	})
}

// collect waits for the request under way, if there is one.
func (c *Client) collect(ctx context.Context) error {
	if c.flight == nil {
		return nil
	}
	var f fetched
	select {
	case f = <-c.flight:
		c.flight = nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if f.err != nil {
		return c.refused(f.err)
	}
	c.wait = f.reply.WaitFor
	if task := c.session.Answered(f.reply); task != nil {
		c.ready, c.stamps[task.Token] = task, f.reply.Stamps
		if task.Token.Kind == taskqueue.Training {
			c.explicit.Begin(task.Token, f.reply.Base)
			c.hyper[task.Token] = f.reply.HyperParameters
			if f.reply.From != (taskqueue.ModelSource{}) {
				c.from[task.Token] = f.reply.From
			}
		} else {
			c.rounds[task.Token] = f.reply.Round
		}
		if c.explicit == nil {
			c.held.begin(task.Token)
		}
	}
	return nil
}

// refused returns the error of this package for the error of an answered request.
func (c *Client) refused(err error) error {
	switch {
	case errors.Is(err, wire.ErrJobFinished), errors.Is(err, io.EOF):
		c.ended = true
		c.session.Settled()
		return io.EOF
	case errors.Is(err, wire.ErrRejoin):
		c.session.Settled()
		return ErrSessionLost
	case errors.Is(err, wire.ErrDrained):
		c.session.Settled()
		return ErrDrained
	case errors.Is(err, wire.ErrRolledBack):
		c.session.Settled()
		return fmt.Errorf("%w: %w", ErrRolledBack, err)
	}
	return err
}

// RequestSaveModel asks to be the one trainer that saves the model.
func (c *Client) RequestSaveModel(ctx context.Context) (elected bool, err error) {
	reply, err := call[wire.SaveModelReply](ctx, c.link, "RequestSaveModel", wire.SaveModelRequest{Trainer: c.who})
	switch {
	case errors.Is(err, wire.ErrRejoin):
		return false, ErrSessionLost
	case err != nil:
		return false, fmt.Errorf("ask to save the model: %w", err)
	}
	return reply.Elected, nil
}

// Staged reports that all parameter servers hold the gradients of this trainer, computed at version from the given number
// of records, and waits for the step. 0 records mean that some servers refused them as late. included reports whether the
// gradients are in version+1. If they are not, committed is the last committed version. If it equals version, the step is not
// committed yet; if it is later, the gradients were late. If a cut begins, Staged quiesces like Boundary. The cut has the last
// committed version, without these gradients.
func (c *Client) Staged(ctx context.Context, version uint64, _ uint32, records int) (committed uint64, included bool, err error) {
	return c.stagedUntil(ctx, version, records, c.Boundary)
}

// stagedUntil is Staged, with a function that quiesces the trainer.
func (c *Client) stagedUntil(ctx context.Context, version uint64, records int, boundary func(context.Context) error) (committed uint64, included bool, err error) {
	//guard:staged-stops-for-a-cut
	if c.cuts == nil {
		return c.staged(ctx, version, records)
	}
	for {
		select {
		case <-c.cuts.came: // the token of the wanted cut
		default:
		}
		isCut := c.cuts.wanted.Load() != 0
		bounded, release := ctx, func() {}
		if !isCut {
			bounded, release = c.untilCut(ctx)
		}
		committed, included, err = c.staged(bounded, version, records)
		interrupted := bounded.Err() != nil && ctx.Err() == nil
		release()
		switch {
		case err != nil && interrupted: // the job makes no more steps; the next answer reports whether it made this step
		case err != nil || included || committed > version:
			return committed, included, err
		case !isCut: // the answer can arrive before the announcement of a cut
			select {
			case <-c.cuts.came:
			case <-time.After(cutNotice):
			case <-ctx.Done():
				return 0, false, context.Cause(ctx)
			}
		default:
			if err := boundary(ctx); err != nil {
				return 0, false, err
			}
		}
	}
}

// cutNotice is the pause before an undecided stage is reported again.
const cutNotice = 50 * time.Millisecond

func (c *Client) staged(ctx context.Context, version uint64, records int) (committed uint64, included bool, err error) {
	reply, err := call[wire.StagedReply](ctx, c.link, "Staged", wire.StagedRequest{Trainer: c.who, Version: version, Records: records, Epoch: c.Epoch()})
	switch {
	case errors.Is(err, wire.ErrRolledBack):
		return 0, false, fmt.Errorf("%w: %w", ErrRolledBack, err)
	case errors.Is(err, wire.ErrRejoin), errors.Is(err, io.EOF):
		return 0, false, ErrSessionLost
	case err != nil:
		return 0, false, err
	}
	return reply.Committed, reply.Included, nil
}

// Progressed reports that records were trained, with their mean loss. The next heartbeat sends the report and extends the deadline
// of the running task.
func (c *Client) Progressed(records int, loss float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.progress.Records += int64(records)
	c.progress.Loss = loss
	c.moved = true
	c.steps++
}

func (c *Client) run(tokens ...taskqueue.Token) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running = tokens
}

// UntilFailed returns a context that also ends, with ErrJobFailed as its cause, when the job fails, and a function that releases it.
// A call to a lost parameter server ends then: otherwise it waits for another server.
func (c *Client) UntilFailed(ctx context.Context) (context.Context, context.CancelFunc) {
	bounded, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.failed, func() { cancel(context.Cause(c.failed)) })
	return bounded, func() {
		stop()
		cancel(nil)
	}
}

// Draining reports whether an operator has drained this trainer, as the last heartbeat said. It may be called concurrently with other methods.
func (c *Client) Draining() bool {
	select {
	case <-c.drained:
		return true
	default:
		return false
	}
}

// beat sends heartbeats until Close or the failure of the job.
func (c *Client) beat() {
	ticker := time.NewTicker(c.config.Heartbeat)
	defer ticker.Stop()
	known := false
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-ticker.C:
		case <-c.evaluator.due: // the next heartbeat has the next task
		}
		evaluates := c.evaluates()
		c.mu.Lock()
		beat := beatRequest{HeartbeatRequest: wire.HeartbeatRequest{Trainer: c.who, Progress: c.progress, Held: c.held.list()}}
		beat.Evaluates = evaluates && c.config.Control == ""
		if c.moved {
			beat.Moving, c.moved = c.running, false
		}
		c.mu.Unlock()
		reply, err := call[beatReply](c.ctx, c.link, "Heartbeat", beat)
		if evaluates && !known && !errors.Is(err, io.EOF) {
			known = true
			close(c.evaluator.known)
		}
		switch {
		case errors.Is(err, io.EOF): // there is no leader yet
		case errors.Is(err, ErrJobFailed):
			//guard:heartbeat-ends-calls-of-a-failed-job
			c.fail(err)
			return
		case err != nil && c.ctx.Err() == nil:
			c.config.Log.WithError(err).Warn("heartbeat refused") // the next request returns the same error
		case err == nil:
			c.obey(reply, beat.Held)
		}
	}
}

// beatRequest is a heartbeat. Only gRPC has all its fields.
type beatRequest struct {
	wire.HeartbeatRequest
	Evaluates bool
}

// beatReply is the answer to a heartbeat. Only gRPC has all its fields.
type beatReply struct {
	Answer   int
	Stops    []taskqueue.Token
	Evaluate *pb.TaskSpec // nil: none
}

// obey follows the answer to a heartbeat, which listed the tasks of held.
func (c *Client) obey(reply *beatReply, held []taskqueue.Token) {
	answer := reply.Answer
	if reply.Evaluate != nil {
		if err := c.evaluateCurrent(reply.Evaluate); err != nil {
			c.config.Log.WithError(err).Warn("evaluation task of a heartbeat not accepted")
		}
	}
	if answer&wire.HeartbeatDraining != 0 && !c.Draining() {
		close(c.drained)
	}
	for i, tok := range held {
		if answer&wire.HeartbeatStop(i) != 0 || slices.Contains(reply.Stops, tok) {
			c.stopTask(tok)
		}
	}
}

// Limits of the calls that leave a master, which may be unreachable.
const (
	flushTimeout = time.Second
	leaveTimeout = 2 * time.Second
)

// Close reports finished tasks, returns unfinished tasks to the queue, and ends the session.
// Further calls have no effect.
func (c *Client) Close() error {
	if c.ctx.Err() != nil {
		return nil
	}
	c.flush()
	c.stop()
	c.owned.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	_, err := call[int](ctx, c.link, "Leave", wire.LeaveRequest{Trainer: c.who})
	if c.ended {
		err = nil
	}
	c.link.close()
	return errors.Join(err, c.files.close(), c.evaluator.files.close())
}

// flush reports the remaining finished tasks. It ignores the end of the job or of the session.
func (c *Client) flush() {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	if c.session.Unsaid() {
		_ = c.collect(ctx)
	}
	if c.session.Unsaid() && c.flight == nil {
		c.send(false)
		_ = c.collect(ctx)
	}
}
