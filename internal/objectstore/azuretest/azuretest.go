// Package azuretest runs a server with the API of Azure Blob Storage for tests: the blob server of azurite, which keeps objects in memory.
// `make setup` installs it.
package azuretest

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"gocloud.dev/blob"

	"trainmaster/internal/objectstore"
	"trainmaster/internal/objectstore/process"
	"trainmaster/scripts/prepared"
)

// Container exists when the server starts.
const Container = "checkpoints"

const account = "test"

// Secret must not appear in any message.
var Secret = base64.StdEncoding.EncodeToString([]byte("a-secret-of-the-test-store"))

// setCredentials sets the credentials of this process and its children.
var setCredentials = sync.OnceFunc(func() {
	for name, value := range map[string]string{"AZURE_STORAGE_ACCOUNT": account, "AZURE_STORAGE_KEY": Secret} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
})

// Server is a process on a loopback port.
type Server struct{ *process.Server }

// Start starts a server that ends with the test. It sets its credentials in the environment.
func Start(t testing.TB) *Server {
	t.Helper()
	script := prepared.File(t, "azure", "node_modules", "azurite", "dist", "src", "blob", "main.js")
	node := filepath.Join(filepath.Dir(script), "..", "..", "..", "..", "..", "node")
	setCredentials()
	dir := t.TempDir()
	s := &Server{process.Start(t, func(addr string) *exec.Cmd {
		_, port, _ := net.SplitHostPort(addr)
		c := exec.Command(node, script, "--blobHost", "127.0.0.1", "--blobPort", port, "--location", dir, "--silent", "--skipApiVersionCheck", "--disableTelemetry")
		c.Env = append(os.Environ(), "AZURITE_ACCOUNTS="+account+":"+Secret)
		return c
	})}
	key, err := container.NewSharedKeyCredential(account, Secret)
	if err != nil {
		t.Fatal(err)
	}
	c, err := container.NewClientWithSharedKeyCredential(fmt.Sprintf("http://%s/%s/%s", s.Addr, account, Container), key, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Create(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	return s
}

// URL is for --checkpoint-dir.
func (s *Server) URL(prefix string) string { return URLAt(s.Addr, prefix) }

// URLAt returns the URL of a server at another address.
func URLAt(addr, prefix string) string {
	return fmt.Sprintf("azblob://%s/%s?domain=%s&protocol=http", Container, prefix, addr)
}

// Put writes an object, also after the context of the test has ended.
func (s *Server) Put(t testing.TB, key string, data []byte) {
	t.Helper()
	b, err := objectstore.OpenStore(s.URL(""), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.Objects.Upload(context.WithoutCancel(t.Context()), key, bytes.NewReader(data), &blob.WriterOptions{ContentType: "application/octet-stream"}); err != nil {
		t.Fatal(err)
	}
}
