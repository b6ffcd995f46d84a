package podmanager

import (
	"errors"
	"fmt"
	"time"
)

// Config has the settings of the pods of a job.
type Config struct {
	Job         string
	Instance    string // of the job: its random id
	Workers     Group
	Servers     Group
	MaxRelaunch int     // charged relaunches of an index, beyond which it is given up
	OOMFactor   float64 // memory of the next attempt after an attempt that ran out of memory
	MaxMemory   int64   // of a pod in bytes; 0: 4 times the configured memory

	// NoTasks ends the job when all workers have completed, except workers that are given up.
	NoTasks bool

	FirstPause time.Duration // before the first relaunch of an index in a row; it doubles. 0: 1 s
	// FailFast fails the job if the first attempt of an index fails within this time of its start, as a program that does not work does; 0: such an
	// attempt is relaunched as others.
	FailFast time.Duration
}

// Group has the settings of the pods of one role.
type Group struct {
	Count  int   // indices at most
	Begin  int   // indices to begin with; 0: Count
	Min    int   // if fewer are left, the job fails
	Memory int64 // limit of the container in bytes; 0: none

	// Size is the number of pods of an index. They are a group. 0 is 1.
	Size int
}

// ErrLimits is the error of a number of pods outside the limits of their role.
var ErrLimits = errors.New("number of pods outside its limits")

// ErrInvalid is the error of a create that the cluster refuses in any state: the template is not valid.
var ErrInvalid = errors.New("the cluster refuses the pod as invalid")

// CheckWorkers returns an error for a number of workers outside the limits.
func (c Config) CheckWorkers(count int) error {
	g := c.Workers
	switch {
	//guard:scale-limits
	case count >= g.Min && count <= g.Count:
		return nil
	case g.Count == 0:
		return fmt.Errorf("%w: workers: expected --workers MIN:MAX of the master, found a job without workers", ErrLimits)
	case g.Min == g.Count:
		return fmt.Errorf("%w: workers: expected %d, the fixed number of --workers, found %d: start the master with --workers MIN:MAX to change the number", ErrLimits, g.Count, count)
	}
	return fmt.Errorf("%w: workers: expected %d to %d, the limits of --workers, found %d", ErrLimits, g.Min, g.Count, count)
}

// MaxPods is the maximum number of pods of a job: the state of all of them is one value of etcd, which takes 1.5 MiB.
const MaxPods = 2000

// Validate names the first field with a value that makes no sense.
func (c Config) Validate() error {
	switch {
	case c.Workers.Count < 0 || c.Workers.Count > MaxPods:
		return fmt.Errorf("workers: expected 0 to %d, found %d", MaxPods, c.Workers.Count)
	case c.Workers.Min < 0 || c.Workers.Min > c.Workers.Count:
		return fmt.Errorf("workers: expected MIN from 1 to MAX, found %d:%d", c.Workers.Min, c.Workers.Count)
	case c.Workers.Begin != 0 && (c.Workers.Begin < c.Workers.Min || c.Workers.Begin > c.Workers.Count):
		return fmt.Errorf("initial-workers: expected %d to %d, the limits of --workers, found %d", c.Workers.Min, c.Workers.Count, c.Workers.Begin)
	case c.Servers.Count < 0 || c.Servers.Count > MaxPods:
		return fmt.Errorf("ps: expected 0 to %d, found %d", MaxPods, c.Servers.Count)
	case c.Workers.Size < 0 || c.Workers.Size > MaxPods:
		return fmt.Errorf("group-size: expected 1 to %d, found %d", MaxPods, c.Workers.Size)
	//guard:pods-fit-a-value
	case c.Workers.Count*c.Size(Worker)+c.Servers.Count > MaxPods:
		return fmt.Errorf("workers: expected at most %d pods with the parameter servers, found %d", MaxPods, c.Workers.Count*c.Size(Worker)+c.Servers.Count)
	case c.MaxRelaunch < 0:
		return fmt.Errorf("max-relaunch: expected 0 or more, found %d", c.MaxRelaunch)
	case !(c.OOMFactor >= 1 && c.OOMFactor <= 100):
		return fmt.Errorf("oom-memory-factor: expected 1 to 100, found %v", c.OOMFactor)
	case c.MaxMemory < 0:
		return fmt.Errorf("max-memory: expected 0 (4 times the configured memory) or more, found %d", c.MaxMemory)
	case c.MaxMemory > 0 && max(c.Workers.Memory, c.Servers.Memory) > c.MaxMemory:
		return errors.New("max-memory: expected at least the memory of the pods")
	}
	return nil
}

func (c Config) group(r Role) Group {
	if r == Server {
		g := c.Servers
		g.Min, g.Size = g.Count, 1
		return g
	}
	return c.Workers
}

// Size returns the number of pods of an index.
func (c Config) Size(r Role) int { return max(1, c.group(r).Size) }

// Goal returns the number of indices of a role that is wanted. The numbers of the flags apply for the first leader, and if --workers or --ps has another
// value.
func (c Config) Goal(s State, r Role) Goal {
	given := c.group(r)
	goal := s.Goals[r]
	if goal.Given != given.Count {
		begin := given.Count
		//guard:begins-with-initial-workers
		if given.Begin != 0 {
			begin = given.Begin
		}
		return Goal{Given: given.Count, Count: begin}
	}
	goal.Count = min(max(goal.Count, given.Min), given.Count)
	return goal
}

// Outcome returns why an ended pod has ended, and the reason in words.
func (c Config) Outcome(p Pod) (Outcome, string) {
	outcome, reason := p.Outcome()
	//guard:first-failure-ends-the-run
	if outcome == Charged && p.Attempt == 0 && p.Ran < c.FailFast {
		return Usage, reason
	}
	return outcome, reason
}

const defaultMemoryCap = 4 // times the configured memory

// grow returns the memory after an attempt with the given memory; 0: it cannot grow.
func (c Config) grow(r Role, memory int64) int64 {
	base := c.group(r).Memory
	if memory == 0 {
		memory = base
	}
	limit := c.MaxMemory
	if limit == 0 {
		limit = defaultMemoryCap * base
	}
	const mib = 1 << 20
	next := min(limit, (int64(float64(memory)*c.OOMFactor)+mib-1)/mib*mib)
	//guard:memory-cap
	if next <= memory {
		return 0
	}
	return next
}
