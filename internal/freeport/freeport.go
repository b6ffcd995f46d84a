// Package freeport finds free addresses for servers of tests, soaks and benchmarks that need a fixed port.
//
// The kernel reuses a released ephemeral port for other sockets, such as outgoing connections. The ports of this package are
// below the ephemeral range, so only another server with the same fixed port can use them. A process gets each address once.
package freeport

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// The ports are from first up to the ephemeral ports.
const (
	first = 12_000
	usual = 32_768 // first ephemeral port if the kernel does not report it
)

// tried counts the tested ports. It starts at a random number.
var tried = func() *atomic.Uint32 {
	var n atomic.Uint32
	n.Store(rand.Uint32N(1 << 16))
	return &n
}()

// Addr returns "host:port" of a port without a listener.
func Addr(host string) (string, error) {
	end := kernels()
	for range end - first {
		port := first + tried.Add(1)%(end-first)
		addr := net.JoinHostPort(host, strconv.Itoa(int(port)))
		l, err := net.Listen("tcp", addr)
		switch {
		case err == nil:
			return addr, l.Close()
		case !errors.Is(err, syscall.EADDRINUSE):
			return "", err
		}
	}
	return "", fmt.Errorf("all ports of %s from %d to %d are in use", host, first, end-1)
}

// kernels returns the first ephemeral port of the kernel.
func kernels() uint32 {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if fields := strings.Fields(string(text)); err == nil && len(fields) == 2 {
		if low, err := strconv.ParseUint(fields[0], 10, 16); err == nil && low > first {
			return uint32(low)
		}
	}
	return usual
}
