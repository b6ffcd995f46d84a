package netrpc_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"testing"

	"trainmaster/master"
	"trainmaster/master/election"
	"trainmaster/master/mastertest"
)

// F64: connections that request heartbeats from the address of a standby do not block the standby. Each new
// connection receives a heartbeat, for any number of connections.
func TestStandbyReceivesHeartbeatsDespiteOtherConnections(t *testing.T) {
	r := serve(t, 5, master.Config{})
	for n := range 300 {
		conn, err := net.Dial("tcp", r.Addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", election.HeartbeatPath); err != nil {
			t.Fatal(err)
		}
		if n%50 != 0 && n < 250 {
			go func() { _, _ = io.Copy(io.Discard, conn) }()
			continue
		}
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil || line != "HTTP/1.1 200 OK\r\n" {
			t.Fatalf("connection %d: got %q, %v", n+1, line, err)
		}
	}
	mastertest.Eventually(t, "leadership", r.Leading)
}
