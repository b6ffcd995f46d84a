package etcdtest

import (
	"strings"
	"testing"

	"trainmaster/internal/tcpproxy"
)

// Proxy stands before an etcd, or another server, for the length of a test.
type Proxy struct{ *tcpproxy.Proxy }

// StartProxy starts a proxy before endpoint. It ends with the test.
func StartProxy(t testing.TB, endpoint string) *Proxy {
	t.Helper()
	p, err := tcpproxy.New(strings.TrimPrefix(endpoint, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return &Proxy{p}
}

// Endpoint is http://127.0.0.1:PORT of the proxy.
func (p *Proxy) Endpoint() string { return "http://" + p.Addr() }
