// Package freeport finds addresses for servers that have to be told theirs, in tests, soaks and benchmarks.
//
// A port that the kernel gives and takes back it soon gives to somebody else, a connection
// that goes out perhaps. Those of this package are below the range from which it gives them, so
// that only a server that was told the same one can be in the way. No address comes twice from one process.
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

// The ports are from first up to the kernel's own.
const (
	first = 12_000
	usual = 32_768 // where the kernel's own begin, if it does not say
)

// tried counts ports that were looked at, from a place that is another one in each process.
var tried = func() *atomic.Uint32 {
	var n atomic.Uint32
	n.Store(rand.Uint32N(1 << 16))
	return &n
}()

// Addr is "host:port", where nobody listens.
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

// kernels is the first port that the kernel gives by itself.
func kernels() uint32 {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if fields := strings.Fields(string(text)); err == nil && len(fields) == 2 {
		if low, err := strconv.ParseUint(fields[0], 10, 16); err == nil && low > first {
			return uint32(low)
		}
	}
	return usual
}
