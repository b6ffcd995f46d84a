package trainercontrol

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
)

// ErrAddress is the error of an address that the leader does not call.
var ErrAddress = errors.New("trainer control address")

// Address returns the address that the leader calls for a trainer. control is ":port" or "ip:port", as the trainer says it. peer is the
// address of its connection. Without an ip, the host is the host of the connection. Any client can join, and the leader must not connect
// to hosts for it that only the leader reaches: another host is refused, unless a prefix of allow has it.
func Address(control, peer string, allow []netip.Prefix) (netip.AddrPort, error) {
	refuse := func(expected, found string) (netip.AddrPort, error) {
		return netip.AddrPort{}, fmt.Errorf("%w %q: expected %s, found %s", ErrAddress, control, expected, found)
	}
	from, err := netip.ParseAddrPort(peer)
	if err != nil {
		return refuse("a connection from an IP address", strconv.Quote(peer))
	}
	host := from.Addr().Unmap()
	name, digits, err := net.SplitHostPort(control)
	port, notNumber := strconv.ParseUint(digits, 10, 16)
	if err != nil || notNumber != nil || port == 0 {
		return refuse(":port or ip:port, with a port from 1 to 65535", "another form")
	}
	if name == "" {
		return netip.AddrPortFrom(host, uint16(port)), nil
	}
	ip, err := netip.ParseAddr(name)
	if err != nil {
		return refuse("an IP address, because a name can lead to another host at each call", "a name")
	}
	ip = ip.Unmap()
	switch inPrefix := slices.ContainsFunc(allow, func(p netip.Prefix) bool { return p.Contains(ip) }); {
	case ip == host:
	//guard:control-address-of-another-machine
	case ip.IsUnspecified(), ip.IsMulticast(), ip.IsLinkLocalUnicast(), ip.IsLoopback() && !host.IsLoopback():
		return refuse(fmt.Sprintf("the host of the connection, %s", host), "an address that is no other machine: leave the host out")
	//guard:control-host-allowed
	case !inPrefix:
		return refuse(fmt.Sprintf("the host of the connection, %s", host), "another host: leave the host out, or start the masters with --allow-trainer-address")
	}
	return netip.AddrPortFrom(ip, uint16(port)), nil
}
