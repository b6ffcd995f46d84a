package etcdtest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"trainmaster/internal/freeport"
)

// memberEnv holds the member of a cluster that a child process runs.
const memberEnv = "TRAINMASTER_ETCDTEST_MEMBER"

// member is one of the etcds of a cluster.
type member struct {
	Name    string
	Client  string // host:port
	Peer    string // host:port
	Cluster string // name=URL of all members
}

// Cluster is an etcd of several members, each in a process of its own, with fsync.
type Cluster struct {
	t       testing.TB
	Members []*Process
}

// StartCluster starts an etcd of three members in children of this test binary. host is the address that clients and
// members dial, 127.0.0.1 where a test has no other wish. It ends with the test.
func StartCluster(t testing.TB, host string) *Cluster {
	t.Helper()
	return startCluster(t, host, 3)
}

// StartOn starts an etcd of one member at an address of this machine that is not 127.0.0.1. It ends with the test.
func StartOn(t testing.TB, host string) *Process {
	t.Helper()
	return startCluster(t, host, 1).Members[0]
}

func startCluster(t testing.TB, host string, size int) *Cluster {
	t.Helper()
	if !processReady.Load() {
		t.Fatal("etcdtest: TestMain must call etcdtest.Main(m)")
	}
	addresses := freeAddresses(t, host, 2*size)
	c := &Cluster{t: t}
	var all []string
	for i := range size {
		m := &member{Name: fmt.Sprintf("member-%d", i), Client: addresses[2*i], Peer: addresses[2*i+1]}
		all = append(all, m.Name+"=http://"+m.Peer)
		c.Members = append(c.Members, &Process{t: t, dir: t.TempDir(), member: m})
	}
	for _, p := range c.Members {
		p.member.Cluster = strings.Join(all, ",")
		p.launch()
		t.Cleanup(p.Kill)
	}
	for _, p := range c.Members { // none serves before there is a majority
		p.await()
	}
	return c
}

func freeAddresses(t testing.TB, host string, n int) (addresses []string) {
	t.Helper()
	for range n {
		addr, err := freeport.Addr(host)
		if err != nil {
			t.Fatal(err)
		}
		addresses = append(addresses, addr)
	}
	return addresses
}

// Endpoints returns the endpoints of all members.
func (c *Cluster) Endpoints() (list []string) {
	for _, p := range c.Members {
		list = append(list, p.Endpoint())
	}
	return list
}

// Leader waits until the members that run agree on a leader, and returns it.
func (c *Cluster) Leader() *Process {
	c.t.Helper()
	running := slices.DeleteFunc(slices.Clone(c.Members), func(p *Process) bool { return p.cmd == nil })
	for {
		if found := c.leader(running); found != nil {
			return found
		}
		select {
		case <-c.t.Context().Done():
			c.t.Fatal("the members agree on no leader")
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (c *Cluster) leader(running []*Process) (leader *Process) {
	agreed := uint64(0)
	for _, p := range running {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{p.endpoint}, DialTimeout: time.Second, Logger: zap.NewNop()})
		if err != nil {
			c.t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
		status, err := client.Status(ctx, p.endpoint)
		cancel()
		_ = client.Close() // only asked once
		if err != nil || status.Leader == 0 || agreed != 0 && status.Leader != agreed {
			return nil
		}
		agreed = status.Leader
		if status.Header.MemberId == status.Leader {
			leader = p
		}
	}
	return leader
}

// serveMember starts the member of a cluster that this child is.
func serveMember(dir, text string) (endpoint string, err error) {
	var m member
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return "", err
	}
	client, peer := url.URL{Scheme: "http", Host: m.Client}, url.URL{Scheme: "http", Host: m.Peer}
	options := embed.NewConfig()
	options.Name, options.Dir = m.Name, filepath.Join(dir, "etcd")
	options.ListenClientUrls, options.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	options.ListenPeerUrls, options.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	options.InitialCluster, options.InitialClusterToken = m.Cluster, m.Cluster
	options.Logger, options.LogLevel = "zap", "error"
	options.LogOutputs = []string{filepath.Join(dir, "etcd.log")}
	etcd, err := embed.StartEtcd(options)
	if err != nil {
		return "", err
	}
	select {
	case <-etcd.Server.ReadyNotify():
		return client.String(), nil
	case err := <-etcd.Err():
		return "", err
	case <-time.After(2 * time.Minute):
		return "", fmt.Errorf("%s is not ready after two minutes; its log is %s", m.Name, options.LogOutputs[0])
	}
}
