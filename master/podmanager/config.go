package podmanager

import (
	"errors"
	"fmt"
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
}

// Group has the settings of the pods of one role.
type Group struct {
	Count  int   // pods to begin with
	Min    int   // if fewer are left, the job fails
	Memory int64 // limit of the container in bytes; 0: none
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
	case c.Servers.Count < 0 || c.Servers.Count > MaxPods:
		return fmt.Errorf("ps: expected 0 to %d, found %d", MaxPods, c.Servers.Count)
	//guard:pods-fit-a-value
	case c.Workers.Count+c.Servers.Count > MaxPods:
		return fmt.Errorf("workers: expected at most %d pods with the parameter servers, found %d", MaxPods, c.Workers.Count+c.Servers.Count)
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
		return Group{c.Servers.Count, c.Servers.Count, c.Servers.Memory}
	}
	return c.Workers
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
