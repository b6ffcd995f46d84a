package etcdstore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
)

// Config is what etcdctl's flags say, and the job.
type Config struct {
	Endpoints []string // host:port, or http(s)://host:port
	CACert    string   // file; with it, or with Cert and Key, the connection is TLS
	Cert      string   // file
	Key       string   // file
	User      string   // name, or name:password as etcdctl takes it
	Password  string

	// DialTimeout bounds the first answer of etcd. Default 5 s.
	DialTimeout time.Duration

	// Job is the name of the job. "" and "default" have no key prefix, others
	// live under /jobs/NAME.
	Job string

	// OwnEtcd means that no other application uses this etcd, so that its history may be compacted.
	OwnEtcd bool
}

const defaultDialTimeout = 5 * time.Second

// A dead connection is noticed within keepAliveTime + keepAliveTimeout; unsent
// bytes on it within keepAliveTimeout.
const (
	keepAliveTime    = 10 * time.Second
	keepAliveTimeout = 3 * time.Second
)

// reconnect bounds the pause between attempts to connect: gRPC's own default
// grows to two minutes, and etcd may be back long before.
var reconnect = grpc.ConnectParams{
	Backoff:           grpcbackoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
	MinConnectTimeout: 3 * time.Second,
}

var jobName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// Validate names the first field that cannot be used, as its flag is named.
func (c Config) Validate() error {
	if len(c.Endpoints) == 0 {
		return errors.New("endpoints: none given; name at least one host:port of etcd")
	}
	for _, endpoint := range c.Endpoints {
		if err := validateEndpoint(endpoint); err != nil {
			return fmt.Errorf("endpoints: %q: %w", endpoint, err)
		}
	}
	switch {
	case c.Job != "" && !jobName.MatchString(c.Job):
		return fmt.Errorf("job: %q is not a name; use up to 128 letters, digits, '.', '_' and '-'", c.Job)
	case (c.Cert == "") != (c.Key == ""):
		return fmt.Errorf("cert, --key: give both or none, found cert %q and key %q", c.Cert, c.Key)
	case c.DialTimeout < 0:
		return fmt.Errorf("dial-timeout: expected 0 (the default, %v) or more, found %v", defaultDialTimeout, c.DialTimeout)
	}
	_, err := c.tls()
	return err
}

// validateEndpoint takes host:port and http(s)://host:port.
func validateEndpoint(endpoint string) error {
	address := endpoint
	if scheme, rest, ok := strings.Cut(endpoint, "://"); ok {
		if scheme != "http" && scheme != "https" {
			return fmt.Errorf("expected http:// or https://, if anything stands before the address, found %s://", scheme)
		}
		address = strings.TrimSuffix(rest, "/")
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		return errors.New("expected host:port, such as 127.0.0.1:2379")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("expected a port from 1 to 65535, found %q", port)
	}
	return nil
}

func (c Config) prefix() string {
	if c.Job == "" || c.Job == "default" {
		return ""
	}
	return jobsPrefix + c.Job
}

func (c Config) credentials() (user, password string) {
	if c.Password != "" {
		return c.User, c.Password
	}
	user, password, _ = strings.Cut(c.User, ":")
	return user, password
}

func (c Config) tls() (*tls.Config, error) {
	if c.CACert == "" && c.Cert == "" {
		return nil, nil
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CACert != "" {
		pem, err := os.ReadFile(c.CACert)
		if err != nil {
			return nil, fmt.Errorf("cacert: expected a PEM file of certificates: %w", err)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("cacert: %q: expected a PEM file of certificates, found none in it", c.CACert)
		}
	}
	if c.Cert != "" {
		load := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
			return &pair, err
		}
		if _, err := load(); err != nil {
			return nil, fmt.Errorf("cert, --key: %q and %q: expected a certificate and its key: %w", c.Cert, c.Key, err)
		}
		// Read again at every handshake: a renewed file is used without a restart.
		out.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	return out, nil
}

// Store is a connection to etcd and a job's prefix in it.
type Store struct {
	client    *clientv3.Client
	kv        pb.KVClient
	leases    pb.LeaseClient
	prefix    string
	endpoints []string
	ownEtcd   bool
	callOpts  []grpc.CallOption

	ctx    context.Context // ends with Close; what outlives a call hangs on it
	cancel context.CancelFunc
	wg     sync.WaitGroup // everything that hangs on ctx

	mu     sync.Mutex
	closed bool // guarded by mu

	clusterID uint64
	revision  atomic.Int64 // the greatest that etcd said
}

// Open connects and verifies that etcd answers a linearizable read under the
// job's prefix. It returns [ErrUnreachable] or [ErrRefused], wrapped with the
// endpoint, what happened and what to do; other errors are about cfg.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	tlsConfig, err := cfg.tls()
	if err != nil {
		return nil, err
	}
	if cfg.DialTimeout == 0 {
		cfg.DialTimeout = defaultDialTimeout
	}
	began := time.Now()
	opening, stop := context.WithTimeout(ctx, cfg.DialTimeout)
	defer stop()

	s := &Store{
		prefix:    cfg.prefix(),
		endpoints: cfg.Endpoints,
		ownEtcd:   cfg.OwnEtcd,
		callOpts: []grpc.CallOption{
			grpc.WaitForReady(true),
			grpc.MaxCallSendMsgSize(math.MaxInt32),
			grpc.MaxCallRecvMsgSize(math.MaxInt32),
		},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	detach := context.AfterFunc(opening, s.cancel)
	if err := s.connect(opening, cfg, tlsConfig); err != nil {
		s.cancel()
		if s.client != nil {
			_ = s.client.Close() // its only error is that it was canceled
		}
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil, fmt.Errorf("open etcd: %w", ctx.Err())
		}
		return nil, s.explain(context.WithoutCancel(ctx), cfg, time.Since(began), err)
	}
	if !detach() {
		_ = s.Close()
		return nil, fmt.Errorf("open etcd: %w", opening.Err())
	}
	return s, nil
}

func (s *Store) connect(ctx context.Context, cfg Config, tlsConfig *tls.Config) error {
	user, password := cfg.credentials()
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            cfg.Endpoints,
		DialTimeout:          cfg.DialTimeout,
		DialKeepAliveTime:    keepAliveTime,
		DialKeepAliveTimeout: keepAliveTimeout,
		TLS:                  tlsConfig,
		Username:             user,
		Password:             password,
		MaxUnaryRetries:      1, // see the package doc
		Logger:               zap.NewNop(),
		Context:              s.ctx,
		DialOptions:          []grpc.DialOption{grpc.WithConnectParams(reconnect)},
	})
	if err != nil {
		return err
	}
	s.client = client
	s.kv = pb.NewKVClient(client.ActiveConnection())
	s.leases = pb.NewLeaseClient(client.ActiveConnection())
	// Not waiting for a connection, so that a refused one is reported as such.
	answer, err := s.kv.Range(ctx, &pb.RangeRequest{Key: []byte(s.abs(keyState)), CountOnly: true}, grpc.WaitForReady(false))
	if err != nil {
		return err
	}
	s.clusterID = answer.Header.ClusterId
	return nil
}

// OpenRetry opens, and while etcd is unreachable tries again with jitter, until ctx ends. failed (may be nil) receives every
// failure and the pause that follows. A refusal or a wrong configuration is returned immediately.
func OpenRetry(ctx context.Context, cfg Config, failed func(err error, next time.Duration)) (*Store, error) {
	pause := backoff{least: 200 * time.Millisecond, most: 5 * time.Second}
	for {
		s, err := Open(ctx, cfg)
		if err == nil || !errors.Is(err, ErrUnreachable) {
			return s, err
		}
		next := pause.next()
		if failed != nil {
			failed(err, next)
		}
		if sleep(ctx, next) != nil {
			return nil, err
		}
	}
}

// Client is the raw client, for requests that this package does not provide. Its unary calls are never repeated automatically.
func (s *Store) Client() *clientv3.Client { return s.client }

// OwnEtcd reports whether no other application uses this etcd.
func (s *Store) OwnEtcd() bool { return s.ownEtcd }

// Prefix is what stands before every key of the job: "" or "/jobs/NAME".
func (s *Store) Prefix() string { return s.prefix }

// ClusterID is the id of the etcd cluster that answers now.
func (s *Store) ClusterID(ctx context.Context) (uint64, error) {
	answer, err := s.get(ctx, s.abs(keyState), clientv3.WithCountOnly())
	if err != nil {
		return 0, fmt.Errorf("read cluster id: %w", err)
	}
	return answer.Header.ClusterId, nil
}

// Close ends every watch, lock and claim of this store without releasing them in etcd (their leases run out; Resign and
// Release give them back), waits for its goroutines, and disconnects.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.cancel()
	s.mu.Unlock()
	s.wg.Wait()
	if err := s.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("close etcd client: %w", err)
	}
	return nil
}

// spawn runs f until Close has waited for it. f ends with the store's context;
// after Close it runs in the caller, and finds that context ended.
func (s *Store) spawn(f func()) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		f()
		return
	}
	s.wg.Go(f)
	s.mu.Unlock()
}

// abs is the key in etcd of a key of the job.
func (s *Store) abs(key string) string { return s.prefix + key }
