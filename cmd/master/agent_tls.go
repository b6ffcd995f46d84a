package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"trainmaster/cmd/internal/cli"
	"trainmaster/internal/filekind"
)

// proxyFlags name what a proxy before a master expects: TLS, and a token in each request.
type proxyFlags struct{ caFile, tokenFile string }

func (p *proxyFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.caFile, "ca-file", "", "PEM `file` of the authorities that may vouch for a TLS proxy at --addr (default: no TLS)")
	cmd.Flags().StringVar(&p.tokenFile, "token-file", "", "`file` of a bearer token for the TLS proxy at --addr, read for each request (default: no token)")
}

// options returns the options of connections to the master.
func (p *proxyFlags) options(cmd *cobra.Command, hasAddr bool) ([]grpc.DialOption, error) {
	switch {
	case p.caFile == "" && p.tokenFile == "":
		return nil, nil
	case p.caFile == "":
		return nil, cli.SettingErrorf(cmd, "token-file", "expected --ca-file too: a token is sent with TLS only")
	case !hasAddr:
		return nil, cli.SettingErrorf(cmd, "ca-file", "expected --addr of a TLS proxy: the masters and parameter servers that etcd names have no TLS")
	}
	authorities, err := readAuthorities(p.caFile)
	if err != nil {
		return nil, cli.SettingErrorf(cmd, "ca-file", "%v", err)
	}
	//guard:authorities-of-the-proxy
	options := []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: authorities, MinVersion: tls.VersionTLS12}))}
	if p.tokenFile == "" {
		return options, nil
	}
	token := tokenFile(p.tokenFile)
	if _, err := token.read(); err != nil {
		return nil, cli.SettingErrorf(cmd, "token-file", "%v", err)
	}
	//guard:token-in-each-request
	options = append(options, grpc.WithPerRPCCredentials(token))
	return options, nil
}

func readAuthorities(path string) (*x509.CertPool, error) {
	content, err := readRegular(path)
	if err != nil {
		return nil, err
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(content) {
		return nil, errors.New("expected certificates in PEM, found none")
	}
	return authorities, nil
}

// readRegular reads a file. It never waits, as for the writer of a pipe.
func readRegular(path string) ([]byte, error) {
	if err := filekind.CheckFile(path); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// tokenFile is the path of a file with a bearer token, which can change: Kubernetes replaces the tokens of pods.
type tokenFile string

func (f tokenFile) read() (string, error) {
	content, err := readRegular(string(f))
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(content))
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("expected one token in printable ASCII, found %d bytes that are none", len(content))
	}
	return token, nil
}

// GetRequestMetadata implements [credentials.PerRPCCredentials].
func (f tokenFile) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := f.read()
	if err != nil {
		return nil, fmt.Errorf("token file %s: %w", f, err)
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity implements [credentials.PerRPCCredentials].
func (tokenFile) RequireTransportSecurity() bool { return true }
