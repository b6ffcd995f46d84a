package storage_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"trainmaster/internal/httpproxy"
	"trainmaster/internal/objectstore/azuretest"
	"trainmaster/internal/objectstore/gcstest"
	"trainmaster/internal/objectstore/s3test"
	"trainmaster/internal/tcpproxy"
	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/checkpoint/storage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, where string) checkpoint.Place {
	t.Helper()
	p, err := storage.Open(where)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// What every place promises.
func TestPlaces(t *testing.T) {
	for name, where := range map[string]func(t *testing.T) string{
		"folder":             func(t *testing.T) string { return t.TempDir() },
		"bucket":             func(t *testing.T) string { return s3test.Start(t).URL("") },
		"prefix of a bucket": func(t *testing.T) string { return s3test.Start(t).URL("jobs/one/") },
		"gs":                 func(t *testing.T) string { return gcstest.Start(t).URL("jobs/one") },
		"azblob":             func(t *testing.T) string { return azuretest.Start(t).URL("jobs/one") },
	} {
		t.Run(name, func(t *testing.T) {
			p := open(t, where(t))
			for name, check := range map[string]func(*testing.T, checkpoint.Place){
				"written": written, "large": large, "dropped": dropped, "listed": listed, "claimed": claimed, "removed": removed,
			} {
				t.Run(name, func(t *testing.T) { check(t, p) })
			}
		})
	}
}

func put(t testing.TB, p checkpoint.Place, name string, data []byte, kind checkpoint.Kind) error {
	t.Helper()
	if err := p.Prepare(path.Dir(name)); err != nil {
		t.Fatal(err)
	}
	f, err := p.Create(t.Context(), name, int64(len(data)), kind)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := f.Publish(); err != nil {
		return err
	}
	return p.Sync(path.Dir(name))
}

func get(t testing.TB, p checkpoint.Place, name string) ([]byte, error) {
	t.Helper()
	f, err := p.Open(t.Context(), name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.NewSectionReader(f, 0, f.Size()))
}

func wants(t testing.TB, p checkpoint.Place, name, want string) {
	t.Helper()
	if got, err := get(t, p, name); err != nil || string(got) != want {
		t.Errorf("%s: %q, %v; expected %q", name, got, err, want)
	}
}

// A file exists only after it is published. A later file replaces it.
func written(t *testing.T, p checkpoint.Place) {
	if _, err := get(t, p, "written/a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before it was written: %v", err)
	}
	if err := p.Prepare("written"); err != nil {
		t.Fatal(err)
	}
	f, err := p.Create(t.Context(), "written/a", 5, checkpoint.Replaced)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("first")); err != nil {
		t.Fatal(err)
	}
	if _, err := get(t, p, "written/a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before it was published: %v", err)
	}
	if err := f.Publish(); err != nil {
		t.Fatal(err)
	}
	wants(t, p, "written/a", "first")
	for _, kind := range []checkpoint.Kind{checkpoint.Replaced, checkpoint.Final} {
		for _, text := range []string{"", "second", "second"} { // the same content may be written again
			if err := put(t, p, "written/"+string(rune('b'+kind))+text, []byte(text), kind); err != nil {
				t.Fatal(err)
			}
			wants(t, p, "written/"+string(rune('b'+kind))+text, text)
		}
	}
	if err := put(t, p, "written/a", []byte("second"), checkpoint.Replaced); err != nil {
		t.Fatal(err)
	}
	wants(t, p, "written/a", "second")
}

// Large files go in parts; they are read in any order.
func large(t *testing.T, p checkpoint.Place) {
	data := make([]byte, 35<<20+17)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(data)
	if err := p.Prepare("large"); err != nil {
		t.Fatal(err)
	}
	f, err := p.Create(t.Context(), "large/a", int64(len(data)), checkpoint.Replaced)
	if err != nil {
		t.Fatal(err)
	}
	for rest := data; len(rest) > 0; {
		n := min(len(rest), 1<<20-1)
		if _, err := f.Write(rest[:n]); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
	}
	if err := f.Publish(); err != nil {
		t.Fatal(err)
	}
	o, err := p.Open(t.Context(), "large/a")
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if o.Size() != int64(len(data)) {
		t.Fatalf("%d bytes, expected %d", o.Size(), len(data))
	}
	size := len(data)
	for _, at := range [][2]int{{0, 8}, {8, 100}, {5 << 20, 1 << 20}, {6 << 20, 1 << 20}, {7<<20 + 5, 10}, {3, 9}, {size - 3, 3}, {size - 3, 10}, {size, 1}, {0, size}} {
		from, n := at[0], at[1]
		got := make([]byte, n)
		read, err := o.ReadAt(got, int64(from))
		want := data[from:min(from+n, size)]
		if !bytes.Equal(got[:read], want) || (err == io.EOF) != (from+n > size) {
			t.Errorf("%d bytes at %d: read %d, %v", n, from, read, err)
		}
	}
}

// A dropped file never exists.
func dropped(t *testing.T, p checkpoint.Place) {
	if err := p.Prepare("dropped"); err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]int{"small": 3, "in parts": 40 << 20} {
		f, err := p.Create(t.Context(), "dropped/"+name, int64(size), checkpoint.Replaced)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		f.Close()
		if _, err := get(t, p, "dropped/"+name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := p.RemoveAll(t.Context(), "dropped"); err != nil {
		t.Fatal(err)
	}
}

func listed(t *testing.T, p checkpoint.Place) {
	if names, err := p.List(t.Context(), "listed"); err != nil || len(names) != 0 {
		t.Errorf("%q, %v; expected nothing", names, err)
	}
	for _, name := range []string{"listed/a", "listed/b/c", "listed/b/d/e", "listed2/f"} {
		if err := put(t, p, name, []byte("x"), checkpoint.Final); err != nil {
			t.Fatal(err)
		}
	}
	names, err := p.List(t.Context(), "listed")
	if slices.Sort(names); err != nil || !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("%q, %v", names, err)
	}
	if names, err := p.List(t.Context(), ""); err != nil || !slices.Contains(names, "listed") || !slices.Contains(names, "listed2") {
		t.Errorf("%q, %v", names, err)
	}
}

// A dir is one claimer's, until it is removed.
func claimed(t *testing.T, p checkpoint.Place) {
	if err := p.Prepare("claimed"); err != nil {
		t.Fatal(err)
	}
	const claimers = 8
	results := make(chan error, claimers)
	for range claimers {
		go func() { results <- p.Claim(t.Context(), "claimed/a") }()
	}
	got := 0
	for range claimers {
		switch err := <-results; {
		case err == nil:
			got++
		case !errors.Is(err, fs.ErrExist):
			t.Error(err)
		}
	}
	if got != 1 {
		t.Errorf("%d have the claim", got)
	}
	if names, err := p.List(t.Context(), "claimed"); err != nil || !slices.Equal(names, []string{"a"}) {
		t.Errorf("a claimed dir is not listed: %q, %v", names, err)
	}
	if err := p.RemoveAll(t.Context(), "claimed/a"); err != nil {
		t.Fatal(err)
	}
	if err := p.Claim(t.Context(), "claimed/a"); err != nil {
		t.Errorf("after it was removed: %v", err)
	}
}

func removed(t *testing.T, p checkpoint.Place) {
	for _, name := range []string{"removed/a", "removed/b/c", "removed/b/d/e", "removed/bb"} {
		if err := put(t, p, name, []byte("x"), checkpoint.Replaced); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // absent files are no error
		if err := errors.Join(p.Remove(t.Context(), "removed/a"), p.RemoveAll(t.Context(), "removed/b")); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"removed/a", "removed/b/c", "removed/b/d/e"} {
		if _, err := get(t, p, name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	wants(t, p, "removed/bb", "x")
}

// A final object in a bucket stays, whichever process wrote it.
func TestFinalObjectsStay(t *testing.T) {
	s := s3test.Start(t)
	one, other := open(t, s.URL("p")), open(t, s.URL("p"))
	if err := put(t, one, "sets/1", []byte("first"), checkpoint.Final); err != nil {
		t.Fatal(err)
	}
	if err := put(t, other, "sets/1", []byte("other"), checkpoint.Final); !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), "s3://checkpoints/p/sets/1") {
		t.Errorf("another one: %v", err)
	}
	wants(t, one, "sets/1", "first")
}

// A killed process leaves invisible parts of an upload. They are removed with the directory.
func TestUnfinishedUploadsAreRemoved(t *testing.T) {
	s := s3test.Start(t)
	proxy, err := tcpproxy.New(s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	p := open(t, s3test.URLAt(proxy.Addr(), "p"))
	f, err := p.Create(t.Context(), "dir/a", 40<<20, checkpoint.Replaced)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(make([]byte, 40<<20)); err != nil {
		t.Fatal(err)
	}
	proxy.Refuse(true) // it cannot be ended any more
	proxy.Cut()
	f.Close()
	parts := func() (found []string) {
		err := fs.WalkDir(os.DirFS(s.Path("")), ".", func(name string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				found = append(found, name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if len(parts()) == 0 {
		t.Fatal("nothing was uploaded")
	}
	proxy.Refuse(false)
	if names, err := p.List(t.Context(), ""); err != nil || len(names) != 0 {
		t.Errorf("%q, %v: a part of an upload is seen", names, err)
	}
	// The server may still be storing a part that arrived before the cut. S3 documents this too: an upload may have to be
	// aborted again.
	bounded, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for left := parts(); len(left) != 0; left = parts() {
		if err := p.RemoveAll(bounded, "dir"); err != nil {
			t.Fatalf("left: %q, %v", left, err)
		}
	}
}

// A stream that is cut continues at the same offset.
func TestCutStreamContinues(t *testing.T) {
	s := s3test.Start(t)
	proxy, err := tcpproxy.New(s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	data := make([]byte, 30<<20)
	rand.NewChaCha8([32]byte{2}).Read(data)
	if err := put(t, open(t, s.URL("p")), "a", data, checkpoint.Replaced); err != nil {
		t.Fatal(err)
	}
	o, err := open(t, s3test.URLAt(proxy.Addr(), "p")).Open(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	for at := 0; at < len(data); at += 1 << 20 {
		got := make([]byte, 1<<20)
		if at%(10<<20) == 0 {
			proxy.Cut()
		}
		if _, err := o.ReadAt(got, int64(at)); err != nil || !bytes.Equal(got, data[at:at+len(got)]) {
			t.Fatalf("at %d: %v", at, err)
		}
	}
}

// A request to a silent store ends with the context or the stall limit. Existing objects stay.
func TestSilentStore(t *testing.T) {
	storage.SetStallLimit(t, 200*time.Millisecond)
	s := s3test.Start(t)
	proxy, err := tcpproxy.New(s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	p := open(t, s3test.URLAt(proxy.Addr(), "p"))
	if err := put(t, p, "a", []byte("x"), checkpoint.Replaced); err != nil {
		t.Fatal(err)
	}
	write := func(ctx context.Context, size int) error {
		f, err := p.Create(ctx, "b", int64(size), checkpoint.Replaced)
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := f.Write(make([]byte, size)); err != nil {
			return err
		}
		return f.Publish()
	}
	proxy.HoldRequests(true)
	patience, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, size := range []int{10, 40 << 20} {
		if err := write(patience, size); !errors.Is(err, checkpoint.ErrUnavailable) || !strings.Contains(err.Error(), "does not answer") {
			t.Errorf("write %d bytes: %v", size, err)
		}
	}
	if f, err := p.Open(patience, "a"); !errors.Is(err, checkpoint.ErrUnavailable) {
		t.Errorf("read: %v, %v", f, err)
	}
	if patience.Err() != nil {
		t.Fatal("request to a silent store did not end")
	}
	proxy.HoldRequests(false)
	proxy.Cut()
	wants(t, p, "a", "x")

	storage.SetStallLimit(t, time.Hour)
	p = open(t, s3test.URLAt(proxy.Addr(), "p"))
	proxy.HoldRequests(true)
	ctx, giveUp := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- write(ctx, 40<<20) }()
	for proxy.HeldRequests() == 0 {
		time.Sleep(time.Millisecond) // interval between checks
	}
	giveUp()
	select {
	case err := <-result:
		if !errors.Is(err, checkpoint.ErrUnavailable) || !strings.Contains(err.Error(), "it was given up") {
			t.Errorf("canceled: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("a canceled upload continues")
	}
}

// Mistakes are named, with what to do about them; no secret is in any message.
func TestMistakesAreNamed(t *testing.T) {
	for where, want := range map[string]string{
		"ftp://bucket/prefix":                                "expected a directory or s3://bucket/prefix",
		"gs://bucket/p?colour=blue":                          "expected the parameters endpoint=URL and anonymous=true",
		"azblob://bucket/p?colour=blue":                      `unknown query parameter "colour"`,
		"s3:///prefix":                                       "expected a directory or s3://bucket/prefix",
		"s3://key:hidden@bucket/p":                           "expected a URL without credentials",
		"s3://bucket/p?endpoint=http://a:hidden@127.0.0.1:1": "expected endpoint to be a URL without credentials",
		"s3://bucket/p?endpoint=127.0.0.1:9000":              "expected endpoint to be a URL",
		"s3://bucket/p?region=r&colour=blue":                 `unknown query parameter "colour"`,
		"s3://bucket/p":                                      "add region=NAME to the URL, or set AWS_REGION",
	} {
		t.Setenv("AWS_REGION", "")
		t.Setenv("AWS_CONFIG_FILE", os.DevNull)
		if _, err := storage.Open(where); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v, expected %q", where, err, want)
		}
	}
	s := s3test.Start(t)
	proxy, err := tcpproxy.New(s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	proxy.Refuse(true)
	for want, change := range map[string]func(*testing.T) string{
		"there is no such bucket": func(*testing.T) string { return strings.Replace(s.URL("p"), s3test.Bucket, "nobodys", 1) },
		"does not know these credentials": func(t *testing.T) string {
			t.Setenv("AWS_SECRET_ACCESS_KEY", s3test.Secret+"2")
			return s.URL("p")
		},
		"found no credentials": func(t *testing.T) string {
			t.Setenv("AWS_ACCESS_KEY_ID", "")
			t.Setenv("AWS_SECRET_ACCESS_KEY", "")
			return s.URL("p")
		},
		"may not do that":   func(*testing.T) string { return s.URL("p") + "&anonymous=true" },
		"in another region": func(*testing.T) string { return s.URL("p") + "&region=eu-central-1" },
		"does not answer":   func(*testing.T) string { return s3test.URLAt(proxy.Addr(), "p") },
	} {
		t.Run(want, func(t *testing.T) {
			p := open(t, change(t))
			_, listErr := p.List(t.Context(), "dir")
			_, readErr := get(t, p, "dir/a")
			for do, err := range map[string]error{"list": listErr, "read": readErr, "write": put(t, p, "dir/a", []byte("x"), checkpoint.Replaced)} {
				if !errors.Is(err, checkpoint.ErrUnavailable) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), do+" "+p.String()+"/dir/") || strings.Contains(err.Error(), s3test.Secret) {
					t.Errorf("%s: %v", do, err)
				}
			}
		})
	}
}

// F51: if the store cuts the connection, before its answer or within it, a list fails. It does not return a shorter list.
func TestListOverACutConnectionFails(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	for name, answer := range map[string]string{
		"before the answer":   "",
		"within the headers":  "HTTP/1.1 200 OK\r\nContent-Type: appl",
		"within the document": "HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: 500\r\n\r\n<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>a</Key></Contents>",
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var serving sync.WaitGroup
			serving.Go(func() {
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
						_, _ = io.WriteString(conn, answer)
					}
					conn.Close()
				}
			})
			defer serving.Wait()
			defer listener.Close()
			p := open(t, s3test.URLAt(listener.Addr().String(), "p"))
			if names, err := p.List(t.Context(), "dir"); !errors.Is(err, checkpoint.ErrUnavailable) {
				t.Errorf("the list is %q, %v, expected an error", names, err)
			}
		})
	}
}

// Without credentials the metadata service of a machine is asked only if the environment allows it.
func TestMetadataServiceIsAskedOnlyOnRequest(t *testing.T) {
	s := s3test.Start(t)
	where := s.URL("p")
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_CONFIG_FILE", os.DevNull)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", os.DevNull)
	var asked atomic.Int32
	metadata := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		http.Error(w, "not here", http.StatusForbidden)
	}))
	defer metadata.Close()
	t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.URL)
	for _, allowed := range []bool{false, true} {
		t.Setenv("AWS_EC2_METADATA_DISABLED", map[bool]string{true: "false", false: ""}[allowed])
		asked.Store(0)
		_, err := open(t, where).List(t.Context(), "dir")
		if !errors.Is(err, checkpoint.ErrUnavailable) || !strings.Contains(err.Error(), "found no credentials: set AWS_ACCESS_KEY_ID") {
			t.Errorf("found %v", err)
		}
		if n := asked.Load(); (n > 0) != allowed {
			t.Errorf("AWS_EC2_METADATA_DISABLED=%q: the metadata service was asked %d times", os.Getenv("AWS_EC2_METADATA_DISABLED"), n)
		}
	}
}

// If the answer to the creation of a final object is lost, the refusal of the repeated request is compared: the object is our own, or of another
// process. No other error and no panic comes.
func TestRefusedCreation(t *testing.T) {
	for name, start := range map[string]func(t *testing.T) (addr string, url func(addr string) string){
		"s3": func(t *testing.T) (string, func(string) string) {
			return s3test.Start(t).Addr, func(addr string) string { return s3test.URLAt(addr, "p") }
		},
		"gs": func(t *testing.T) (string, func(string) string) {
			return gcstest.Start(t).Addr, func(addr string) string { return gcstest.URLAt(addr, "p") }
		},
		"azblob": func(t *testing.T) (string, func(string) string) {
			return azuretest.Start(t).Addr, func(addr string) string { return azuretest.URLAt(addr, "p") }
		},
	} {
		t.Run(name, func(t *testing.T) {
			addr, url := start(t)
			proxy, err := httpproxy.New(addr)
			if err != nil {
				t.Fatal(err)
			}
			defer proxy.Close()
			p := open(t, url(proxy.Addr()))
			proxy.Inject(1, httpproxy.Fault{Methods: "PUT POST", LoseAnswer: true})
			if err := put(t, p, "a", []byte("own"), checkpoint.Final); err != nil {
				t.Errorf("answer lost: %v", err)
			}
			wants(t, p, "a", "own")
			if err := put(t, p, "a", []byte("other"), checkpoint.Final); !errors.Is(err, fs.ErrExist) {
				t.Errorf("other content: %v", err)
			}
			if err := put(t, p, "a", []byte("own"), checkpoint.Final); err != nil {
				t.Errorf("same content: %v", err)
			}
			proxy.Inject(2, httpproxy.Fault{Methods: "PUT POST", Status: 503})
			if err := put(t, p, "b", []byte("own"), checkpoint.Final); err != nil {
				t.Errorf("503 twice: %v", err)
			}
			wants(t, p, "b", "own")
		})
	}
}
