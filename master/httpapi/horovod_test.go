package httpapi_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/component"
	"trainmaster/master/httpapi"
	"trainmaster/master/mastertest"
	"trainmaster/master/rendezvous"
	"trainmaster/master/ring"
)

func quiet() *logrus.Entry {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return logrus.NewEntry(l)
}

// serveRing starts a master with a ring, and its HTTP server.
func serveRing(t *testing.T, low, high int) (addr string, r *ring.Ring) {
	t.Helper()
	store := etcdtest.Store(t)
	r = ring.New(ring.Config{Rendezvous: rendezvous.Config{Min: low, Max: high}, Store: store})
	m := mastertest.Start(t, store, master.Config{Components: []component.Component{r}, Ring: r})
	mastertest.Eventually(t, "the ring of the leader", func() bool { // its component starts a moment after the term
		_, _, err := r.Observe()
		return err == nil
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- httpapi.New(m.Master, nil, quiet()).Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String(), r
}

// joins adds members with a number of processes each, and waits for their generation.
func joins(t *testing.T, r *ring.Ring, generation uint64, processes int, ids ...string) {
	t.Helper()
	for _, id := range ids {
		m := rendezvous.Member{ID: id, Instance: "1", Host: "127.0.0.1", Ports: []int{1}, Processes: processes}
		if _, err := r.Join(m); err != nil {
			t.Fatal(err)
		}
		w, err := r.Watch(m.Key())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.End)
	}
	mastertest.Eventually(t, fmt.Sprintf("generation %d", generation), func() bool {
		u, _, err := r.Observe()
		return err == nil && u.Ring.Number == generation
	})
}

// sends sends a request byte for byte, and returns the code and the body of the answer, of which the client reads as many bytes as the header says.
func sends(t *testing.T, addr, request string) (code int, body string) {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.ContentLength < 0 {
		t.Errorf("%q: expected a Content-Length, found none", request)
	}
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// The C++ client (HTTPStore) and the Python client (urllib) of Horovod 0.28 send these requests.
func TestHorovodRendezvous(t *testing.T) {
	addr, r := serveRing(t, 2, 3)
	joins(t, r, 1, 2, "a", "b")
	store := func(method, scope, key, body string) string {
		return fmt.Sprintf("%s /%s/%s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%s", method, scope, key, len(body), body)
	}
	urllib := func(key, body string) string {
		return strings.Join([]string{
			"PUT /worker_addresses/" + key + " HTTP/1.1", "Accept-Encoding: identity", "Content-Type: application/x-www-form-urlencoded",
			fmt.Sprint("Content-Length: ", len(body)), "Host: " + addr, "User-Agent: Python-urllib/3.9", "Connection: close", "", body,
		}, "\r\n")
	}
	binary := "\x00\x02address\xff\r\n\r\n"
	pickle := "gASVCwAAAAAAAACMB3NlY3JldJQu" // never decoded
	for i, step := range []struct {
		request string
		code    int
		body    string
	}{
		{store("GET", "rank_and_size", "a:0", ""), 200, "0,4,0,2,0,2"},
		{store("GET", "rank_and_size", "b:1", ""), 200, "3,4,1,2,1,2"},
		{store("GET", "rank_and_size", "z:0", ""), 200, "-1,-1,-1,-1,-1,-1"},
		{store("GET", "global", "0", ""), 404, ""},
		{store("PUT", "global", "0", binary), 200, ""},
		{store("GET", "global", "0", ""), 200, binary},
		{store("PUT", "local_a", "1", "x"), 200, ""},
		{store("PUT", "cross_1", "0", "y"), 200, ""},
		{urllib("a:0", pickle), 200, ""},
		{store("GET", "worker_addresses", "a:0", ""), 200, pickle},
		// A scope ends when all of its ranks have deleted themselves.
		{store("DELETE", "global", "0", ""), 200, ""},
		{store("DELETE", "global", "1", ""), 200, ""},
		{store("DELETE", "global", "2", ""), 200, ""},
		{store("DELETE", "global", "2", ""), 200, ""},
		{store("GET", "global", "0", ""), 200, binary},
		{store("DELETE", "global", "3", ""), 200, ""},
		{store("GET", "global", "0", ""), 404, ""},
		{store("DELETE", "local_a", "0", ""), 200, ""},
		{store("GET", "local_a", "1", ""), 200, "x"},
		{store("DELETE", "local_a", "1", ""), 200, ""},
		{store("GET", "local_a", "1", ""), 404, ""},
		{store("DELETE", "worker_addresses", "a:0", ""), 200, ""},
		{store("GET", "worker_addresses", "a:0", ""), 404, ""},
	} {
		if code, body := sends(t, addr, step.request); code != step.code || step.code != 400 && body != step.body {
			t.Errorf("request %d: %q: expected %d %q, found %d %q", i, step.request, step.code, step.body, code, body)
		}
	}
	if code, _ := sends(t, addr, store("GET", "rank_and_size", "a", "")); code != 400 {
		t.Errorf("a key without a local rank: expected 400, found %d", code)
	}
	joins(t, r, 2, 1, "c")
	if code, _ := sends(t, addr, store("GET", "cross_1", "0", "")); code != 404 {
		t.Errorf("a value of an earlier generation: expected 404, found %d", code)
	}
	if _, body := sends(t, addr, store("GET", "rank_and_size", "c:0", "")); body != "4,5,0,1,2,3" {
		t.Errorf("the newcomer: found %s", body)
	}
}

func TestHorovodWaitsForAGeneration(t *testing.T) {
	addr, r := serveRing(t, 1, 1)
	answer := make(chan string, 1)
	go func() {
		_, body := sends(t, addr, "GET /rank_and_size/a:0 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n")
		answer <- body
	}()
	joins(t, r, 1, 1, "a")
	if body := <-answer; body != "0,1,0,1,0,1" {
		t.Errorf("found %s", body)
	}
}

func TestHorovodStoreIsBounded(t *testing.T) {
	addr, r := serveRing(t, 1, 1)
	joins(t, r, 1, 1, "a")
	put := func(key string, size int) int {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+addr+"/scope/"+key, strings.NewReader(strings.Repeat("v", size)))
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		return response.StatusCode
	}
	defer http.DefaultClient.CloseIdleConnections()
	if code := put("large", 1<<20+1); code != http.StatusRequestEntityTooLarge {
		t.Errorf("a large value: expected 413, found %d", code)
	}
	for i := range 64 {
		if code := put(fmt.Sprint(i), 1<<20); code != 200 {
			t.Fatalf("value %d: expected 200, found %d", i, code)
		}
	}
	if code := put("more", 1); code != http.StatusInsufficientStorage {
		t.Errorf("beyond the limit: expected 507, found %d", code)
	}
	if code := put("63", 1); code != 200 {
		t.Errorf("a smaller value: expected 200, found %d", code)
	}
	if code := put(strings.Repeat("k", 600), 1); code != http.StatusBadRequest {
		t.Errorf("a long key: expected 400, found %d", code)
	}
}
