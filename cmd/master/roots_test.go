package main

import (
	"crypto/x509"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// The image has no certificates of authorities. The certificates in the program verify the servers of object stores.
func TestCertificatesOfAuthoritiesAreInTheProgram(t *testing.T) {
	const variable = "TRAINMASTER_TEST_NO_SYSTEM_ROOTS"
	if os.Getenv(variable) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestCertificatesOfAuthoritiesAreInTheProgram$", "-test.v")
		cmd.Env = append(os.Environ(), variable+"=1", "SSL_CERT_FILE=/nowhere", "SSL_CERT_DIR=/nowhere")
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		return
	}
	verified := 0
	for root := range bundle.Roots() {
		certificate, err := x509.ParseCertificate(root.Certificate)
		if err != nil {
			t.Fatal(err)
		}
		if root.Constraint != nil {
			continue
		}
		if _, err := certificate.Verify(x509.VerifyOptions{CurrentTime: certificate.NotAfter.Add(-time.Hour)}); err != nil {
			t.Errorf("%s: %v", certificate.Subject, err)
		}
		verified++
	}
	if verified < 50 {
		t.Errorf("%d authorities, expected 50 at least", verified)
	}
}
