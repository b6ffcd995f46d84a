package httpapi

import "time"

// MaxConnections is the connection limit of a server.
const MaxConnections = maxConnections

// SetIdleTimeout sets the time between two requests.
func (s *Server) SetIdleTimeout(d time.Duration) { s.http.IdleTimeout = d }

// IdleTimeout returns the time between two requests.
func (s *Server) IdleTimeout() time.Duration { return s.http.IdleTimeout }

// Requests returns the number of requests under way.
func (s *Server) Requests() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.open {
		if u.request {
			n++
		}
	}
	return n
}
