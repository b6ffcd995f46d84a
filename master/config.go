package master

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	"trainmaster/master/store"

	"trainmaster/dataset"
	"trainmaster/master/committer"
	"trainmaster/master/component"
	"trainmaster/master/evaluation/metric"
	"trainmaster/master/pods"
	"trainmaster/master/pscontrol"
	"trainmaster/master/ring"
	"trainmaster/master/trainercontrol"
	"trainmaster/taskqueue"
)

// Config holds the dependencies and the settings of a master. The zero value of a field means its default; Store has none.
type Config struct {
	Store   store.Store
	Servers *pscontrol.Control // of the parameter servers; nil: the job has none. Its components must be among Components
	Ledger  Sealer             // seals the ledger; nil: it stays in the store
	Clock   component.Clock    // default: the clock of the machine
	Log     *logrus.Entry      // default: the standard logger

	Components []component.Component // in addition to the components of every master
	// Streams has the streams of trainers for the component that sends commands; nil: none.
	Streams *trainercontrol.Streams
	// Evaluate asks the component of evaluation for a round of the job or, with a name, of a trainer. nil: the job is not evaluated.
	Evaluate func(ctx context.Context, trainer string) error

	// Pods keeps the pods of the job alive; nil: other programs start its processes. It must be among Components.
	Pods *pods.Manager

	// Ring keeps the ring of the job; nil: the job has none. It must be among Components.
	Ring *ring.Ring

	Job       string // name; default "default"
	Advertise string // address that trainers dial: host:port

	Datasets []Dataset // that the master registers itself; empty: a trainer reports the dataset for training
	// ComponentDatasets are datasets that Components register: a standby compares their files too.
	ComponentDatasets []Dataset
	DatasetWatch      time.Duration // between two looks for new files of online datasets; default 10 s
	Queue             taskqueue.Options
	Shuffle           bool
	Seed              uint64
	ChunksPerTask     int  // 0: computed from Trainers, at least 8 tasks per trainer
	Trainers          int  // how many are expected; default 8
	Sync              bool // gradients are applied in synchronous steps
	Backups           int  // trainers that a synchronous step does not wait for
	Deterministic     bool // two runs make the same synchronous steps: as many trainers as Trainers says, no more and no fewer

	LeaseTTL time.Duration // of the leader's lock; default 5 s
	Holddown time.Duration // minimum time between two forced takeovers; default 10 s

	Roots        []string       // directories that datasets must be in; empty: any directory
	ControlHosts []netip.Prefix // networks in which the leader calls trainers, in addition to the hosts of their connections

	Linger time.Duration // how long a finished job waits for its trainers to learn its end; default 30 s

	// NoTasks refuses datasets and trainers: a component ends the job.
	NoTasks bool
	// NoTrainingService refuses requests over the gRPC service Coordinator.
	NoTrainingService bool

	AcceptCluster bool // continue with a state that another etcd cluster wrote
	NoLedger      bool // do not write the ledger; nothing can be verified then
}

const (
	tasksPerTrainer = 8
	maxChunksOfTask = 4096 // unless chunks-per-task is set; see also taskqueue.MaxTaskBytes
	saveLease       = 60 * time.Second
)

// Committer returns the configuration of the committer.
func (c Config) Committer() committer.Config {
	c = c.withDefaults()
	return committer.Config{
		Store: c.Store, Clock: c.Clock, Log: c.Log,
		Job: c.Job, Queue: c.Queue, Sync: c.Sync, AcceptCluster: c.AcceptCluster, NoLedger: c.NoLedger,
	}
}

func (c Config) withDefaults() Config {
	if c.Clock == nil {
		c.Clock = component.MachineClock{}
	}
	if c.Log == nil {
		c.Log = logrus.NewEntry(logrus.StandardLogger())
	}
	if c.Job == "" {
		c.Job = "default"
	}
	if c.Trainers == 0 {
		c.Trainers = 8
	}
	if c.Holddown == 0 {
		c.Holddown = 10 * time.Second
	}
	if c.Deterministic {
		c.Queue.Ranks = c.Trainers
	}
	c.Queue.Sync, c.Queue.Backups = c.Sync, c.Backups
	//guard:job-has-the-datasets-of-the-master
	c.Queue.Sets = append(c.ofMaster(taskqueue.Training), c.ofMaster(taskqueue.Prediction)...)
	c.Queue.Merge = metric.MergeEncoded
	if c.DatasetWatch == 0 {
		c.DatasetWatch = watchEvery
	}
	if c.Linger == 0 {
		c.Linger = 30 * time.Second
	}
	return c
}

// seals reports whether this master moves the ledger to sealed files.
func (c Config) seals() bool { return c.Ledger != nil && !c.NoLedger }

// Validate names the first field with a value that makes no sense.
func (c Config) Validate() error {
	switch {
	case c.ChunksPerTask < 0:
		return fmt.Errorf("chunks-per-task: expected 0 (chosen at the report) or more, found %d", c.ChunksPerTask)
	case c.Trainers < 0:
		return fmt.Errorf("trainers: expected at least 1, found %d", c.Trainers)
	case c.Backups < 0:
		return fmt.Errorf("backup-workers: expected 0 or more, found %d", c.Backups)
	case c.Backups > 0 && !c.Sync:
		return fmt.Errorf("backup-workers: expected 0 with asynchronous updates, which have no steps to wait for, found %d", c.Backups)
	case c.Deterministic && !c.Sync:
		return errors.New("deterministic: expected it with synchronous steps only: asynchronous gradients are applied as they come")
	case c.Deterministic && c.Backups > 0:
		return fmt.Errorf("deterministic: expected no backup-workers, found %d: the speed of trainers would determine which of them a step leaves out", c.Backups)
	case c.Deterministic && c.Queue.Rolling:
		return errors.New("deterministic: expected pass-mode barrier: with rolling passes it depends on time which pass a task is of")
	case c.Deterministic && c.Queue.RetrainLost:
		return errors.New("on-trainer-loss: expected rewind with deterministic, found retrain: the steps would depend on which trainer was lost")
	case c.Deterministic && c.Queue.Speculate:
		return errors.New("deterministic: expected no speculation, in which the faster of two trainers is counted")
	case c.Sync && !c.Queue.Cuts:
		return errors.New("update-mode: expected cuts with sync, found none: a synchronous job rolls back as a whole")
	case c.Linger < 0:
		return fmt.Errorf("linger: expected 0 or more, found %v", c.Linger)
	}
	return cmp.Or(c.validateDatasets(), c.Queue.Validate())
}

// Settings returns the immutable settings of the job as text: another master with other
// values is refused.
func (c Config) Settings() map[string]string {
	mode := "barrier"
	if c.Queue.Rolling {
		mode = "rolling"
	}
	update := "async"
	if c.Sync {
		update = "sync"
	}
	deterministic := "no"
	if c.Deterministic {
		deterministic = fmt.Sprintf("%d trainers", c.Trainers)
	}
	commit := "finish"
	if c.Queue.ExplicitCommit {
		commit = "explicit"
	}
	if c.Queue.Cuts {
		commit = "cuts"
	}
	if c.Queue.RetrainLost {
		commit = "cuts, lost tasks retrained"
	}
	s := map[string]string{"deterministic": deterministic, "pass-mode": mode, "shuffle": fmt.Sprint(c.Shuffle), "seed": fmt.Sprint(c.Seed), "commit-mode": commit, "update-mode": update}
	//guard:datasets-are-job-settings
	s["datasets"] = c.datasetSetting()
	if c.NoTasks {
		s["tasks"] = "none"
	}
	if c.ChunksPerTask != 0 {
		s["chunks-per-task"] = fmt.Sprint(c.ChunksPerTask)
	}
	return s
}

// chunksPerTask groups chunks so that there are at least tasksPerTrainer tasks for each
// trainer, where there are that many chunks.
func (c Config) chunksPerTask(chunks int) int {
	if c.ChunksPerTask > 0 {
		return c.ChunksPerTask
	}
	return min(max(1, chunks/(c.Trainers*tasksPerTrainer)), maxChunksOfTask)
}

// Tasks returns the number of tasks of a dataset with the given number of chunks. The actual number is higher if a full
// task is too large for a message; see group.
func (c Config) Tasks(chunks int) int {
	each := c.chunksPerTask(chunks)
	return (chunks + each - 1) / each
}

// group cuts the chunks of a dataset into tasks that fit a message. A number of chunks that the
// user chose is not changed, but refused. The URL of a range has the size of its tasks.
func (c Config) group(table *taskqueue.Table) error {
	isRange := slices.ContainsFunc(table.Files(), func(f taskqueue.File) bool { return dataset.IsRange(f.Path) })
	//guard:range-task-as-its-url-says
	if isRange {
		table.Group(1)
		return nil
	}
	wanted := c.chunksPerTask(table.Chunks())
	//guard:task-size-limit
	n, fits := table.GroupWithin(wanted, taskqueue.MaxTaskBytes)
	switch {
	case !fits:
		return fmt.Errorf("path of a file: expected at most %d bytes, found about %d: use shorter paths", taskqueue.MaxTaskBytes, table.LargestTask())
	case c.ChunksPerTask > 0 && n < min(wanted, table.Chunks()):
		return fmt.Errorf("chunks-per-task: expected at most %d for these paths, found %d: a task of more takes more than %d bytes as a message: lower --chunks-per-task, or leave it out", n, wanted, taskqueue.MaxTaskBytes)
	}
	return nil
}

// PassesDone is the reason of ErrJobFinished if no rule, operator or strategy has ended the job.
const PassesDone = "all passes are done"

// Errors that the network APIs map to what their transports say.
var (
	ErrNotLeader     = committer.ErrNotLeader
	ErrStopping      = committer.ErrStopping
	ErrJobFinished   = errors.New("job finished") // wrapped with the reason, PassesDone or another one
	ErrJobFailed     = errors.New("job failed")
	ErrRejoin        = errors.New("the trainer has no session: join again")
	ErrDrained       = errors.New("drained: the trainer gets no more tasks and is to leave")
	ErrNotStored     = committer.ErrNotStored
	ErrStoreWentBack = committer.ErrStoreWentBack
	ErrHeldDown      = store.ErrHeldDown
	ErrRolledBack    = taskqueue.ErrRolledBack
	ErrNotSync       = taskqueue.ErrNotSync
	ErrOtherJob      = store.ErrOtherJob
	ErrOtherLedger   = errors.New("this master does not see the ledger of the job")
	ErrForeign       = committer.ErrForeign
)
