package operator

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"k8s.io/client-go/rest"
)

// F327: an API server that is away ends no process, which would wait for minutes before its next start. The controller is healthy, and not ready.
func TestControllerOutlivesAnAPIServerThatIsAway(t *testing.T) {
	api, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := api.Addr().String()
	api.Close()
	face, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	quiet, seen := logtest.NewNullLogger()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, Config{API: &rest.Config{Host: "http://" + address}, HTTP: face, Log: logrus.NewEntry(quiet)})
	}()
	eventually(t, "an attempt", func() bool { return len(seen.AllEntries()) > 0 })
	for path, want := range map[string]int{"/healthz": http.StatusOK, "/readyz": http.StatusServiceUnavailable, "/metrics": http.StatusOK} {
		answer, err := http.Get("http://" + face.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("%s: expected %d, found %d", path, want, answer.StatusCode)
		}
	}
	asked := make(chan string, 100)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case asked <- r.URL.Path:
		default:
		}
		http.NotFound(w, r)
	}))
	server.Listener.Close()
	if server.Listener, err = net.Listen("tcp", address); err != nil {
		t.Fatal(err)
	}
	server.Start()
	defer server.Close()
	select {
	case <-asked:
	case err := <-ended:
		t.Fatalf("expected that the controller asks the API server again, found its end: %v", err)
	case <-time.After(time.Minute):
		t.Fatal("expected that the controller asks the API server again, found no request within 1m0s")
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("found %v", err)
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(10 * time.Millisecond) { // polls
		if time.Now().After(end) {
			t.Fatalf("%s: not within 1m0s", what)
		}
	}
}
