package drill

import (
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"trainmaster/internal/tcpproxy"
)

// command is the body of a request to the control: POST /proxies, with the secret in the header that secretHeader names.
type command struct {
	Proxy string `json:"proxy"` // name of its process; empty: all proxies
	State
}

const (
	controlPath    = "/proxies"
	secretHeader   = "Drill-Secret"
	controlTimeout = 5 * time.Second
	maxCommand     = 4 << 10
)

func serveControl(ctx context.Context, l net.Listener, secret string, proxies map[string]*tcpproxy.Proxy) error {
	routes := http.NewServeMux()
	routes.HandleFunc("POST "+controlPath, func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get(secretHeader)), []byte(secret)) != 1 {
			http.Error(w, "expected the secret of the run's "+SceneFile, http.StatusForbidden)
			return
		}
		var c command
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxCommand)).Decode(&c); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if c.Proxy != "" && proxies[c.Proxy] == nil {
			http.Error(w, fmt.Sprintf("no proxy for %q", c.Proxy), http.StatusNotFound)
			return
		}
		for name, p := range proxies {
			if c.Proxy == "" || c.Proxy == name {
				c.apply(p)
			}
		}
	})
	server := &http.Server{Handler: routes, ReadTimeout: controlTimeout, WriteTimeout: controlTimeout}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // Serve returns the error
	defer stop()
	return server.Serve(l)
}

// setProxy sets the state of a proxy through the control; name "" means all proxies.
func (s *Scene) setProxy(ctx context.Context, name string, state State) error {
	if s == nil || s.Control == "" {
		return errors.New("no proxy between the masters and etcd: start the job with `master run --drillable`")
	}
	text, err := json.Marshal(command{name, state})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.Control+controlPath, bytes.NewReader(text))
	if err != nil {
		return err
	}
	request.Header.Set(secretHeader, s.Secret)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("set the proxies of etcd: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		why, _ := io.ReadAll(io.LimitReader(answer.Body, maxCommand)) // without the body, the error has the status only
		return fmt.Errorf("set the proxies of etcd: %s: %s", answer.Status, bytes.TrimSpace(why))
	}
	return nil
}
