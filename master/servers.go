package master

import (
	"context"
	"time"
)

// ServersStatus says which parameter servers there are.
type ServersStatus struct {
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

// Servers says which parameter servers there are. It asks none of them now, and a store that does
// not answer makes it Unknown.
func (m *Master) Servers(ctx context.Context) (ServersStatus, error) {
	if _, err := m.leading(); err != nil {
		return ServersStatus{}, err
	}
	t := m.servers.current.Load()
	s := t.scaler.servers()
	if text := t.stageRoom.Load(); text != nil && s.Waiting == "" {
		s.Waiting = *text
	}
	if faults := t.faults.Load(); faults != nil {
		//guard:overflow-in-status
		s.Overflow, s.Unrestored = faults.Overflow, faults.Unrestored
	}
	if s.Wanted == 0 {
		return s, nil
	}
	bounded, cancel := context.WithTimeout(ctx, serversTimeout)
	defer cancel()
	addrs, err := m.config.Servers.Addresses(bounded)
	if err != nil {
		s.Unknown = err.Error()
		return s, nil
	}
	for i := range max(s.Wanted, s.MovingTo) {
		if i < len(addrs) && addrs[i] != "" {
			s.Present++
		} else {
			s.Missing = append(s.Missing, i)
		}
	}
	return s, nil
}

// servers returns the status without reading the registered servers.
func (s *scaler) servers() ServersStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stored == nil {
		return ServersStatus{Wanted: s.unmoved}
	}
	status := ServersStatus{Wanted: s.state.Servers, Placement: s.state.Epoch}
	if s.state.Done {
		return status
	}
	status.Waiting = s.state.Waiting
	if s.state.Goal != s.state.Servers || s.state.Moves > 0 { // else this leader has yet to see that all is done
		status.MovingTo = s.state.Goal
	}
	return status
}
