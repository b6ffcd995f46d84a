package trainercontrol

import (
	"sync"

	"trainmaster/taskqueue"
)

// Command is a command to a trainer without an address: one of the fields is set.
type Command struct {
	Stop     taskqueue.Token // dispatch to give up
	Progress taskqueue.Token // task whose progress the trainer reports
}

// Streams has the open streams of trainers without an address. The zero value has none. A nil Streams has none, too.
type Streams struct {
	mu   sync.Mutex
	open map[taskqueue.Ordinal]*stream
}

type stream struct{ send func([]Command) }

// Open adds the stream of a trainer, instead of an earlier one. send must not wait. It is not called after release.
func (s *Streams) Open(trainer taskqueue.Ordinal, send func([]Command)) (release func()) {
	if s == nil {
		return func() {}
	}
	added := &stream{send}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = map[taskqueue.Ordinal]*stream{}
	}
	s.open[trainer] = added
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.open[trainer] == added {
			delete(s.open, trainer)
		}
	}
}

// Send sends commands on the stream of a trainer, if it has one. Otherwise its next heartbeat returns them.
func (s *Streams) Send(trainer taskqueue.Ordinal, commands ...Command) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if to := s.open[trainer]; to != nil {
		to.send(commands)
	}
}
