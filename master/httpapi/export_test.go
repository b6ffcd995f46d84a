package httpapi

import "time"

// MaxConnections is the limit of a server.
const MaxConnections = maxConnections

// SetIdleTimeout shortens the time between two requests.
func (s *Server) SetIdleTimeout(d time.Duration) { s.http.IdleTimeout = d }

// IdleTimeout is the time between two requests.
func (s *Server) IdleTimeout() time.Duration { return s.http.IdleTimeout }
