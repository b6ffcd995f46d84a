package netrpc

import "time"

// SetTimeouts makes a test quicker than the default ones allow.
func (s *Server) SetTimeouts(handshake, message, write time.Duration) {
	s.timeouts = timeouts{handshake, message, write, defaultTimeouts.idle}
}

// SetIdle sets the idle limit alone.
func (s *Server) SetIdle(idle time.Duration) {
	s.timeouts = defaultTimeouts
	s.timeouts.idle = idle
}

// Words is the table of errors.
var Words = words
