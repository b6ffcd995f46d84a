// Package httpapi is the API of a master for monitoring tools: whether it lives, whether it
// is ready, and its metrics for Prometheus.
//
//	/healthz  200 while the process serves
//	/readyz   200 "leader" or "warm" (stands by, task tables loaded); else 503 with the reason
//	/metrics  the metrics that Collect describes
//
// In a job with a ring, it is also the HTTP rendezvous of Horovod: GET, PUT and DELETE of /SCOPE/KEY.
package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/sirupsen/logrus"

	"trainmaster/master"
	"trainmaster/master/rendezvous"
)

const (
	readTimeout    = 10 * time.Second // of a request
	writeTimeout   = 30 * time.Second
	idleTimeout    = 30 * time.Second // of a connection between two requests
	maxHeader      = 16 << 10
	maxConnections = 128 // probes and scrapes
	// slowRequest is the age of a request at which its connection can be closed for a new connection.
	slowRequest = time.Second
)

// Server is the HTTP API of one master.
type Server struct {
	http   *http.Server
	log    *logrus.Entry
	routes atomic.Pointer[http.ServeMux]

	mu   sync.Mutex
	open map[net.Conn]use
}

// use is what a connection is used for.
type use struct {
	request bool // one is under way
	since   time.Time
}

// Starting returns a server that does nothing until Serve, of a process that waits for its
// store: it lives, and is not ready. Attend gives it its master.
func Starting(log *logrus.Entry) *Server {
	s := &Server{log: log, open: map[net.Conn]use{}}
	s.http = &http.Server{
		Handler:     http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.routes.Load().ServeHTTP(w, r) }),
		ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader, ConnState: s.connection,
	}
	s.route(nil)
	return s
}

// New returns a server of a master.
func New(m *master.Master, size Size, log *logrus.Entry) *Server {
	s := Starting(log)
	s.Attend(m, size)
	return s
}

// Size returns the bytes of the store's database and its quota.
type Size func(ctx context.Context) (used, quota int64, err error)

// Attend makes this the API of m from now on. size may be nil.
func (s *Server) Attend(m *master.Master, size Size) {
	s.route(m, &collector{master: m, size: size, log: s.log})
}

func (s *Server) route(m *master.Master, metrics ...prometheus.Collector) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	registry.MustRegister(metrics...)
	routes := http.NewServeMux()
	//guard:standby-is-healthy
	routes.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	routes.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { ready(w, m) })
	routes.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorLog: s.log}))
	if m != nil {
		if r, err := m.Ring(); err == nil { // the job has a ring
			(&horovod{observe: func() (rendezvous.Ring, <-chan struct{}, error) {
				u, changed, err := r.Observe()
				return u.Ring, changed, err
			}}).route(routes)
		}
	}
	s.routes.Store(routes)
}

// connection records the state of a connection. If a new connection exceeds the limit, a connection is closed.
func (s *Server) connection(conn net.Conn, state http.ConnState) {
	s.mu.Lock()
	var excess net.Conn
	switch state {
	case http.StateNew:
		//guard:http-connection-limit
		if len(s.open) >= maxConnections {
			excess = s.givesWay(conn)
			delete(s.open, excess)
		}
		if excess != conn {
			s.open[conn] = use{since: time.Now()}
		}
	case http.StateActive, http.StateIdle:
		if _, counted := s.open[conn]; counted {
			s.open[conn] = use{request: state == http.StateActive, since: time.Now()}
		}
	case http.StateClosed, http.StateHijacked:
		delete(s.open, conn)
	}
	s.mu.Unlock()
	if excess != nil {
		_ = excess.Close() // the server finds it closed
	}
}

// givesWay returns the connection to close for a new one. It is the connection that has been without a request for
// longest, otherwise the connection with the oldest request. If that request is not older than slowRequest, it is the
// new connection itself.
func (s *Server) givesWay(fresh net.Conn) net.Conn {
	var idle, slow net.Conn
	for conn, u := range s.open {
		of := &idle
		if u.request {
			of = &slow
		}
		if *of == nil || u.since.Before(s.open[*of].since) {
			*of = conn
		}
	}
	switch {
	case idle != nil:
		return idle
	//guard:http-slow-request
	case time.Since(s.open[slow].since) > slowRequest:
		return slow
	}
	return fresh
}

func ready(w http.ResponseWriter, m *master.Master) {
	switch {
	case m == nil:
		http.Error(w, "not ready: waiting for etcd to answer", http.StatusServiceUnavailable)
	case m.Leading():
		fmt.Fprintln(w, "leader")
	case m.Warm():
		fmt.Fprintln(w, "warm")
	default:
		http.Error(w, "not ready: no lock yet, and the state is not followed yet (is etcd there?)", http.StatusServiceUnavailable)
	}
}

// Serve takes connections until ctx ends.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { s.http.Close() })
	defer stop()
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) && ctx.Err() == nil {
		return fmt.Errorf("serve http: %w", err)
	}
	return nil
}
