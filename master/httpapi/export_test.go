package httpapi

import "time"

// MaxConnections is the limit of a server.
const MaxConnections = maxConnections

// SetIdleTimeout shortens the time between two requests.
func (s *Server) SetIdleTimeout(d time.Duration) { s.http.IdleTimeout = d }

// IdleTimeout is the time between two requests.
func (s *Server) IdleTimeout() time.Duration { return s.http.IdleTimeout }

// Requests is the number of requests under way.
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
