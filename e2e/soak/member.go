package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"go.etcd.io/etcd/server/v3/embed"
)

const roleMember = "member"

// member is one of several etcd servers, each in a process of its own. All addresses are host:port.
type member struct {
	Name      string
	Dir       string
	Client    string
	Peer      string
	Advertise string // for Peer: the proxy in front of it
	Cluster   string // NAME=URL of all, by their Advertise
}

// run serves until ctx ends. A member that was killed goes on with its data, and waits for the others.
func (m *member) run(ctx context.Context) error {
	options := embed.NewConfig()
	options.Name = m.Name
	options.Dir = m.Dir
	options.ListenClientUrls = []url.URL{httpURL(m.Client)}
	options.AdvertiseClientUrls = options.ListenClientUrls
	options.ListenPeerUrls = []url.URL{httpURL(m.Peer)}
	options.AdvertisePeerUrls = []url.URL{httpURL(m.Advertise)}
	options.InitialCluster = m.Cluster
	options.InitialClusterToken = "soak"
	options.EnableGRPCGateway = false
	options.Logger = "zap"
	options.LogLevel = "error"
	options.LogOutputs = []string{"stderr"}
	etcd, err := embed.StartEtcd(options)
	if err != nil {
		return fmt.Errorf("etcd %s: %w", m.Name, err)
	}
	select {
	case <-ctx.Done():
	case err := <-etcd.Err():
		return fmt.Errorf("etcd %s: %w", m.Name, err)
	case <-etcd.Server.StopNotify():
		return errors.New("etcd " + m.Name + " stopped by itself")
	}
	return nil // the process ends, and so does etcd, as in a crash: closing waits for clients
}

func httpURL(addr string) url.URL { return url.URL{Scheme: "http", Host: addr} }
