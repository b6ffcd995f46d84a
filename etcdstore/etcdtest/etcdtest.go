// Package etcdtest implements etcd servers for the tests of every package.
//
// A package's TestMain calls [Main]. Then [Store] opens a store on the one embedded etcd of the test binary, with a job of its
// own per call, so that tests cannot see each other. [StartProcess] runs an etcd in a process that can be killed and started
// again on the same data. [StartCluster] runs an etcd of three members. [StartProxy] proxies an etcd and drops, holds or
// delays its traffic. All ports are chosen by the kernel, on 127.0.0.1.
package etcdtest

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"trainmaster/etcdstore"
)

// shared is the embedded etcd of this test binary, started when first asked for.
var shared struct {
	mu   sync.Mutex
	dir  string
	etcd *etcdstore.Embedded
}

// Main runs the tests, stops the embedded etcd if one was started, checks for
// leaked goroutines and exits. It also is what [StartProcess] runs in a child.
func Main(m *testing.M, options ...goleak.Option) {
	if dir := os.Getenv(processDirEnv); dir != "" {
		os.Exit(serveProcess(dir))
	}
	processReady.Store(true)
	goleak.VerifyTestMain(tests{m}, options...)
}

// tests stops etcd before goleak looks.
type tests struct{ m *testing.M }

func (t tests) Run() int {
	defer stopShared()
	return t.m.Run()
}

func stopShared() {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.etcd != nil {
		shared.etcd.Close()
		_ = os.RemoveAll(shared.dir)
	}
}

// Endpoint is the embedded etcd of this test binary. It does not fsync.
func Endpoint(t testing.TB) string {
	t.Helper()
	if !processReady.Load() {
		t.Fatal("etcdtest: TestMain must call etcdtest.Main(m)")
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.etcd == nil {
		dir, err := os.MkdirTemp("", "etcdtest-")
		if err != nil {
			t.Fatal(err)
		}
		etcd, err := etcdstore.StartEmbedded(context.Background(), etcdstore.EmbeddedConfig{Dir: dir, UnsafeNoFsync: true})
		if err != nil {
			_ = os.RemoveAll(dir)
			t.Fatal(err)
		}
		shared.dir, shared.etcd = dir, etcd
	}
	return shared.etcd.Endpoint()
}

var jobs atomic.Int64

// NewJob is a job name that no other call in this process returns.
func NewJob(t testing.TB) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, t.Name())
	return fmt.Sprintf("%.100s-%d", strings.TrimLeft(name, "-"), jobs.Add(1))
}

// Store opens a store under a new job on the embedded etcd of this test binary.
// It closes with the test.
func Store(t testing.TB) *etcdstore.Store {
	t.Helper()
	return Open(t, Endpoint(t), NewJob(t))
}

// Open opens a store under a job that may be another store's too. endpoint may be several
// of a cluster, with commas between them. It closes with the test.
func Open(t testing.TB, endpoint, job string) *etcdstore.Store {
	t.Helper()
	s, err := etcdstore.Open(context.Background(), etcdstore.Config{Endpoints: strings.Split(endpoint, ","), Job: job, OwnEtcd: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}
