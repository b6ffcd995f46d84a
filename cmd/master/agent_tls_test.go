package main

import (
	"bytes"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestFilesForATLSProxy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	server := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	ca := file("ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	none, token := file("none.pem", "x"), file("token", "a token")
	tests := map[string]struct {
		args []string
		says string
	}{
		"token without TLS": {[]string{"--addr", "127.0.0.1:1", "--token-file", token}, "expected --ca-file too"},
		"no proxy":          {[]string{"--endpoints", "127.0.0.1:1", "--ca-file", none}, "expected --addr of a TLS proxy"},
		"no certificate":    {[]string{"--addr", "127.0.0.1:1", "--ca-file", none}, "expected certificates in PEM, found none"},
		"missing":           {[]string{"--addr", "127.0.0.1:1", "--ca-file", filepath.Join(dir, "missing")}, "expected a PEM file: no such file"},
		"pipe":              {[]string{"--addr", "127.0.0.1:1", "--ca-file", ca, "--token-file", fifo}, "expected a regular file, found a named pipe"},
		"two words":         {[]string{"--addr", "127.0.0.1:1", "--ca-file", ca, "--token-file", token}, "expected one token in printable ASCII, found 7 bytes"},
	}
	for name, c := range tests {
		var b bytes.Buffer
		code := execute(t.Context(), rootCommand(), append([]string{"agent", "--fd", "9", "--parent", "1"}, c.args...), &b, &b)
		if said := b.String(); code != 2 || !strings.Contains(said, c.says) {
			t.Errorf("%s: expected exit code 2 and %q, found %d and %s", name, c.says, code, said)
		}
	}
}
