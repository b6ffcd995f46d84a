package netrpc

import "time"

// SetTimeouts makes a test quicker than the default ones allow.
func (s *Server) SetTimeouts(handshake, message, write time.Duration) {
	s.timeouts = timeouts{handshake, message, write}
}

// Words is the table of errors.
var Words = words
