package cli

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
)

// Listen opens a port, or says what to do.
func Listen(addr, flag string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, ExitWith(ExitFailed, fmt.Errorf("%s %s: the port is in use, perhaps by another master: choose another one, or port 0 for a free one: %w", flag, addr, err))
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, ExitWith(ExitFailed, fmt.Errorf("%s %s: expected an address of this machine and a port that this user may open: %w", flag, addr, err))
	}
	return nil, UsageErrorf("%s %q: expected host:port: %v", flag, addr, err)
}

// Advertise chooses the address that others dial: the given one, or the bound one with the address of the pod.
func Advertise(given string, bound net.Addr) (string, error) {
	flag := "--advertise"
	if given == "" {
		flag, given = "--listen", bound.String()
		if ip := os.Getenv("POD_IP"); ip != "" {
			_, port, _ := net.SplitHostPort(given)
			given = net.JoinHostPort(ip, port)
		}
	}
	host, port, err := net.SplitHostPort(given)
	if err != nil || port == "" || port == "0" {
		return "", UsageErrorf("--advertise %q: expected host:port", given)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return "", UsageErrorf("%s %s is no address that trainers could dial: say with --advertise host:port where they reach this process", flag, strings.TrimSpace(given))
	}
	return given, nil
}
