package trainercontrol

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

func TestAddressIsOfTheHostOfTheConnection(t *testing.T) {
	allow := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/8")}
	any4 := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	for _, test := range []struct {
		control, peer string
		allow         []netip.Prefix
		want, refused string
	}{
		{":9000", "10.0.0.7:52100", nil, "10.0.0.7:9000", ""},
		{"10.0.0.7:9000", "10.0.0.7:52100", nil, "10.0.0.7:9000", ""},
		{"[::ffff:10.0.0.7]:9000", "10.0.0.7:52100", nil, "10.0.0.7:9000", ""},
		{":9000", "[::ffff:10.0.0.7]:52100", nil, "10.0.0.7:9000", ""},
		{":9000", "[fe80::1%eth0]:52100", nil, "[fe80::1%eth0]:9000", ""},
		{":9000", "127.0.0.1:52100", nil, "127.0.0.1:9000", ""},
		{"10.1.2.3:9000", "10.0.0.7:52100", allow, "10.1.2.3:9000", ""},
		{"[fd00::5]:9000", "10.0.0.7:52100", allow, "[fd00::5]:9000", ""},
		{"127.0.0.2:9000", "127.0.0.1:52100", any4, "127.0.0.2:9000", ""},

		{"10.0.0.8:9000", "10.0.0.7:52100", allow, "", "another host"},
		{"10.1.2.3:9000", "10.0.0.7:52100", nil, "", "another host"},
		{"127.0.0.2:9000", "127.0.0.1:52100", nil, "", "another host"},
		{"127.0.0.1:2379", "10.0.0.7:52100", any4, "", "no other machine"},
		{"[::1]:2379", "10.0.0.7:52100", any4, "", "no other machine"},
		{"[::ffff:127.0.0.1]:2379", "10.0.0.7:52100", any4, "", "no other machine"},
		{"169.254.169.254:80", "10.0.0.7:52100", any4, "", "no other machine"},
		{"[::ffff:169.254.169.254]:80", "10.0.0.7:52100", any4, "", "no other machine"},
		{"[fe80::1]:80", "10.0.0.7:52100", any4, "", "no other machine"},
		{"0.0.0.0:2379", "10.0.0.7:52100", any4, "", "no other machine"},
		{"[::]:2379", "10.0.0.7:52100", any4, "", "no other machine"},
		{"224.0.0.1:80", "10.0.0.7:52100", any4, "", "no other machine"},
		{"localhost:2379", "10.0.0.7:52100", any4, "", "a name"},
		{"0x7f000001:2379", "10.0.0.7:52100", any4, "", "a name"},
		{"2130706433:2379", "10.0.0.7:52100", any4, "", "a name"},
		{"trainer-0.example:9000", "10.0.0.7:52100", any4, "", "a name"},
		{"http://10.0.0.7:9000", "10.0.0.7:52100", any4, "", "another form"},
		{"10.0.0.7:0", "10.0.0.7:52100", nil, "", "another form"},
		{"10.0.0.7:65536", "10.0.0.7:52100", nil, "", "another form"},
		{":-1", "10.0.0.7:52100", nil, "", "another form"},
		{"10.0.0.7", "10.0.0.7:52100", nil, "", "another form"},
		{":9000", "@", any4, "", "a connection from an IP address"},
	} {
		got, err := Address(test.control, test.peer, test.allow)
		switch {
		case test.refused == "" && (err != nil || got.String() != test.want):
			t.Errorf("%s from %s: found %v, %v, expected %s", test.control, test.peer, got, err, test.want)
		case test.refused != "" && (!errors.Is(err, ErrAddress) || !strings.Contains(err.Error(), test.refused)):
			t.Errorf("%s from %s: found %v, %v, expected a refusal with %q", test.control, test.peer, got, err, test.refused)
		}
	}
}
