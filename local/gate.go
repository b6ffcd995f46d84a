package local

import (
	"context"

	"trainmaster/etcdstore"
	"trainmaster/internal/tcpproxy"
)

// gate is one address for all masters of a run. Connections go to the current leader, so the address in a trainer's
// environment stays valid when the leader changes or a master restarts on another port.
type gate struct {
	proxy *tcpproxy.Proxy
	stop  func()
}

// openGate listens, and follows the leader until close.
func openGate(ctx context.Context, endpoint string) (*gate, error) {
	store, err := etcdstore.Open(ctx, etcdstore.Config{Endpoints: []string{endpoint}})
	if err != nil {
		return nil, err
	}
	proxy, err := tcpproxy.New("")
	if err != nil {
		_ = store.Close() // nothing was written
		return nil, err
	}
	following, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for leader := range store.WatchMasterAddr(following) {
			proxy.SetTarget(leader.Addr)
		}
	}()
	return &gate{proxy: proxy, stop: func() {
		cancel()
		<-ended
		proxy.Close()
		_ = store.Close() // nothing was written
	}}, nil
}

func (g *gate) addr() string { return g.proxy.Addr() }
func (g *gate) close()       { g.stop() }
