package e2e

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"trainmaster/internal/freeport"
)

// tlsProxy is a proxy before a master, as an ingress is: it ends TLS and refuses a request without the token that it expects.
type tlsProxy struct {
	addr   string
	caFile string
	token  atomic.Pointer[string]
}

func startTLSProxy(t *testing.T, master string) *tlsProxy {
	t.Helper()
	var plain http.Protocols
	plain.SetUnencryptedHTTP2(true)
	forward := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: master})
	forward.Transport, forward.FlushInterval = &http.Transport{Protocols: &plain}, -1
	p := &tlsProxy{caFile: filepath.Join(t.TempDir(), "ca.pem")}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+*p.token.Load() {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		forward.ServeHTTP(w, r)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	p.addr = server.Listener.Addr().String()
	write(t, p.caFile, encoded(server.Certificate().Raw))
	return p
}

// F549: the token file changes while the agent runs, as Kubernetes replaces the tokens of pods.
func TestAgentUsesATLSProxyWithAToken(t *testing.T) {
	j := newJob(t)
	addr, err := freeport.Addr("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	j.master("--passes", "1", "--listen", addr)
	proxy := startTLSProxy(t, addr)
	file := filepath.Join(t.TempDir(), "token")
	expect := func(token string) {
		write(t, file, token+"\n")
		proxy.token.Store(&token)
	}
	expect("one")
	a := startAgent(t, j.dir, "--addr", proxy.addr, "--ca-file", proxy.caFile, "--token-file", file, "--id", "python")
	a.call("hello", map[string]any{"version": 1, "sdk": "0"})
	expect("two")
	a.call("report", map[string]any{"paths": j.data.Train.Paths})
	tasks := a.walk()
	a.call("close", nil)
	if err := a.cmd.Wait(); err != nil {
		t.Error(err)
	}
	j.wantVerified(1, tasks)
}

// F549: an agent trusts only the authorities of its file, and logs why it gets no answer.
func TestAgentSaysWhyAProxyRefusesIt(t *testing.T) {
	j := newJob(t)
	addr, err := freeport.Addr("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	j.master("--listen", addr)
	proxy := startTLSProxy(t, addr)
	token, file, other := "one", filepath.Join(t.TempDir(), "token"), filepath.Join(t.TempDir(), "other.pem")
	write(t, other, authority(t))
	proxy.token.Store(&token)
	write(t, file, "two")
	for caFile, reason := range map[string]string{
		proxy.caFile: "level=warning msg=\"no master at this address, trying on\" call=Join error=\"expected a master at " + proxy.addr + ", found a program that refuses this trainer",
		other:        "level=warning msg=\"no master at this address, trying on\" call=Join error=\"expected a master at " + proxy.addr + ", found a program without TLS, or with another certificate",
	} {
		a := startAgent(t, j.dir, "--addr", proxy.addr, "--ca-file", caFile, "--token-file", file, "--id", "python")
		a.send("hello", map[string]any{"version": 1, "sdk": "0", "wait": 60})
		eventually(t, "the reason in the log", func() (bool, string) {
			said := a.said()
			return strings.Contains(said, reason), said
		})
	}
}

// authority returns the certificate of an authority that has made no other certificate.
func authority(t *testing.T) string {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	of := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now, NotAfter: now.Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	raw, err := x509.CreateCertificate(nil, of, of, public, private)
	if err != nil {
		t.Fatal(err)
	}
	return encoded(raw)
}

func encoded(certificate []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}))
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
