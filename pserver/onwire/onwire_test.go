package onwire

import (
	"strconv"
	"testing"

	"trainmaster/pserver/optimizer"
)

// Every field arrives as it was.
func TestOptimizerThereAndBack(t *testing.T) {
	var full optimizer.Config
	for i, s := range full.Settings() {
		value := strconv.Itoa(i + 1)
		if s.Words != nil {
			value = s.Words[len(s.Words)-1]
		}
		if err := s.Set(value); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []optimizer.Config{{}, {Kind: optimizer.Adam, Beta2: 0.999, Epsilon: 1e-8}, full} {
		if got := optimizerFromProto(optimizerToProto(c)); got != c {
			t.Errorf("%v arrives as %v", c, got)
		}
	}
}
