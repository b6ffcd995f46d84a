// Package httpproxy implements an HTTP proxy that simulates faults of a server which a proxy of bytes cannot: refusals, answers with a wrong
// length, and lost, cut or slow answers.
package httpproxy

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Fault is what is wrong with one answer. The zero value is no fault.
type Fault struct {
	Methods    string        // methods of the requests, such as "PUT POST"; "": all.
	Status     int           // the server does not receive the request, and the answer is this status.
	LoseAnswer bool          // the server executes the request, and the connection ends without an answer.
	CutAfter   int64         // the connection ends after that many bytes of the body; 0: it does not.
	Missing    int64         // the body lacks that many bytes at its end, and Content-Length is right for the rest.
	Damage     bool          // the first byte of the body is wrong.
	Headers    http.Header   // replace headers of the answer; a header without values is removed.
	Delay      time.Duration // before the answer.
}

// Proxy forwards requests to one server. New starts it, Close stops it.
type Proxy struct {
	server    *http.Server
	transport *http.Transport
	listener  net.Listener
	ended     chan struct{}

	mu       sync.Mutex
	target   string        // guarded by mu
	fault    Fault         // guarded by mu
	times    int           // requests that get the fault, guarded by mu
	requests int           // guarded by mu
	last     *http.Request // guarded by mu
	replace  func()        // called before the next request is forwarded, guarded by mu
}

// New listens on a port of 127.0.0.1, and forwards requests to target, host:port.
func New(target string) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: listener, target: target, ended: make(chan struct{}), transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}}
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: time.Minute}
	go func() {
		defer close(p.ended)
		p.server.Serve(listener) //nolint:errcheck // it ends with Close
	}()
	return p, nil
}

// Addr is the proxy's own host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Close stops the proxy and closes all connections.
func (p *Proxy) Close() {
	p.server.Close() //nolint:errcheck // the listener is closed anyway
	<-p.ended
	p.transport.CloseIdleConnections()
}

// Inject gives the next requests of the fault's methods a fault. A later call replaces it.
func (p *Proxy) Inject(times int, f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.times, p.fault = times, f
}

// Before calls change once, before the next request is forwarded.
func (p *Proxy) Before(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.replace = change
}

// Requests is the number of requests since the last call.
func (p *Proxy) Requests() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.requests
	p.requests = 0
	return n
}

// Last is the last request. Its body is gone.
func (p *Proxy) Last() *http.Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

// next returns the fault of a request.
func (p *Proxy) next(in *http.Request) (f Fault, before func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests++
	p.last = in
	before, p.replace = p.replace, nil
	if p.times > 0 && (p.fault.Methods == "" || strings.Contains(p.fault.Methods, in.Method)) {
		p.times--
		f = p.fault
	}
	return f, before
}

// ServeHTTP forwards one request. It keeps the Host header of the client, since signatures contain it.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, in *http.Request) {
	fault, before := p.next(in)
	if before != nil {
		before()
	}
	if fault.Status != 0 {
		io.Copy(io.Discard, in.Body) //nolint:errcheck // the answer does not depend on it
		http.Error(w, fmt.Sprintf("<Error><Code>%s</Code></Error>", strings.ReplaceAll(http.StatusText(fault.Status), " ", "")), fault.Status)
		return
	}
	time.Sleep(fault.Delay) // the fault
	out := in.Clone(in.Context())
	out.URL.Scheme, out.URL.Host, out.RequestURI = "http", p.target, ""
	answer, err := p.transport.RoundTrip(out)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer answer.Body.Close()
	if fault.LoseAnswer {
		io.Copy(io.Discard, answer.Body) //nolint:errcheck // it is lost
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), answer.Header)
	maps.Copy(w.Header(), fault.Headers)
	length := answer.ContentLength
	if length >= 0 {
		length = max(length-fault.Missing, 0)
		w.Header().Set("Content-Length", strconv.FormatInt(length, 10))
	}
	w.WriteHeader(answer.StatusCode)
	body := io.Reader(answer.Body)
	if fault.Damage {
		body = damaged(body)
	}
	if fault.CutAfter > 0 && (length < 0 || length > fault.CutAfter) {
		io.CopyN(w, body, fault.CutAfter) //nolint:errcheck // the connection ends anyway
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	if length >= 0 && in.Method != http.MethodHead {
		io.CopyN(w, body, length) //nolint:errcheck // a client that goes away
		return
	}
	io.Copy(w, body) //nolint:errcheck // a client that goes away
}

// damaged changes the first byte of r.
func damaged(r io.Reader) io.Reader {
	first := make([]byte, 1)
	n, _ := io.ReadFull(r, first) //nolint:errcheck // an empty body stays empty
	first[0] ^= 1
	return io.MultiReader(bytes.NewReader(first[:n]), r)
}
