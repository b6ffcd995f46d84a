// Package process runs servers of object stores for tests.
package process

import (
	"net"
	"os/exec"
	"testing"
	"time"

	"trainmaster/internal/freeport"
)

const startLimit = 60 * time.Second

// Server is a process on a loopback port.
type Server struct {
	Addr    string // "ip:port"
	t       testing.TB
	process *exec.Cmd
}

// Start starts a server that ends with the test. command returns its command for an address.
func Start(t testing.TB, command func(addr string) *exec.Cmd) *Server {
	t.Helper()
	s := &Server{t: t}
	for range 3 { // another process may take the port before the server does
		var err error
		if s.Addr, err = freeport.Addr("127.0.0.1"); err != nil {
			t.Fatal(err)
		}
		s.process = command(s.Addr)
		if s.listens() {
			t.Cleanup(s.Stop)
			return s
		}
	}
	t.Fatalf("the server does not listen: %v", s.process.Args)
	return nil
}

// Stop kills the server.
func (s *Server) Stop() {
	s.process.Process.Kill() //nolint:errcheck // it has ended
	s.process.Wait()         //nolint:errcheck // it was killed
}

// listens starts the process and waits until it accepts connections.
func (s *Server) listens() bool {
	if err := s.process.Start(); err != nil {
		s.t.Fatal(err)
	}
	for began := time.Now(); time.Since(began) < startLimit; time.Sleep(20 * time.Millisecond) {
		if conn, err := net.Dial("tcp", s.Addr); err == nil {
			conn.Close()
			return true
		}
	}
	s.Stop()
	return false
}
