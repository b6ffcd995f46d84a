package netrpc

import "time"

// SetTimeouts sets timeouts for tests.
func (s *Server) SetTimeouts(handshake, message, write time.Duration) {
	s.timeouts = timeouts{handshake, message, write, defaultTimeouts.idle}
}

// SetIdle sets the idle limit.
func (s *Server) SetIdle(idle time.Duration) {
	s.timeouts = defaultTimeouts
	s.timeouts.idle = idle
}

// Words is the table of error texts.
var Words = words
