package wire

import (
	"math/rand/v2"
	"testing"
)

// Sums of parts that were taken apart are joined.
func TestSumsAreJoined(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		p := make([]byte, r.IntN(5000))
		for i := range p {
			p[i] = byte(r.Uint32())
		}
		at := r.IntN(len(p) + 1)
		got := Checksum(0).Add(p[:at]).Then(Checksum(0).Add(p[at:]), DistanceOf(len(p)-at))
		if want := Checksum(0).Add(p); got != want {
			t.Fatalf("%d and %d bytes: %08x, expected %08x", at, len(p)-at, got, want)
		}
	}
}
