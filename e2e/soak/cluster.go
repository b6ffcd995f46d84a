package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"trainmaster/etcdstore"
	"trainmaster/internal/freeport"
	"trainmaster/internal/tcpproxy"
	"trainmaster/recordio"
)

// Size of the cluster and of the job.
const (
	etcdMembers      = 3
	masters          = 3
	trainerProcesses = 5
	trainersPerOne   = 4
	files            = 10
	chunksPerFile    = 100
	recordsPerChunk  = 5
	tasksPerPass     = files * chunksPerFile
	taskTime         = 100 * time.Millisecond
	sessionTTL       = 6 * time.Second
	survivor         = 0 // index of the master and of the trainer process that no fault ends, so that leaks can accumulate
	startPatience    = 2 * time.Minute
	statusPatience   = time.Second
)

// gate is a proxy that a fault can claim.
type gate struct {
	target
	*tcpproxy.Proxy
}

// cluster holds all processes and proxies.
type cluster struct {
	dir      string
	program  string // the program under test
	died     chan error
	members  [etcdMembers]*process
	clients  [etcdMembers]string // addresses of the members without proxies
	stores   [etcdMembers]*gate  // proxies from masters and trainers to a member
	peers    [etcdMembers]*gate  // proxies from the other members to a member
	masters  [masters]*process
	tools    [masters]string // addresses of /metrics
	ports    [masters]*gate  // proxies from trainers and standbys to a master; nil for the last master
	trainers [trainerProcesses]*process
	store    *etcdstore.Store // without proxies
}

// newCluster prepares addresses, proxies and files. It starts no process.
func newCluster(dir, program string) (c *cluster, err error) {
	c = &cluster{dir: dir, program: program, died: make(chan error, 1)}
	if err := writeRecords(filepath.Join(dir, "data")); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("path of this program: %w", err)
	}
	if err := c.layMembers(self); err != nil {
		return nil, err
	}
	if err := c.layMasters(); err != nil {
		return nil, err
	}
	return c, c.layTrainers(self)
}

func (c *cluster) process(name, binary string, args ...string) *process {
	return &process{target: target{name: name}, binary: binary, args: args, log: filepath.Join(c.dir, name+".log"), died: c.died}
}

// child returns a process that runs this program in a role.
func (c *cluster) child(self, name, role string, config any) (*process, error) {
	text, err := json.Marshal(config)
	return c.process(name, self, role, string(text)), err
}

func newGate(name, addr string) (*gate, error) {
	proxy, err := tcpproxy.New(addr)
	return &gate{target{name: name}, proxy}, err
}

func (c *cluster) layMembers(self string) (err error) {
	var configs [etcdMembers]member
	var all []string
	for i := range configs {
		m := &configs[i]
		m.Name = fmt.Sprintf("etcd-%d", i)
		m.Dir = filepath.Join(c.dir, m.Name)
		if m.Client, err = freeport.Addr("127.0.0.1"); err != nil {
			return err
		}
		if m.Peer, err = freeport.Addr("127.0.0.1"); err != nil {
			return err
		}
		c.clients[i] = m.Client
		if c.stores[i], err = newGate("client proxy of "+m.Name, m.Client); err != nil {
			return err
		}
		if c.peers[i], err = newGate("peer proxy of "+m.Name, m.Peer); err != nil {
			return err
		}
		m.Advertise = c.peers[i].Addr()
		all = append(all, m.Name+"=http://"+m.Advertise)
	}
	for i := range configs {
		configs[i].Cluster = strings.Join(all, ",")
		if c.members[i], err = c.child(self, configs[i].Name, roleMember, configs[i]); err != nil {
			return err
		}
	}
	return nil
}

// endpoints returns the addresses of the proxies of etcd.
func (c *cluster) endpoints() []string {
	var list []string
	for _, g := range c.stores {
		list = append(list, "http://"+g.Addr())
	}
	return list
}

// layMasters prepares the masters. The last master has no proxy, so that its port refuses connections when it is dead.
func (c *cluster) layMasters() (err error) {
	for i := range c.masters {
		listen, err := freeport.Addr("127.0.0.1")
		if err != nil {
			return err
		}
		if c.tools[i], err = freeport.Addr("127.0.0.1"); err != nil {
			return err
		}
		advertise := listen
		if i < masters-1 {
			if c.ports[i], err = newGate(fmt.Sprintf("proxy of master-%d", i), listen); err != nil {
				return err
			}
			advertise = c.ports[i].Addr()
		}
		c.masters[i] = c.process(fmt.Sprintf("master-%d", i), c.program, "--endpoints", strings.Join(c.endpoints(), ","), "--own-etcd",
			"--listen", listen, "--advertise", advertise, "--http", c.tools[i], "--lease-ttl", "3s", "--holddown", "2s",
			"--session-ttl", sessionTTL.String(), "--task-timeout-min", "20s", "--task-max-failures", "1000000", "--max-set-aside", "1",
			"--chunks-per-task", "1", "--passes", "0")
	}
	return nil
}

// setPasses sets the number of passes for masters that start later.
func (c *cluster) setPasses(n int) {
	for _, m := range c.masters {
		m.args[len(m.args)-1] = strconv.Itoa(n)
	}
}

func (c *cluster) layTrainers(self string) (err error) {
	for i := range c.trainers {
		config := trainers{Endpoints: c.endpoints(), Data: []string{filepath.Join(c.dir, "data", "*")}, Journal: c.journal(i), TaskTime: taskTime}
		for n := range trainersPerOne {
			config.IDs = append(config.IDs, fmt.Sprintf("trainer-%d-%d", i, n))
		}
		if c.trainers[i], err = c.child(self, fmt.Sprintf("trainers-%d", i), roleTrainers, config); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) journal(i int) string {
	return filepath.Join(c.dir, fmt.Sprintf("journal-%d.jsonl", i))
}

// start starts all processes. It returns when etcd is ready.
func (c *cluster) start(ctx context.Context) error {
	for _, m := range c.members {
		if err := m.start(); err != nil {
			return err
		}
	}
	opening, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	var err error
	if c.store, err = etcdstore.OpenRetry(opening, etcdstore.Config{Endpoints: c.clients[:]}, nil); err != nil {
		return fmt.Errorf("etcd (logs: %s): %w", filepath.Join(c.dir, "etcd-*.log"), err)
	}
	for _, p := range append(c.masters[:], c.trainers[:]...) {
		if err := p.start(); err != nil {
			return err
		}
	}
	return nil
}

// close kills all running processes.
func (c *cluster) close() {
	if c.store != nil {
		_ = c.store.Close() // its etcd is killed next
	}
	for _, p := range c.processes() {
		if p != nil {
			p.kill()
		}
	}
	for _, g := range c.gates() {
		if g != nil {
			g.Close()
		}
	}
}

func (c *cluster) processes() []*process {
	all := append([]*process{}, c.trainers[:]...)
	all = append(all, c.masters[:]...)
	return append(all, c.members[:]...)
}

func (c *cluster) gates() []*gate {
	all := append([]*gate{}, c.stores[:]...)
	all = append(all, c.peers[:]...)
	return append(all, c.ports[:]...)
}

// etcdLeader returns the index of the leading member, or -1 if none reports to lead.
func (c *cluster) etcdLeader(ctx context.Context) int {
	for i, addr := range c.clients {
		asking, cancel := context.WithTimeout(ctx, statusPatience)
		status, err := c.memberStatus(asking, addr)
		cancel()
		if err == nil && status.Header.MemberId == status.Leader {
			return i
		}
	}
	return -1
}

func (c *cluster) memberStatus(ctx context.Context, addr string) (*clientv3.StatusResponse, error) {
	return c.store.Client().Status(ctx, addr)
}

// run runs a command of the program under test against this job, without proxies.
func (c *cluster) run(ctx context.Context, args ...string) ([]byte, error) {
	out, err := exec.CommandContext(ctx, c.program, append(args, "--endpoints", strings.Join(c.clients[:], ","))...).Output()
	return out, lastError(err)
}

func writeRecords(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for i := range files {
		file, err := os.Create(filepath.Join(dir, fmt.Sprintf("part-%02d", i)))
		if err != nil {
			return err
		}
		w := recordio.NewWriter(file, recordio.WriterOptions{RecordsPerChunk: recordsPerChunk})
		for n := range chunksPerFile * recordsPerChunk {
			if err := w.Write(fmt.Appendf(nil, "file %d, record %d", i, n)); err != nil {
				return err
			}
		}
		if err := w.Close(); err != nil {
			return err
		}
		if err := file.Close(); err != nil {
			return err
		}
	}
	return nil
}
