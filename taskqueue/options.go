package taskqueue

import (
	"errors"
	"fmt"
	"time"
)

// DefaultSessionTTL is the default of Options.SessionTTL.
const DefaultSessionTTL = 15 * time.Second

// Options are the settings of a queue that may change from term to term. The zero
// value of each field means its default.
type Options struct {
	Passes        int           // walks over each training dataset without its own number; 0: unlimited
	Sets          []string      // names of the datasets of the job: it does not end before all are registered
	MaxFailures   int           // a task with more failures in a pass is set aside; default 3
	MaxSetAside   int           // more tasks set aside pause the job; default 1,000
	TimeoutMin    time.Duration // bounds of the task timeout; default 30 s
	TimeoutMax    time.Duration // default 1 h
	FirstTimeout  time.Duration // before the first finish of a dataset; default 10 min
	SessionTTL    time.Duration // a joined trainer that is silent for longer is lost; default 15 s
	MaxSessions   int           // joined trainers and plain connections with a session; default 50,000
	Grace         time.Duration // time for a joined trainer to reconnect after its connection closes; default 5 s
	Rolling       bool          // start the next pass as soon as todo is empty
	Speculate     bool          // second copies of the slowest tasks at the end of a pass
	LossesIgnored bool          // losses of trainers return nothing, only timeouts do
	Ranks         int           // number of trainers that each get the positions of their rank; 0: any trainer gets the next position

	// HoldEnd keeps the job open after its last pass: see EndJob.
	HoldEnd bool
	// Merge adds the metrics of a finish to the metrics of its evaluation round, both encoded. It must not change its arguments. nil: metrics
	// are ignored.
	Merge func(merged, more []byte) ([]byte, error)

	Strategy *Strategy // nil: the job has none

	Sync    bool // gradients are applied in synchronous steps: see StageGradients
	Backups int  // trainers that a synchronous step does not wait for

	// ExplicitCommit makes a new job a job of explicit commits: see StepCommit. It is fixed when the job begins: Restore uses
	// the stored value.
	ExplicitCommit bool
	Cuts           bool // only the leader takes the steps: see CutBegin; with ExplicitCommit
	RetrainLost    bool // a lost trainer's tasks are dispatched again, without a rollback; with Cuts
	MaxUncommitted int  // limit of live and uncommitted tasks; default 20,000
}

// The constants of the timeout rule.
const (
	timeoutFactor      = 5  // timeout = 5 x the moving average of completion times
	hardDeadlineFactor = 10 // hard deadline = 10 x the timeout
	averageWeight      = 10 // a completion weighs 1/10 in the average
	lossWeight         = 3  // three losses weigh as much as one failure
	openPassesRolling  = 2
	maxHeldJoined      = 2  // one running task and one prefetched, without a window
	maxHeldPlain       = 16 // unfinished tasks of a connection that did not join
	maxLate            = 16 // attempts of a trainer that timed out and may still be finished
	maxErrorText       = 256
)

// Bounds of the window of a session: of the tasks that it may hold.
const (
	MinWindow = maxHeldJoined
	MaxWindow = 64
)

// Bounds of an answer with several tasks.
const (
	MaxAnswered       = 16  // tasks
	maxAnsweredChunks = 700 // of more than one task, so that a message has room for their paths
)

func (o Options) withDefaults() Options {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	if o.MaxFailures == 0 {
		o.MaxFailures = 3
	}
	if o.MaxSetAside == 0 {
		o.MaxSetAside = 1000
	}
	if o.MaxSessions == 0 {
		o.MaxSessions = 50_000
	}
	if o.MaxUncommitted == 0 {
		o.MaxUncommitted = 20_000
	}
	set(&o.TimeoutMin, 30*time.Second)
	set(&o.TimeoutMax, time.Hour)
	set(&o.FirstTimeout, 10*time.Minute)
	set(&o.SessionTTL, DefaultSessionTTL)
	set(&o.Grace, 5*time.Second)
	return o
}

// Validate returns an error of the first invalid field.
func (o Options) Validate() error {
	switch {
	case o.Passes < 0:
		return fmt.Errorf("passes: expected 0 (unlimited) or more, found %d", o.Passes)
	case o.MaxFailures < 0:
		return fmt.Errorf("task-max-failures: expected 0 (the default, 3) or more, found %d", o.MaxFailures)
	case o.MaxSetAside < 0:
		return fmt.Errorf("max-set-aside: expected 0 (the default, 1000) or more, found %d", o.MaxSetAside)
	case o.MaxSessions < 0:
		return fmt.Errorf("max-sessions: expected 0 (the default, 50000) or more, found %d", o.MaxSessions)
	case o.MaxUncommitted < 0:
		return fmt.Errorf("max-uncommitted: expected 0 (the default, 20000) or more, found %d", o.MaxUncommitted)
	case o.Cuts && !o.ExplicitCommit:
		return errors.New("cuts: expected explicit-commit, found none")
	case o.RetrainLost && !o.Cuts:
		return errors.New("on-trainer-loss: expected retrain only with cuts, found no cuts")
	case o.RetrainLost && o.Ranks > 0:
		return errors.New("on-trainer-loss: expected rewind with ranks, found retrain: the steps would depend on which trainer was lost")
	case o.ExplicitCommit && o.Speculate:
		return errors.New("speculate: expected false with explicit-commit, found true: a second copy of a task would apply its records twice")
	case o.Ranks < 0:
		return fmt.Errorf("ranks: expected 0 (none) or more, found %d", o.Ranks)
	case o.Ranks > 0 && o.Rolling:
		return fmt.Errorf("ranks: expected 0 with rolling passes, because the pass of a task then depends on time, found %d", o.Ranks)
	case o.Ranks > 0 && o.Speculate:
		return fmt.Errorf("ranks: expected 0 with speculation, because the faster of two trainers then counts, found %d", o.Ranks)
	}
	for _, f := range []struct {
		name  string
		value time.Duration
	}{
		{"task-timeout-min", o.TimeoutMin},
		{"task-timeout-max", o.TimeoutMax},
		{"task-timeout-first", o.FirstTimeout},
		{"session-ttl", o.SessionTTL},
		{"connection-grace", o.Grace},
	} {
		if f.value < 0 || f.value > 0 && f.value < time.Millisecond {
			return fmt.Errorf("%s: expected at least 1ms, found %v", f.name, f.value)
		}
	}
	if o = o.withDefaults(); o.TimeoutMin > o.TimeoutMax {
		return fmt.Errorf("task-timeout-min: expected at most task-timeout-max (%v), found %v", o.TimeoutMax, o.TimeoutMin)
	}
	return nil
}
