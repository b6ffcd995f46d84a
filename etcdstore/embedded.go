package etcdstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

// EmbeddedConfig says where the embedded etcd keeps its data and listens.
type EmbeddedConfig struct {
	// Dir holds the data, the log, the lock and what survives a restart.
	Dir string

	// ClientURL is host:port (or http://host:port). Default "127.0.0.1:0": the port of the last run of this Dir if it is free, else a port that
	// the kernel chooses. Any process that reaches another address than loopback can change the data: there is no authentication.
	ClientURL string

	// Advertise is host:port that others dial. Default: ClientURL. It is required if ClientURL is no address that can be dialed, as
	// 0.0.0.0:2379.
	Advertise string

	// ReadyTimeout bounds the start, recovery included. Default 30 s.
	ReadyTimeout time.Duration

	// QuotaBytes is where etcd stops taking writes. Default: etcd's (2 GiB).
	QuotaBytes int64

	// MaxRequestBytes is the largest transaction. Default: etcd's (1.5 MiB).
	MaxRequestBytes uint

	// UnsafeNoFsync gives up durability for speed; for tests only.
	UnsafeNoFsync bool
}

const defaultReadyTimeout = 30 * time.Second

// Names inside EmbeddedConfig.Dir.
const (
	embeddedLock     = "LOCK"          // flock, held while a server uses the directory
	embeddedIdentity = "embedded.json" // identity
	embeddedLog      = "etcd.log"      // errors only
	embeddedData     = "etcd"          // etcd's data dir
)

// identity holds the facts that a directory's server keeps from run to run.
type identity struct {
	ClusterToken string `json:"cluster_token"` // makes the cluster id unlike any other directory's
	ClientAddr   string `json:"client_addr"`   // of the last run
}

// Embedded is an etcd of one member inside this process.
type Embedded struct {
	etcd       *embed.Etcd
	endpoint   string
	advertised string
	lock       *os.File
	failure    *failure
	err        chan error
	watcher    sync.WaitGroup
	closing    chan struct{} // closed when Close begins
}

// IsEmbedded reports whether an embedded etcd ever ran on a directory. A directory that cannot be read is an error.
func IsEmbedded(dir string) (bool, error) {
	_, err := os.Stat(filepath.Join(dir, embeddedIdentity))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// RunningEmbedded returns the endpoint of the etcd that another process runs on a directory; "" if none does.
func RunningEmbedded(dir string) (endpoint string, err error) {
	if is, err := IsEmbedded(dir); err != nil || !is {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(dir, embeddedLock), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer lock.Close()
	err = syscall.Flock(int(lock.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	switch {
	case err == nil: // closing the file releases it
		return "", nil
	case !errors.Is(err, syscall.EWOULDBLOCK):
		return "", fmt.Errorf("look whether %q is in use: %w", dir, err)
	}
	id, err := readIdentity(dir)
	if err != nil {
		return "", err
	}
	return "http://" + id.ClientAddr, nil
}

// StartEmbedded starts etcd and waits until it serves. If another process uses the directory, or it cannot be written, the
// error names the remedy.
func StartEmbedded(ctx context.Context, cfg EmbeddedConfig) (*Embedded, error) {
	if cfg.ReadyTimeout == 0 {
		cfg.ReadyTimeout = defaultReadyTimeout
	}
	lock, err := lockDir(ctx, cfg.Dir)
	if err != nil {
		return nil, err
	}
	e, err := startLocked(ctx, cfg)
	if err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("embedded etcd in %q: %w; its log is %s", cfg.Dir, err, filepath.Join(cfg.Dir, embeddedLog))
	}
	e.lock = lock
	return e, nil
}

// lockPatience is how long lockDir waits for the lock: RunningEmbedded of other processes takes it for moments.
const (
	lockPatience = time.Second
	lockPause    = 20 * time.Millisecond
)

// lockDir locks the directory for this process: etcd itself would wait without a message for another process to exit.
func lockDir(ctx context.Context, dir string) (*os.File, error) {
	if dir == "" {
		return nil, errors.New("embedded etcd: expected a data directory, found no name")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("embedded etcd: create data directory %q: %w", dir, newFailure(dir).explain(err))
	}
	lock, err := os.OpenFile(filepath.Join(dir, embeddedLock), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("embedded etcd: write to data directory: %w", newFailure(dir).explain(err))
	}
	bounded, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	for {
		err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return lock, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) || bounded.Err() != nil {
			_ = lock.Close()
			return nil, fmt.Errorf("embedded etcd: the data directory %q is %w (%w)", dir, ErrInUse, err)
		}
		select {
		case <-bounded.Done():
			if ctx.Err() != nil {
				_ = lock.Close()
				return nil, context.Cause(ctx)
			}
		case <-time.After(lockPause):
		}
	}
}

func startLocked(ctx context.Context, cfg EmbeddedConfig) (*Embedded, error) {
	id, err := readIdentity(cfg.Dir)
	if err != nil {
		return nil, err
	}
	var server *embed.Etcd
	failed := newFailure(cfg.Dir)
	for _, addr := range cfg.listenAddrs(id) {
		var options *embed.Config
		if options, err = cfg.options(addr, id.ClusterToken); err != nil {
			return nil, err
		}
		if options.ZapLoggerBuilder, err = failed.logger(); err != nil {
			return nil, failed.explain(err)
		}
		if server, err = failed.start(options); !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	if err != nil {
		return nil, failed.explain(err)
	}
	bound := dialable(server.Clients[0].Addr().String())
	e := &Embedded{etcd: server, endpoint: "http://" + bound, advertised: "http://" + cmp.Or(cfg.Advertise, bound), failure: failed, err: make(chan error, 1), closing: make(chan struct{})}
	if err := e.ready(ctx, cfg.ReadyTimeout); err != nil {
		e.stop()
		return nil, failed.explain(err)
	}
	id.ClientAddr = bound
	if err := id.write(cfg.Dir); err != nil {
		e.stop()
		return nil, failed.explain(err)
	}
	e.watcher.Go(e.watch)
	return e, nil
}

func (e *Embedded) ready(ctx context.Context, patience time.Duration) error {
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case <-e.etcd.Server.ReadyNotify():
		return nil
	case <-e.etcd.Server.StopNotify():
		return errors.New("it stopped while starting")
	case err := <-e.etcd.Err():
		return err
	case <-e.failure.happened:
		return e.failure.err
	case <-timeout.C:
		return fmt.Errorf("not ready after %v", patience)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// listenAddrs are the addresses to try, in order.
func (c EmbeddedConfig) listenAddrs(id identity) []string {
	switch {
	case c.ClientURL != "" && !strings.HasSuffix(c.ClientURL, ":0"):
		return []string{strings.TrimPrefix(c.ClientURL, "http://")}
	//guard:embedded-port-of-loopback
	case isLoopback(id.ClientAddr): // another address, of a former pod perhaps, may not be of this machine any more
		return []string{id.ClientAddr, "127.0.0.1:0"}
	}
	return []string{"127.0.0.1:0"}
}

func (c EmbeddedConfig) options(addr, clusterToken string) (*embed.Config, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("client URL %q: want host:port: %w", addr, err)
	}
	ip := net.ParseIP(host)
	if host != "localhost" && ip == nil {
		return nil, fmt.Errorf("client URL %q: expected an IP address of this machine and a port, such as 127.0.0.1:2379", addr)
	}
	if ip != nil && ip.IsUnspecified() && c.Advertise == "" {
		return nil, fmt.Errorf("client URL %q: expected an address to advertise, because no process can dial this one", addr)
	}
	client := url.URL{Scheme: "http", Host: addr}
	advertised := url.URL{Scheme: "http", Host: cmp.Or(c.Advertise, addr)}
	// No process dials the only member's peer port: any free port is suitable.
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}

	options := embed.NewConfig()
	options.Name = "embedded"
	options.Dir = filepath.Join(c.Dir, embeddedData)
	options.ListenClientUrls = []url.URL{client}
	options.AdvertiseClientUrls = []url.URL{advertised}
	options.ListenPeerUrls = []url.URL{peer}
	options.AdvertisePeerUrls = []url.URL{peer}
	options.InitialCluster = options.InitialClusterFromName(options.Name)
	options.InitialClusterToken = clusterToken
	options.EnableGRPCGateway = false
	options.Logger = "zap"
	options.UnsafeNoFsync = c.UnsafeNoFsync
	if c.QuotaBytes > 0 {
		options.QuotaBackendBytes = c.QuotaBytes
	}
	if c.MaxRequestBytes > 0 {
		options.MaxRequestBytes = c.MaxRequestBytes
	}
	return options, nil
}

func readIdentity(dir string) (identity, error) {
	path := filepath.Join(dir, embeddedIdentity)
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return identity{ClusterToken: rand.Text()}, nil
	}
	if err != nil {
		return identity{}, err
	}
	var id identity
	if err := json.Unmarshal(b, &id); err != nil {
		return identity{}, fmt.Errorf("%s: want JSON {cluster_token, client_addr}: %w; delete it: only the port and the name of a new cluster are in it", path, err)
	}
	return id, nil
}

func (id identity) write(dir string) error {
	b, err := json.Marshal(id)
	if err != nil {
		return fmt.Errorf("encode %s: %w", embeddedIdentity, err)
	}
	path := filepath.Join(dir, embeddedIdentity)
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// watch reports the end of the server, expected or not.
func (e *Embedded) watch() {
	select {
	case err, open := <-e.etcd.Err():
		if open && err != nil {
			e.err <- fmt.Errorf("embedded etcd at %s: %w", e.endpoint, e.failure.explain(err))
		}
	case <-e.failure.happened:
		e.err <- e.failure.err
	case <-e.closing: // stop ends it
	case <-e.etcd.Server.StopNotify():
	}
	close(e.err)
}

// Endpoint is what goes into Config.Endpoints of processes on this machine: http://127.0.0.1:PORT by default.
func (e *Embedded) Endpoint() string { return e.endpoint }

// Advertised is what goes into Config.Endpoints of other processes.
func (e *Embedded) Advertised() string { return e.advertised }

// dialable replaces the address of all interfaces by that of loopback.
func dialable(bound string) string {
	host, port, err := net.SplitHostPort(bound)
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return bound
}

// isLoopback reports whether host:port is on the loopback interface.
func isLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// Err yields the reason if the server ends without Close, for example [ErrDiskFull], and closes when it has ended.
func (e *Embedded) Err() <-chan error { return e.err }

// Close stops the server and releases the directory. Close its clients first: it waits seconds for clients that still watch.
func (e *Embedded) Close() {
	close(e.closing)
	e.watcher.Wait()
	e.stop()
	_ = e.lock.Close() // the lock goes with the descriptor
}

// stop ends the server. A server that failed is left as it is: its goroutines stand where they failed, and
// etcd would wait for them.
func (e *Embedded) stop() {
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		e.etcd.Close()
	}()
	select {
	case <-stopped:
	case <-e.failure.happened:
	}
}
