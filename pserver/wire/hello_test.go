package wire_test

import (
	"strings"
	"testing"

	"trainmaster/pserver/wire"
)

func TestOffer(t *testing.T) {
	o := wire.Offer{Server: wire.Identity{1, 2, 3, 15: 16}, Path: "/run/ps-1.sock"}
	b := o.Append(nil)
	if got, err := wire.ParseOffer(b); err != nil || got != o {
		t.Errorf("%v, %v; expected %v", got, err, o)
	}
	for name, payload := range map[string]string{
		"nothing":        "",
		"half":           string(b[:10]),
		"no path":        string(b[:16]),
		"relative path":  string(b[:16]) + "ps.sock",
		"abstract name":  string(b[:16]) + "@ps",
		"zero byte":      string(b[:16]) + "/ps\x00.sock",
		"256-byte path":  string(b[:16]) + "/" + strings.Repeat("x", 255),
		"path in length": string(b[:16]) + "\x00/ps",
	} {
		if got, err := wire.ParseOffer([]byte(payload)); err == nil {
			t.Errorf("%s: taken for %v", name, got)
		}
	}
}
