package trainercontrol

import (
	"slices"
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

type stream struct {
	incarnation uint64
	send        func([]Command)
	ended       func()
}

// Open adds the stream of a trainer, instead of an earlier one. send must not wait. It is not called after release. ended is called when the
// session of the trainer has ended.
func (s *Streams) Open(trainer taskqueue.Ordinal, incarnation uint64, send func([]Command), ended func()) (release func()) {
	if s == nil {
		return func() {}
	}
	added := &stream{incarnation, send, ended}
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

// end forgets the trainers whose sessions have ended.
func (s *Streams) end(now taskqueue.SessionsChanged) {
	if s == nil {
		return
	}
	var ended []func()
	s.mu.Lock()
	for trainer, to := range s.open {
		if _, live := slices.BinarySearch(now.Live, to.incarnation); !live && to.incarnation < now.Floor {
			delete(s.open, trainer)
			ended = append(ended, to.ended)
		}
	}
	s.mu.Unlock()
	for _, call := range ended {
		call() // which may call release
	}
}

// Len is the number of trainers with an open stream.
func (s *Streams) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
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
