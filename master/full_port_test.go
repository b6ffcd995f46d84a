package master_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/internal/portsplit"
	"trainmaster/master"
	"trainmaster/master/election"
	"trainmaster/master/election/detector"
	"trainmaster/master/mastertest"
)

// F64: connections that fill the port of the leader do not block its heartbeats to the standbys. The leader keeps the
// lock.
func TestLeaderWithAFullPortStays(t *testing.T) {
	const most = 10
	job := etcdtest.NewJob(t)
	store := etcdtest.Open(t, etcdtest.Endpoint(t), job)
	config := master.Config{Holddown: 2 * time.Second}
	r := mastertest.StandByOn(t, store, config, nil, portsplit.Config{MaxConnections: most})
	r.AwaitLeading()
	before := term(t, store)
	for range most {
		conn, err := net.Dial("tcp", r.Addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "CONNECT /_goRPC_ HTTP/1.0\n\n")
		if _, err := io.ReadFull(conn, make([]byte, 20)); err != nil {
			t.Fatalf("connection within the limit: got %v", err)
		}
	}
	mastertest.Eventually(t, "a refused connection", func() bool {
		conn, err := net.Dial("tcp", r.Addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "CONNECT /_goRPC_ HTTP/1.0\n\n")
		_, err = conn.Read(make([]byte, 1))
		return err != nil
	})
	longest, last := time.Duration(0), time.Now()
	mastertest.StandBy(t, etcdtest.Open(t, etcdtest.Endpoint(t), job), config, nil)
	response, err := http.Get("http://" + r.Addr + election.HeartbeatPath)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	beats := bufio.NewScanner(response.Body)
	for n := range 15 { // five times as many as a standby may miss
		if !beats.Scan() {
			t.Fatalf("expected more heartbeats, found %d", n)
		}
		longest, last = max(longest, time.Since(last)), time.Now()
	}
	switch now := term(t, store); {
	case now == before:
	case longest > 2*detector.Interval: // the whole machine paused: the takeover was right, and the test has no result
		t.Logf("no result: term %d leads after term %d, and this machine paused for %v", now, before, longest)
	default:
		t.Errorf("expected no takeover from the healthy term %[2]d, found term %[1]d", now, before)
	}
	refusals := 0
	for _, line := range r.Logged() {
		if line == "connection refused: too many" {
			refusals++
		}
	}
	if refusals != 1 {
		t.Errorf("log lines of refused connections in 10 s: found %d, expected 1", refusals)
	}
}

// term returns the announced term.
func term(t *testing.T, store *etcdstore.Store) uint64 {
	t.Helper()
	announced, err := store.MasterAddr(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return announced.Term
}
