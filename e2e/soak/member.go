package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"go.etcd.io/etcd/server/v3/embed"
)

const roleMember = "member"

// member is an etcd server in its own process. All addresses are host:port.
type member struct {
	Name      string
	Dir       string
	Client    string
	Peer      string
	Advertise string // proxy of Peer
	Cluster   string // NAME=URL of all members, with their Advertise addresses
}

// run serves until ctx ends. After a kill, the member continues with its data and waits for the other members.
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
		return errors.New("etcd " + m.Name + " stopped unexpectedly")
	}
	return nil // etcd ends with the process, as in a crash; Close would wait for clients
}

func httpURL(addr string) url.URL { return url.URL{Scheme: "http", Host: addr} }
