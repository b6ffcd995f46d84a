// Package s3test runs a real S3 server for tests: versitygw on a directory, where each object is a file. `make setup` builds
// versitygw.
package s3test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"trainmaster/internal/objectstore"
	"trainmaster/internal/objectstore/process"
	"trainmaster/scripts/prepared"
)

// Bucket exists when the server starts.
const Bucket = "checkpoints"

const (
	keyID  = "test"
	secret = "a-secret-of-the-test-store"
)

// Secret must not appear in any message.
const Secret = secret

// setCredentials makes the SDK read only the environment.
var setCredentials = sync.OnceFunc(func() {
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": keyID, "AWS_SECRET_ACCESS_KEY": secret, "AWS_EC2_METADATA_DISABLED": "true",
		"AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull,
	} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
})

// Server is a process on a loopback port.
type Server struct {
	*process.Server
	root string // buckets are folders in it
}

// Start starts a server that ends with the test. It sets its credentials in the environment of this process and its children.
func Start(t testing.TB) *Server {
	t.Helper()
	binary := prepared.File(t, "s3", "versitygw")
	setCredentials()
	s := &Server{root: t.TempDir()}
	if err := os.Mkdir(filepath.Join(s.root, Bucket), 0o755); err != nil {
		t.Fatal(err)
	}
	s.Server = process.Start(t, func(addr string) *exec.Cmd {
		return exec.Command(binary, "--port", addr, "--access", keyID, "--secret", secret, "--quiet", "--keep-alive", "posix", s.root)
	})
	return s
}

// URL is for --checkpoint-dir.
func (s *Server) URL(prefix string) string { return URLAt(s.Addr, prefix) }

// URLAt returns the URL of a server at another address.
func URLAt(addr, prefix string) string {
	return fmt.Sprintf("s3://%s/%s?endpoint=http://%s&use_path_style=true", Bucket, prefix, addr)
}

// Path is the file of an object.
func (s *Server) Path(key string) string {
	return filepath.Join(s.root, Bucket, filepath.FromSlash(key))
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
