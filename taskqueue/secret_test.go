package taskqueue

import (
	"bytes"
	"errors"
	"testing"
)

func TestSecretEncodesAndDerivesOneKeyForEachPurpose(t *testing.T) {
	secret := Secret{1, 2, 3}
	parsed, err := ParseSecret(secret.Encode())
	if err != nil || parsed != secret {
		t.Fatalf("parsed %x, %v: expected %x", parsed, err, secret)
	}
	if key := secret.Derive("a"); key != parsed.Derive("a") || key == secret.Derive("b") || key == (Secret{1}).Derive("a") {
		t.Error("a derived key is expected to be a function of secret and purpose, and of both")
	}
	for _, value := range [][]byte{nil, []byte("secret"), bytes.Repeat([]byte("g"), 64), append(secret.Encode(), '0')} {
		if _, err := ParseSecret(value); !errors.Is(err, ErrDamaged) {
			t.Errorf("%q: %v", value, err)
		}
	}
}
