package wire

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"
)

// DigestSize is the size of a placement's digest, with which the payload of a hello starts.
const DigestSize = 32

// Identity identifies one start of a server: random bytes.
type Identity [16]byte

// Offer is the payload of a hello's reply: who answers, and the file of the
// socket on which it listens for trainers of the same machine. A server without
// such a socket sends none.
type Offer struct {
	Server Identity
	Path   string
}

// MaxOffer bounds an encoded offer in bytes.
const MaxOffer = 16 + 255

// Append adds the encoded offer to b.
func (o Offer) Append(b []byte) []byte { return append(append(b, o.Server[:]...), o.Path...) }

// ParseOffer reads an encoded offer. The path is absolute.
func ParseOffer(payload []byte) (Offer, error) {
	var o Offer
	n := copy(o.Server[:], payload)
	o.Path = string(payload[n:])
	if !filepath.IsAbs(o.Path) || len(payload) > MaxOffer || strings.ContainsRune(o.Path, 0) {
		return Offer{}, fmt.Errorf("offer of %d bytes: expected an identity and an absolute path, of at most %d bytes", len(payload), MaxOffer)
	}
	return o, nil
}

// JobStep returns the step of a hello: the first 8 bytes of the id of the job, in hexadecimal digits; 0: not stated.
func JobStep(id string) uint64 {
	var first [8]byte
	raw, _ := hex.DecodeString(id)
	copy(first[:], raw)
	return binary.BigEndian.Uint64(first[:])
}

// JobOf returns the beginning of the id of the job in a hello; "": not stated.
func JobOf(step uint64) string {
	if step == 0 {
		return ""
	}
	return fmt.Sprintf("%016x", step)
}
