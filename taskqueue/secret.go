package taskqueue

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// SecretKey holds the secret of the job: [Secret.Encode]. The first term of a job writes it in
// one transaction with the state, and it never changes.
const SecretKey = "/master/secret"

// Secret is known to the processes that read the keys of the job in etcd, and to no client of
// them. It is used through the keys that are derived from it.
type Secret [32]byte

// ParseSecret decodes the value of SecretKey.
func ParseSecret(value []byte) (s Secret, err error) {
	if len(value) != hex.EncodedLen(len(s)) {
		return s, fmt.Errorf("%w: %s: expected %d hexadecimal digits, found %d bytes", ErrDamaged, SecretKey, hex.EncodedLen(len(s)), len(value))
	}
	if _, err := hex.Decode(s[:], value); err != nil {
		return s, fmt.Errorf("%w: %s: expected hexadecimal digits: %w", ErrDamaged, SecretKey, err)
	}
	return s, nil
}

// Encode returns the value of SecretKey.
func (s Secret) Encode() []byte { return hex.AppendEncode(nil, s[:]) }

// Derive returns the key for a purpose: HMAC-SHA256 of the purpose under the secret. Keys of
// different purposes say nothing about each other, or about the secret.
func (s Secret) Derive(purpose string) [sha256.Size]byte {
	mac := hmac.New(sha256.New, s[:])
	mac.Write([]byte(purpose))
	return [sha256.Size]byte(mac.Sum(nil))
}
