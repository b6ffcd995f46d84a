// Package pservertest starts parameter servers in the process of a test, without etcd.
package pservertest

import (
	"context"
	"io"
	"sync"
	"testing"

	"github.com/sirupsen/logrus"

	"trainmaster/pserver"
)

// Start starts n servers with the indices 0 to n-1, and returns their addresses and a function for each that stops it. They end with the test. Start sets
// Registry and Log of the configuration.
func Start(t testing.TB, n int, config pserver.Config) (addrs []string, stop []func()) {
	t.Helper()
	return StartOf(t, "", n, config)
}

// StartOf is Start for servers that know the id of their job.
func StartOf(t testing.TB, jobID string, n int, config pserver.Config) (addrs []string, stop []func()) {
	t.Helper()
	for i := range n {
		addr, end, err := run(jobID, i, config)
		if err != nil {
			t.Fatal(err)
		}
		once := sync.OnceFunc(func() {
			if err := end(); err != nil {
				t.Errorf("server %d: %v", i, err)
			}
		})
		t.Cleanup(once)
		addrs, stop = append(addrs, addr), append(stop, once)
	}
	return addrs, stop
}

// Run starts the server with an index, and returns its address and a function that stops it. Examples call it, which have no testing.TB.
func Run(index int, config pserver.Config) (addr string, stop func() error, err error) {
	return run("", index, config)
}

func run(jobID string, index int, config pserver.Config) (addr string, stop func() error, err error) {
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	p := &place{jobID, index, make(chan struct{}), make(chan struct{})}
	config.Registry, config.Log = p, logrus.NewEntry(logger)
	server, err := pserver.New(config)
	if err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	select {
	case <-p.claimed:
	case err := <-done:
		cancel()
		return "", nil, err
	}
	return server.Addr(), func() error {
		cancel()
		return <-done
	}, nil
}

// place gives a server its index.
type place struct {
	jobID   string // "": not known
	index   int
	lost    chan struct{}
	claimed chan struct{} // closed when the server has an address
}

func (p *place) ClaimPS(context.Context, string, func(string)) (pserver.Claim, error) {
	close(p.claimed)
	return p, nil
}
func (p *place) Index() int                                        { return p.index }
func (p *place) Job() pserver.JobState                             { return pserver.JobState{ID: p.jobID} }
func (p *place) Current(context.Context) (pserver.JobState, error) { return p.Job(), nil }
func (p *place) AskSet(context.Context) error                      { return nil }
func (p *place) Lost() <-chan struct{}                             { return p.lost }
func (p *place) Release(context.Context) error                     { return nil }
