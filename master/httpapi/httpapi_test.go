package httpapi_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/ledger"
	"trainmaster/master"
	"trainmaster/master/httpapi"
	"trainmaster/master/mastertest"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

// hungSealer is a sealer with a directory that has not answered for 42 s.
type hungSealer struct{}

func (hungSealer) Check(context.Context, string) error { return nil }

func (hungSealer) Run(ctx context.Context, _ ledger.Lock, _ string, _ func() ledger.Progress) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func (hungSealer) Status() ledger.Status {
	return ledger.Status{Sealed: 7, Dir: "/mnt/ledger/default", Hangs: 42 * time.Second}
}

// serve starts a master and its HTTP server. If lead is false, the master does not campaign.
func serve(t *testing.T, lead bool) (base string, m *master.Master) {
	t.Helper()
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	log := logrus.NewEntry(quiet)
	m, err := master.New(master.Config{Store: etcdtest.Store(t), Ledger: hungSealer{}, Log: log, Advertise: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	n := 1
	go func() {
		done <- httpapi.New(m, func(context.Context) (int64, int64, error) { return 123, 456, nil }, log).Serve(ctx, l)
	}()
	if lead {
		n++
		go func() { done <- m.Run(ctx) }()
	}
	t.Cleanup(func() {
		cancel()
		for range n {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return "http://" + l.Addr().String(), m
}

func get(t *testing.T, url string) (code int, body string) {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

func TestBeforeTheLock(t *testing.T) {
	base, _ := serve(t, false)
	if code, _ := get(t, base+"/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: got %d, expected 200 from a running process", code)
	}
	if code, body := get(t, base+"/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "not ready") {
		t.Errorf("/readyz: %d %q, expected 503 with the reason", code, body)
	}
	if code, body := get(t, base+"/metrics"); code != http.StatusOK || !strings.Contains(body, "trainmaster_leading 0") || strings.Contains(body, "trainmaster_commits_total") {
		t.Errorf("/metrics: got %d, expected the role and no metric of a job:\n%s", code, body)
	}
}

func TestLeader(t *testing.T) {
	base, m := serve(t, true)
	mastertest.Eventually(t, "leadership", m.Leading)
	if code, body := get(t, base+"/readyz"); code != http.StatusOK || body != "leader\n" {
		t.Errorf("/readyz: %d %q, expected 200 leader", code, body)
	}
	_, body := get(t, base+"/metrics")
	if !strings.Contains(body, "trainmaster_commits_total ") {
		t.Error("/metrics: expected trainmaster_commits_total")
	}
	for _, line := range []string{"trainmaster_leading 1", "trainmaster_trainers 0", "trainmaster_store_bytes 123", "trainmaster_store_quota_bytes 456", "trainmaster_ledger_sealed_commit 7", "trainmaster_ledger_hang_seconds 42"} {
		if !strings.Contains(body, line+"\n") {
			t.Errorf("/metrics: expected %q", line)
		}
	}
}

func TestOnlyReads(t *testing.T) {
	base, _ := serve(t, false)
	r, err := http.Post(base+"/readyz", "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST /readyz: %d, expected 405", r.StatusCode)
	}
}
