package etcdstore_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/internal/freeport"
)

// freeAddress returns a loopback address without a listener.
func freeAddress(t *testing.T) string {
	t.Helper()
	addr, err := freeport.Addr("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

func TestOpenErrorsNameCause(t *testing.T) {
	t.Parallel()
	unused := freeAddress(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, never answers
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	cases := map[string]struct {
		cfg  etcdstore.Config
		is   error
		says []string
	}{
		"no listener":         {etcdstore.Config{Endpoints: []string{unused}}, etcdstore.ErrUnreachable, []string{unused, "connection refused", "--endpoints"}},
		"no listener, a user": {etcdstore.Config{Endpoints: []string{unused}, User: "u:p", DialTimeout: 3 * time.Second}, etcdstore.ErrUnreachable, []string{unused, "connection refused"}},
		"silence":             {etcdstore.Config{Endpoints: []string{silent.Addr().String()}, DialTimeout: time.Second}, etcdstore.ErrUnreachable, []string{"a process listens there but did not answer in ", "is etcd hung", "; name other --endpoints"}},
		"a hung etcd":         {etcdstore.Config{Endpoints: []string{silent.Addr().String()}, DialTimeout: time.Minute}, etcdstore.ErrUnreachable, []string{"a process listens there but did not answer in", "is etcd hung"}},
		"TLS to none":         {etcdstore.Config{Endpoints: []string{"https://" + strings.TrimPrefix(etcdtest.Endpoint(t), "http://")}, DialTimeout: 10 * time.Second}, etcdstore.ErrUnreachable, []string{"the server does not speak TLS: use http://"}},
		"no endpoint":         {etcdstore.Config{}, nil, []string{"endpoints"}},
		"no port":             {etcdstore.Config{Endpoints: []string{unused, "localhost"}}, nil, []string{"endpoints", `"localhost"`, "host:port"}},
		"no endpoints":        {etcdstore.Config{Endpoints: []string{""}}, nil, []string{"endpoints", "host:port"}},
		"port 0":              {etcdstore.Config{Endpoints: []string{"localhost:0"}}, nil, []string{"endpoints", "65535", `"0"`}},
		"a wrong scheme":      {etcdstore.Config{Endpoints: []string{"ftp://" + unused}}, nil, []string{"endpoints", "ftp", "http"}},
		"a wrong job":         {etcdstore.Config{Endpoints: []string{unused}, Job: "a/b"}, nil, []string{"job", "a/b"}},
		"half a pair":         {etcdstore.Config{Endpoints: []string{unused}, Cert: "x"}, nil, []string{"both or none"}},
		"no CA file":          {etcdstore.Config{Endpoints: []string{unused}, CACert: "/nowhere/ca.pem"}, nil, []string{"/nowhere/ca.pem"}},
	}
	for name, c := range cases {
		began := time.Now()
		s, err := etcdstore.Open(t.Context(), c.cfg)
		if err == nil {
			_ = s.Close()
			t.Errorf("%s: opened", name)
			continue
		}
		if c.is != nil && !errors.Is(err, c.is) || c.is == nil && errors.Is(err, etcdstore.ErrUnreachable) {
			t.Errorf("%s: %v, want %v", name, err, c.is)
		}
		for _, part := range c.says {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v does not say %q", name, err, part)
			}
		}
		if took := time.Since(began); took > 20*time.Second { // above the time on a busy machine, below the timeout of a hung etcd
			t.Errorf("%s: took %v", name, took)
		}
	}
}

func TestOpenRetryWaitsForEtcd(t *testing.T) { // F11
	t.Parallel()
	etcd := etcdtest.StartProcess(t, 0)
	etcd.Kill()
	tries := make(chan error, 100)
	opened := make(chan error, 1)
	go func() {
		s, err := etcdstore.OpenRetry(context.Background(), etcdstore.Config{Endpoints: []string{etcd.Endpoint()}},
			func(err error, next time.Duration) {
				if next <= 0 || next > 5*time.Second {
					t.Errorf("pause %v", next)
				}
				tries <- err
			})
		if err == nil {
			err = s.Close()
		}
		opened <- err
	}()
	for range 2 {
		if err := receive(t, "a failed try", tries); !errors.Is(err, etcdstore.ErrUnreachable) {
			t.Errorf("%v, want ErrUnreachable", err)
		}
	}
	etcd.Start()
	if err := receive(t, "the store", opened); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := etcdstore.OpenRetry(ctx, etcdstore.Config{Endpoints: []string{freeAddress(t)}}, func(error, time.Duration) { cancel() })
	if !errors.Is(err, etcdstore.ErrUnreachable) {
		t.Errorf("ended with %v, want the last failure", err)
	}
}

// Users as made with etcdctl: a role for one job, and a user without a role.
func TestUsers(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.StartProcess(t, 0)
	admin := etcdtest.Open(t, etcd.Endpoint(), "").Client()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(admin.UserAdd(t.Context(), "root", "rootpw"))
	must(admin.RoleAdd(t.Context(), "root"))
	must(admin.UserGrantRole(t.Context(), "root", "root"))
	must(admin.UserAdd(t.Context(), "alice", "secret"))
	must(admin.RoleAdd(t.Context(), "job-a"))
	must(admin.RoleGrantPermission(t.Context(), "job-a", "/jobs/a/", clientv3.GetPrefixRangeEnd("/jobs/a/"), clientv3.PermissionType(clientv3.PermReadWrite)))
	must(admin.UserGrantRole(t.Context(), "alice", "job-a"))
	must(admin.AuthEnable(t.Context()))

	config := func(user, password, job string) etcdstore.Config {
		return etcdstore.Config{Endpoints: []string{etcd.Endpoint()}, User: user, Password: password, Job: job, DialTimeout: patience}
	}
	for name, cfg := range map[string]etcdstore.Config{
		"no user":        config("", "", "a"),
		"wrong password": config("alice", "wrong", "a"),
		"unknown user":   config("bob", "x", "a"),
		"another job":    config("alice", "secret", "b"),
	} {
		s, err := etcdstore.Open(t.Context(), cfg)
		if err == nil {
			_ = s.Close()
		}
		if !errors.Is(err, etcdstore.ErrRefused) || !strings.Contains(err.Error(), etcd.Endpoint()) {
			t.Errorf("%s: %v, want ErrRefused with the endpoint", name, err)
		}
	}
	s, err := etcdstore.Open(t.Context(), config("alice:secret", "", "a"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	lock := lead(t, s, "a")
	mod := commit(t, lock, 0, "one")

	// The token becomes invalid during the test. The client renews it, and the commit is applied once.
	root, err := etcdstore.Open(t.Context(), config("root:rootpw", "", ""))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	must(root.Client().UserAdd(t.Context(), "carol", "x"))
	mod = commit(t, lock, mod, "two")
	wantState(t, s, "two", mod)
	if err := lock.Resign(t.Context()); err != nil {
		t.Error(err)
	}
}
