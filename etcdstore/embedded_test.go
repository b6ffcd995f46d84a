package etcdstore_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/internal/freeport"
)

func embedded(t *testing.T, cfg etcdstore.EmbeddedConfig) *etcdstore.Embedded {
	t.Helper()
	e, err := etcdstore.StartEmbedded(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestEmbeddedKeepsDataAndPort(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	job := etcdtest.NewJob(t)
	write := func(expect, next string) string {
		e := embedded(t, etcdstore.EmbeddedConfig{Dir: dir})
		defer e.Close()
		s, err := etcdstore.Open(t.Context(), etcdstore.Config{Endpoints: []string{e.Endpoint()}, Job: job})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		value, mod, err := s.State(t.Context())
		if err != nil || string(value) != expect {
			t.Fatalf("found %q, %v; want %q", value, err, expect)
		}
		lock := lead(t, s, "a")
		commit(t, lock, mod, next)
		if err := lock.Resign(t.Context()); err != nil {
			t.Error(err)
		}
		return e.Endpoint()
	}
	first := write("", "one")
	if second := write("one", "two"); second != first {
		t.Errorf("served at %s, then at %s", first, second)
	}
	// The port is taken, by this test or by another process: the next start uses another port.
	if taken, err := net.Listen("tcp", strings.TrimPrefix(first, "http://")); err == nil {
		defer func() { _ = taken.Close() }()
	}
	if third := write("two", "three"); third == first || !strings.HasPrefix(third, "http://127.0.0.1:") {
		t.Errorf("expected another port than %s", third)
	}
}

// In a pod, etcd listens on all interfaces. After the move of the directory to another machine, the former address is not used.
func TestEmbeddedListensForOtherMachines(t *testing.T) {
	t.Parallel()
	addr, err := freeport.Addr("127.0.0.2")
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	e := embedded(t, etcdstore.EmbeddedConfig{Dir: dir, ClientURL: "0.0.0.0:" + port, Advertise: "etcd.example:" + port, UnsafeNoFsync: true})
	if e.Endpoint() != "http://127.0.0.1:"+port || e.Advertised() != "http://etcd.example:"+port {
		t.Errorf("endpoint %s, advertised %s", e.Endpoint(), e.Advertised())
	}
	if running, err := etcdstore.RunningEmbedded(dir); err != nil || running != e.Endpoint() {
		t.Errorf("running at %q, %v", running, err)
	}
	job := etcdtest.NewJob(t)
	for _, endpoint := range []string{addr, e.Endpoint()} {
		s, err := etcdstore.Open(t.Context(), etcdstore.Config{Endpoints: []string{endpoint}, Job: job})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	e.Close()
	path := filepath.Join(dir, "embedded.json")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	moved := strings.Replace(string(content), "127.0.0.1:"+port, "192.0.2.1:"+port, 1) // no address of this machine
	if err := os.WriteFile(path, []byte(moved), 0o600); err != nil {
		t.Fatal(err)
	}
	e = embedded(t, etcdstore.EmbeddedConfig{Dir: dir, UnsafeNoFsync: true})
	defer e.Close()
	if !strings.HasPrefix(e.Endpoint(), "http://127.0.0.1:") {
		t.Errorf("endpoint %s", e.Endpoint())
	}
}

func TestEmbeddedEndsOnce(t *testing.T) {
	e := embedded(t, etcdstore.EmbeddedConfig{Dir: t.TempDir(), UnsafeNoFsync: true})
	if !strings.HasPrefix(e.Endpoint(), "http://127.0.0.1:") {
		t.Errorf("endpoint %s", e.Endpoint())
	}
	e.Close()
	if err, more := <-e.Err(); more {
		t.Errorf("ordinary end: got error %v", err)
	}
}

func TestEmbeddedRefusals(t *testing.T) {
	inUse := t.TempDir()
	e := embedded(t, etcdstore.EmbeddedConfig{Dir: inUse, UnsafeNoFsync: true})
	defer e.Close()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	taken := strings.TrimPrefix(e.Endpoint(), "http://")
	damaged := t.TempDir()
	if err := os.WriteFile(filepath.Join(damaged, "embedded.json"), []byte("?"), 0o600); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		cfg  etcdstore.EmbeddedConfig
		says string
	}{
		"in use":          {etcdstore.EmbeddedConfig{Dir: inUse}, "in use by another process"},
		"no directory":    {etcdstore.EmbeddedConfig{}, "expected a data directory"},
		"a file":          {etcdstore.EmbeddedConfig{Dir: file}, "create data directory"},
		"below a file":    {etcdstore.EmbeddedConfig{Dir: filepath.Join(file, "x")}, "create data directory"},
		"all interfaces":  {etcdstore.EmbeddedConfig{Dir: t.TempDir(), ClientURL: "0.0.0.0:2379"}, "expected an address to advertise"},
		"a host name":     {etcdstore.EmbeddedConfig{Dir: t.TempDir(), ClientURL: "etcd.example:2379"}, "expected an IP address"},
		"no port":         {etcdstore.EmbeddedConfig{Dir: t.TempDir(), ClientURL: "127.0.0.1"}, "host:port"},
		"a port in use":   {etcdstore.EmbeddedConfig{Dir: t.TempDir(), ClientURL: taken}, "address already in use"},
		"damaged records": {etcdstore.EmbeddedConfig{Dir: damaged}, "delete it"},
	}
	if os.Getuid() != 0 { // root may write to any file
		readOnly := t.TempDir()
		if err := os.Chmod(readOnly, 0o500); err != nil {
			t.Fatal(err)
		}
		cases["not writable"] = struct {
			cfg  etcdstore.EmbeddedConfig
			says string
		}{etcdstore.EmbeddedConfig{Dir: readOnly}, "permission denied"}
	}
	for name, c := range cases {
		got, err := etcdstore.StartEmbedded(t.Context(), c.cfg)
		if err == nil {
			got.Close()
			t.Errorf("%s: started", name)
		} else if !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q in it", name, err, c.says)
		}
	}
}

// A directory that cannot be read is an error, not a directory without etcd.
func TestIsEmbeddedReportsUnreadableFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if is, err := etcdstore.IsEmbedded(t.TempDir()); is || err != nil {
		t.Errorf("empty directory: %t, %v", is, err)
	}
	if is, err := etcdstore.IsEmbedded(file); is || err == nil {
		t.Errorf("a file instead of a directory: got %t, %v, expected an error", is, err)
	}
	if os.Getuid() == 0 {
		return // root may read any file
	}
	closed := t.TempDir()
	if err := os.Chmod(closed, 0o000); err != nil {
		t.Fatal(err)
	}
	if is, err := etcdstore.IsEmbedded(closed); is || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("unreadable directory: got %t, %v, expected a permission error", is, err)
	}
}

func TestRunningEmbeddedNamesEndpoint(t *testing.T) {
	dir := t.TempDir()
	if at, err := etcdstore.RunningEmbedded(dir); at != "" || err != nil {
		t.Errorf("empty directory: %q, %v", at, err)
	}
	e := embedded(t, etcdstore.EmbeddedConfig{Dir: dir, UnsafeNoFsync: true})
	if at, err := etcdstore.RunningEmbedded(dir); at != e.Endpoint() || err != nil {
		t.Errorf("running: %q, %v, want %s", at, err, e.Endpoint())
	}
	e.Close()
	if at, err := etcdstore.RunningEmbedded(dir); at != "" || err != nil {
		t.Errorf("ended: %q, %v", at, err)
	}
}
