package freeport_test

import (
	"net"
	"testing"

	"trainmaster/internal/freeport"
)

func TestAddr(t *testing.T) {
	given := map[string]bool{}
	for range 200 {
		addr, err := freeport.Addr("127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		if given[addr] {
			t.Fatalf("%s was given twice", addr)
		}
		given[addr] = true
	}
	kernel, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer kernel.Close()
	own := kernel.Addr().(*net.TCPAddr).Port
	for addr := range given {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatalf("%s is not free: %v", addr, err)
		}
		if port := l.Addr().(*net.TCPAddr).Port; port >= 32_768 && own >= 32_768 {
			t.Errorf("port %d is an ephemeral port, as %d", port, own)
		}
		l.Close()
	}
}

func TestAddrOfNoHost(t *testing.T) {
	if addr, err := freeport.Addr("192.0.2.1"); err == nil {
		t.Errorf("%s, of a host that is not this one", addr)
	}
}
