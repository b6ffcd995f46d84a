package objectstore_test

import (
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"gocloud.dev/blob"

	"trainmaster/internal/objectstore"
)

// object has the bytes of every object of answerRange.
var object = []byte("0123456789")

var objectInfo = objectstore.Info{Size: int64(len(object)), Stamp: "1"}

// answerRange answers a read of gs.
func answerRange(w http.ResponseWriter, r *http.Request, data []byte) {
	var from, to int
	if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	to = min(to+1, len(data))
	w.Header().Set("X-Goog-Generation", "1")
	w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to-1, len(data)))
	w.WriteHeader(http.StatusPartialContent)
	w.Write(data[from:to]) //nolint:errcheck // the reader finds it
}

// gsAt returns the URL of a bucket of gs.
func gsAt(s *httptest.Server) string { return "gs://bucket/?endpoint=" + s.URL }

// serve starts a server that ends with the test.
func serve(t *testing.T, answer http.HandlerFunc) *httptest.Server {
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	return s
}

// startTLS starts a server with HTTP/2 that this process trusts.
func startTLS(t *testing.T, s *httptest.Server) {
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSL_CERT_FILE", file)
}

// A SAS token of Azure is in no error, and no other server receives it with a redirect.
func TestSignatureIsNotShown(t *testing.T) {
	objectstore.SetGiveUp(t, 100*time.Millisecond)
	t.Setenv("AZURE_STORAGE_KEY", "")
	t.Setenv("AZURE_STORAGE_ACCOUNT", "account")
	t.Setenv("AZURE_STORAGE_SAS_TOKEN", "sv=2024-01-01&sig=hidden")
	t.Setenv("AZURE_STORAGE_PROTOCOL", "http")
	var received atomic.Value
	other := serve(t, func(w http.ResponseWriter, r *http.Request) {
		received.Store(fmt.Sprint(r.URL, r.Header))
		w.WriteHeader(http.StatusNotFound)
	})
	silent := serve(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	redirecting := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", other.URL)
		w.WriteHeader(http.StatusTemporaryRedirect)
	})
	refusing := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	for name, server := range map[string]*httptest.Server{"silent": silent, "redirecting": redirecting, "refusing": refusing} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("AZURE_STORAGE_DOMAIN", strings.TrimPrefix(server.URL, "http://"))
			b := open(t, "azblob://container/dir")
			ctx := policy.WithRetryOptions(limited(t), policy.RetryOptions{MaxRetries: -1}) // less time
			_, uploading := objectstore.Explain(b.Objects.Upload(ctx, "a", bytes.NewReader(object), &blob.WriterOptions{ContentType: "text/plain"}))
			_, _, looking := b.Stat(ctx, "a", nil)
			errs := []error{looking, uploading, b.ReadRange(ctx, "a", objectInfo, make([]byte, 10), 0)}
			for _, err := range b.List(ctx, "", "") {
				errs = append(errs, err)
			}
			for _, err := range errs {
				if err == nil || strings.Contains(err.Error(), "hidden") {
					t.Errorf("found %v", err)
				}
			}
		})
	}
	if got, _ := received.Load().(string); got == "" || strings.Contains(got, "hidden") {
		t.Errorf("the target of a redirect received %s", got)
	}
}

// A read over a stalled stream of HTTP/2 ends after the stall limit, also while other streams of the connection transfer bytes.
func TestStalledStreamOfASharedConnection(t *testing.T) {
	objectstore.SetGiveUp(t, 100*time.Millisecond)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.URL.Path, "other") {
			if strings.Contains(r.URL.Path, "body") {
				w.Header().Set("X-Goog-Generation", "1")
				w.Header().Set("Content-Range", "bytes 0-9/10")
				w.WriteHeader(http.StatusPartialContent)
				w.(http.Flusher).Flush() //nolint:forcetypeassert // of net/http
			}
			<-r.Context().Done()
			return
		}
		if r.ProtoMajor != 2 {
			t.Errorf("found %s", r.Proto)
		}
		answerRange(w, r, object)
	}))
	startTLS(t, s)
	b := openWithin(t, gsAt(s), 300*time.Millisecond)
	stop := make(chan struct{})
	var others sync.WaitGroup
	others.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				err := b.ReadRange(limited(t), "other", objectInfo, make([]byte, 10), 0)
				if err != nil && !errors.Is(err, objectstore.ErrUnavailable) { // a slow machine may exceed the limit
					t.Error(err)
				}
			}
		}
	})
	for _, key := range []string{"header", "body"} {
		began := time.Now()
		err := b.ReadRange(limited(t), key, objectInfo, make([]byte, 10), 0)
		if took := time.Since(began); !errors.Is(err, objectstore.ErrUnavailable) || !strings.Contains(err.Error(), "does not answer") || took > 20*time.Second {
			t.Errorf("%s: after %v: %v", key, took, err)
		}
	}
	close(stop)
	others.Wait()
}

// deadable is a listener whose connections can die: they stay open and transfer nothing.
type deadable struct {
	net.Listener
	mu    sync.Mutex
	conns []*deadConn
}

type deadConn struct {
	net.Conn
	dead atomic.Bool
}

func (l *deadable) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &deadConn{Conn: conn}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns = append(l.conns, c)
	return c, nil
}

func (l *deadable) kill() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		c.dead.Store(true)
	}
	return len(l.conns)
}

func (c *deadConn) Write(p []byte) (int, error) {
	if c.dead.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// If all connections die, a read has one stalled attempt, and continues on a new connection.
func TestConnectionsThatDied(t *testing.T) {
	const limit = 2 * time.Second
	objectstore.SetGiveUp(t, 3*limit)
	for _, isHTTP2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("HTTP/2 %v", isHTTP2), func(t *testing.T) {
			var together sync.WaitGroup
			together.Add(8)
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.Contains(r.URL.Path, "together") {
					together.Done()
					together.Wait()
				}
				answerRange(w, r, object)
			}))
			l := &deadable{Listener: s.Listener}
			s.Listener = l
			if isHTTP2 {
				startTLS(t, s)
			} else {
				s.Start()
				t.Cleanup(s.Close)
			}
			b := openWithin(t, gsAt(s), limit)
			var reads sync.WaitGroup
			for range 8 {
				reads.Go(func() {
					if err := b.ReadRange(limited(t), "together", objectInfo, make([]byte, 10), 0); err != nil {
						t.Error(err)
					}
				})
			}
			reads.Wait()
			if n := l.kill(); n != 8 && !isHTTP2 {
				t.Errorf("found %d connections", n)
			}
			if err := b.ReadRange(limited(t), "a", objectInfo, make([]byte, 10), 0); err != nil {
				t.Error(err)
			}
		})
	}
}

// slowly reads a byte at a time.
type slowly struct {
	io.Reader
	pause time.Duration
}

func (s slowly) Read(p []byte) (int, error) {
	time.Sleep(s.pause) // the load of the test
	return s.Reader.Read(p[:1])
}

// A request that takes longer than the stall limit succeeds if it transfers bytes, and if its reader pauses.
func TestSlowTransfer(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		for _, b := range body {
			time.Sleep(100 * time.Millisecond)    // the load of the test
			w.Write([]byte{b})                    //nolint:errcheck // the reader finds it
			http.NewResponseController(w).Flush() //nolint:errcheck // as well
		}
	})
	data := bytes.Repeat(object, 2)
	r, err := http.NewRequestWithContext(limited(t), http.MethodPost, s.URL, slowly{bytes.NewReader(data), 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	do, end := objectstore.Do(time.Second)
	defer end()
	answer, err := do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	time.Sleep(1200 * time.Millisecond) // the load of the test
	if got, err := io.ReadAll(answer.Body); err != nil || !bytes.Equal(got, data) {
		t.Errorf("found %q, %v", got, err)
	}
}

// Redirects without end are an error, which is not tried again.
func TestRedirectsEnd(t *testing.T) {
	var requests atomic.Int32
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		w.Header().Set("Location", r.URL.String())
		w.WriteHeader(http.StatusPermanentRedirect)
	})
	b := open(t, gsAt(s))
	began := time.Now()
	err := b.ReadRange(limited(t), "a", objectInfo, make([]byte, 10), 0)
	if !errors.Is(err, objectstore.ErrUnavailable) || !strings.Contains(err.Error(), "another service answers") || requests.Load() > 11 || time.Since(began) > 20*time.Second {
		t.Errorf("after %v and %d requests: %v", time.Since(began), requests.Load(), err)
	}
}

// An answer of another service at the address of a store is an error of the store: no object is missing, and the driver does not panic.
func TestAnswersOfAnotherService(t *testing.T) {
	objectstore.SetGiveUp(t, 100*time.Millisecond)
	t.Setenv("AZURE_STORAGE_ACCOUNT", "account")
	t.Setenv("AZURE_STORAGE_KEY", "aGlkZGVu")
	t.Setenv("AZURE_STORAGE_SAS_TOKEN", "")
	header := func(names ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for _, name := range names {
				w.Header().Set(name, time.Now().UTC().Format(http.TimeFormat))
			}
			w.Header().Set("ETag", "1")
			io.WriteString(w, "<EnumerationResults></EnumerationResults>") //nolint:errcheck // the reader finds it
		}
	}
	for name, test := range map[string]struct {
		answer http.HandlerFunc
		store  func(s *httptest.Server) string
	}{
		"gs not found":             {http.NotFound, gsAt},
		"azblob page":              {header(), azureAt},
		"azblob no time":           {header("X-Ms-Version", "X-Ms-Creation-Time"), azureAt},
		"azblob no creation time":  {header("X-Ms-Version", "Last-Modified"), azureAt},
		"azblob not found":         {http.NotFound, azureAt},
		"azblob nothing but times": {header("Last-Modified", "X-Ms-Creation-Time"), azureAt},
	} {
		t.Run(name, func(t *testing.T) {
			b := open(t, test.store(serve(t, test.answer)))
			defer func() {
				if cause := recover(); cause != nil {
					t.Errorf("panic: %v", cause)
				}
			}()
			ctx := policy.WithRetryOptions(limited(t), policy.RetryOptions{MaxRetries: -1}) // less time
			err := b.ReadRange(ctx, "a", objectInfo, make([]byte, 10), 0)
			if !errors.Is(err, objectstore.ErrUnavailable) || errors.Is(err, objectstore.ErrReplaced) {
				t.Errorf("read: %v", err)
			}
			if strings.HasPrefix(name, "gs") && !strings.Contains(err.Error(), "another service answers") {
				t.Errorf("read: %v", err)
			}
			if _, err := b.Objects.Attributes(ctx, "a"); err == nil || objectstore.IsNotFound(err) {
				t.Errorf("attributes: %v", err)
			}
			if err := b.Objects.Delete(ctx, "a"); err == nil || objectstore.IsNotFound(err) {
				t.Errorf("delete: %v", err)
			}
			for _, err := range b.List(ctx, "", "") {
				if err == nil || objectstore.IsNotFound(err) {
					t.Errorf("list: %v", err)
				}
			}
		})
	}
}

// azureAt returns the URL of a container of Azure.
func azureAt(s *httptest.Server) string {
	return "azblob://container/?protocol=http&domain=" + strings.TrimPrefix(s.URL, "http://")
}

// A token of Microsoft Entra ID is sent only to the address of the environment.
func TestTokenIsNotSentElsewhere(t *testing.T) {
	for _, name := range []string{"AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_DOMAIN"} {
		t.Setenv(name, "")
	}
	t.Setenv("AZURE_STORAGE_ACCOUNT", "account")
	for store, isRefused := range map[string]bool{
		"azblob://container":                                    false,
		"azblob://container?storage_account=other":              false,
		"azblob://container?domain=storage.example":             true,
		"azblob://container?cdn=true":                           true,
		"azblob://container?localemu=true":                      true,
		"azblob://container?storage_account=storage.example%2f": true,
	} {
		u, err := url.Parse(store)
		if err != nil {
			t.Fatal(err)
		}
		b, err := objectstore.Open(u, time.Second)
		if err == nil {
			b.Close()
		}
		if isRefused != (err != nil && strings.Contains(err.Error(), "set AZURE_STORAGE_DOMAIN")) || !isRefused && err != nil {
			t.Errorf("%s: %v", store, err)
		}
	}
}

// An empty object that is replaced during a look at it is not described by the size of the new one, without its bytes.
func TestEmptyObjectIsReplaced(t *testing.T) {
	var replaced atomic.Bool
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Query().Get("alt") != "media":
			replaced.Store(true)
			fmt.Fprintf(w, `{"size": "%d", "generation": "1"}`, len(object))
		case replaced.Load():
			answerRange(w, r, object)
		default:
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
		}
	})
	p := make([]byte, 4)
	if v, n, err := open(t, gsAt(s)).Stat(limited(t), "a", p); err != nil || n != 4 || v.Size != int64(len(object)) || string(p) != "0123" {
		t.Errorf("found %+v, %d bytes %q, %v", v, n, p, err)
	}
}
