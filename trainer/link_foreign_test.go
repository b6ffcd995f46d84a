package trainer

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"trainmaster/master/netrpc/wire"
)

// Nothing has the address, as after a typing error: a warning has the reason when it takes longer than a failover.
func TestLongSilenceIsLoggedWithItsReason(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := listener.Addr().String()
	_ = listener.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	logger, _ := logtest.NewNullLogger()
	warned := make(chan string, 1)
	logger.AddHook(warnings(warned))
	l := &link{locate: At(addr), patience: time.Minute, log: logrus.NewEntry(logger), protocol: GRPC}
	defer l.close()
	began := time.Now()
	go func() {
		defer close(warned)
		_, _ = call[wire.JoinReply](ctx, l, "Join", wire.JoinRequest{})
	}()
	text := <-warned
	cancel()
	for range warned { // until the call has ended
	}
	if took := time.Since(began); took < longSilence {
		t.Errorf("a warning after %v: expected none during a failover", took)
	}
	if !strings.Contains(text, "no answer from the master, trying on") || !strings.Contains(text, "connection refused") {
		t.Errorf("expected the reason, found %q", text)
	}
}

// warnings gets the first warning.
type warnings chan<- string

func (w warnings) Levels() []logrus.Level { return []logrus.Level{logrus.WarnLevel} }
func (w warnings) Fire(e *logrus.Entry) error {
	text, err := e.String()
	select {
	case w <- text:
	default:
	}
	return err
}

// A proxy that has no master behind it answers for it. The trainer logs its answer as a warning and retries.
func TestAnswerOfAProxyIsLogged(t *testing.T) {
	for _, code := range []int{http.StatusFound, http.StatusNotFound, http.StatusTooManyRequests, http.StatusServiceUnavailable} {
		t.Run(http.StatusText(code), func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var answers atomic.Int32
			proxy := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(code)
				if answers.Add(1) == 4 {
					cancel()
				}
			}))
			proxy.Config.Protocols = new(http.Protocols)
			proxy.Config.Protocols.SetUnencryptedHTTP2(true)
			proxy.Start()
			defer proxy.Close()
			addr := proxy.Listener.Addr().String()
			logger, hook := logtest.NewNullLogger()
			l := &link{locate: At(addr), patience: time.Minute, log: logrus.NewEntry(logger), protocol: GRPC}
			_, err := call[wire.JoinReply](ctx, l, "Join", wire.JoinRequest{})
			l.close()
			wantWarning(t, err, hook, "expected a master at "+addr, strconv.Itoa(code))
		})
	}
}

// If the address of the master belongs to another program, the trainer logs the found answer as a warning and
// retries.
func TestAnswerOfAnotherProgramIsLogged(t *testing.T) {
	const misdirected = "HTTP/1.1 421 Misdirected Request\r\nConnection: close\r\n\r\nthis is a data port\n"
	for name, c := range map[string]struct {
		protocol     Protocol
		answer, want string
	}{
		"a data port":           {NetRPC, misdirected, `found an answer "421 Misdirected Request": "this is a data port"`},
		"no HTTP":               {NetRPC, "SSH-2.0-x\r\n", "found a program of another protocol"},
		"a data port over gRPC": {GRPC, misdirected, "found a program of another protocol"},
		"no HTTP over gRPC":     {GRPC, "SSH-2.0-x\r\n", "found a program of another protocol"},
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				for n := 0; ; n++ {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					_, _ = http.ReadRequest(bufio.NewReader(conn)) // any request
					_, _ = io.WriteString(conn, c.answer)
					_ = conn.Close()
					if n == 3 {
						cancel()
					}
				}
			}()
			logger, hook := logtest.NewNullLogger()
			l := &link{locate: At(listener.Addr().String()), patience: time.Minute, log: logrus.NewEntry(logger), protocol: c.protocol}
			_, err = call[wire.JoinReply](ctx, l, "Join", wire.JoinRequest{})
			_ = listener.Close()
			<-answered
			l.close()
			wantWarning(t, err, hook, "expected a master at "+listener.Addr().String(), c.want)
		})
	}
}

// wantWarning requires that a call was repeated until the end of its context, and logged one warning with these words.
func wantWarning(t *testing.T, err error, hook *logtest.Hook, words ...string) {
	t.Helper()
	if !errors.Is(err, context.Canceled) {
		t.Errorf("call: expected retries until the deadline, found %v", err)
	}
	entries := hook.AllEntries()
	if len(entries) != 1 || entries[0].Level != logrus.WarnLevel {
		t.Fatalf("expected one warning, found %d log lines", len(entries))
	}
	text, _ := entries[0].String()
	text = strings.ReplaceAll(text, `\"`, `"`)
	for _, want := range words {
		if !strings.Contains(text, want) {
			t.Errorf("expected %s, found %s", want, text)
		}
	}
}
