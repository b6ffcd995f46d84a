package pscontrol

import (
	"cmp"
	"context"
	"time"
)

// Status describes the parameter servers.
type Status struct {
	Wanted    int    // servers that the model is placed on; 0: the job has none
	Present   int    // registered servers of these, and of the targets of a migration
	Missing   []int  // the indices of the others, ascending
	MovingTo  int    // 0: blocks do not move
	Placement uint32 // epoch of the committed one; 0: blocks were never moved
	Waiting   string // why a migration waits; "": it does not, or there is none
	Overflow  string // the values that are not finite, as the servers said at most some seconds ago; "": there are none
	// Unrestored is why servers wait without parameters, as they said at most some seconds ago; "": none does.
	Unrestored string
	Unknown    string // why the registered servers are unknown; Present and Missing then have no meaning
}

// serversTimeout bounds the only read of the store in a status.
const serversTimeout = time.Second / 2

// Checkpoint returns the status of the checkpoints; nil: the configuration has none.
func (c *Control) Checkpoint() *CheckpointStatus {
	t := c.current.Load()
	if t == nil || !t.takesCheckpoints() {
		return nil
	}
	status := t.checkpoints.status()
	return &status
}

// Status returns the status of the parameter servers. It calls none of them, and a store that does not answer makes them Unknown.
func (c *Control) Status(ctx context.Context) Status {
	t := c.current.Load()
	if t == nil {
		return Status{}
	}
	s := t.scaler.servers()
	if faults := t.faults.Load(); faults != nil {
		//guard:overflow-in-status
		s.Overflow, s.Unrestored = faults.Overflow, faults.Unrestored
		s.Waiting = cmp.Or(s.Waiting, faults.StageRoom)
	}
	if s.Wanted == 0 {
		return s
	}
	bounded, cancel := context.WithTimeout(ctx, serversTimeout)
	defer cancel()
	addrs, err := c.config.Servers.Addresses(bounded)
	if err != nil {
		s.Unknown = err.Error()
		return s
	}
	for i := range max(s.Wanted, s.MovingTo) {
		if i < len(addrs) && addrs[i] != "" {
			s.Present++
		} else {
			s.Missing = append(s.Missing, i)
		}
	}
	return s
}

// servers returns the status without reading the registered servers.
func (s *scaler) servers() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stored == nil {
		return Status{Wanted: s.unmoved}
	}
	status := Status{Wanted: s.state.Servers, Placement: s.state.Epoch}
	if s.state.Done {
		return status
	}
	status.Waiting = s.state.Waiting
	if s.state.Goal != s.state.Servers || s.state.Moves > 0 { // else this leader has yet to see that all is done
		status.MovingTo = s.state.Goal
	}
	return status
}
