// Package gcstest runs a server with the API of Google Cloud Storage for tests: fake-gcs-server, which keeps objects in memory. `make setup`
// builds it.
package gcstest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"trainmaster/internal/objectstore"
	"trainmaster/internal/objectstore/process"
	"trainmaster/scripts/prepared"
)

// Bucket exists when the server starts.
const Bucket = "checkpoints"

// Server is a process on a loopback port.
type Server struct{ *process.Server }

// Start starts a server that ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	binary := prepared.File(t, "gcs", "fake-gcs-server")
	s := &Server{process.Start(t, func(addr string) *exec.Cmd {
		_, port, _ := net.SplitHostPort(addr)
		return exec.Command(binary, "-scheme", "http", "-host", "127.0.0.1", "-port", port, "-backend", "memory", "-log-level", "error")
	})}
	answer, err := http.Post("http://"+s.Addr+"/storage/v1/b?project=test", "application/json", strings.NewReader(fmt.Sprintf(`{"name": %q}`, Bucket)))
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("create a bucket: %s", answer.Status)
	}
	return s
}

// URL is for --checkpoint-dir.
func (s *Server) URL(prefix string) string { return URLAt(s.Addr, prefix) }

// URLAt returns the URL of a server at another address.
func URLAt(addr, prefix string) string {
	return fmt.Sprintf("gs://%s/%s?endpoint=http://%s", Bucket, prefix, addr)
}

// Put writes an object, also after the context of the test has ended.
func (s *Server) Put(t testing.TB, key string, data []byte) {
	t.Helper()
	b, err := objectstore.OpenStore(s.URL(""), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.Objects.WriteAll(context.WithoutCancel(t.Context()), key, data, nil); err != nil {
		t.Fatal(err)
	}
}
