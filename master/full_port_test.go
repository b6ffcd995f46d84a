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
	"trainmaster/master/decide"
	"trainmaster/master/mastertest"
)

// F64: connections of trainers, or of strangers, that take all places of the leader's port do
// not keep its heartbeats from the standbys: the leader stays.
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
			t.Fatalf("a connection within the limit: %v", err)
		}
	}
	mastertest.Eventually(t, "one connection more is refused", func() bool {
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
	response, err := http.Get("http://" + r.Addr + master.BeatsPath)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	beats := bufio.NewScanner(response.Body)
	for n := range 15 { // five times as many as a standby may miss
		if !beats.Scan() {
			t.Fatalf("the leader ended its heartbeats after %d", n)
		}
		longest, last = max(longest, time.Since(last)), time.Now()
	}
	switch now := term(t, store); {
	case now == before:
	case longest > 2*decide.BeatEvery: // the whole machine paused: then a standby is right, and this test cannot say more
		t.Logf("term %d leads after term %d; there was no heartbeat for %v on this machine", now, before, longest)
	default:
		t.Errorf("term %d leads, expected term %d, which is healthy", now, before)
	}
	refusals := 0
	for _, line := range r.Logged() {
		if line == "connection refused: too many" {
			refusals++
		}
	}
	if refusals != 1 {
		t.Errorf("%d log lines about refused connections within ten seconds, expected 1", refusals)
	}
}

// term returns the term that is announced.
func term(t *testing.T, store *etcdstore.Store) uint64 {
	t.Helper()
	announced, err := store.MasterAddr(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return announced.Term
}
