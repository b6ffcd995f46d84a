package objectstore_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"trainmaster/internal/httpproxy"
	"trainmaster/internal/objectstore"
	"trainmaster/internal/objectstore/azuretest"
	"trainmaster/internal/objectstore/gcstest"
	"trainmaster/internal/objectstore/s3test"
	"trainmaster/internal/tcpproxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is a store behind a proxy for faults.
type bench struct {
	put    func(t testing.TB, key string, data []byte)
	proxy  *httpproxy.Proxy
	bucket *objectstore.Bucket // through the proxy

	tag    string                                         // header of an answer with the stamp
	pinned func(request *http.Request, stamp string) bool // reports whether a request names the version

	missing int // requests for the bytes of an object that does not exist
}

// eachStore runs a test for each store.
func eachStore(t *testing.T, test func(t *testing.T, s *bench)) {
	for name, start := range map[string]func(t *testing.T) *bench{"s3": s3Bench, "gs": gcsBench, "azblob": azureBench} {
		t.Run(name, func(t *testing.T) { test(t, start(t)) })
	}
}

func s3Bench(t *testing.T) *bench {
	s := s3test.Start(t)
	b := &bench{put: s.Put, proxy: proxyTo(t, s.Addr), tag: "Etag", pinned: ifMatch, missing: 1}
	b.bucket = open(t, s3test.URLAt(b.proxy.Addr(), ""))
	return b
}

func gcsBench(t *testing.T) *bench {
	s := gcstest.Start(t)
	b := &bench{put: s.Put, proxy: proxyTo(t, s.Addr), tag: "X-Goog-Generation", missing: 2, pinned: func(request *http.Request, stamp string) bool {
		return request.URL.Query().Get("generation") == stamp
	}}
	b.bucket = open(t, gcstest.URLAt(b.proxy.Addr(), ""))
	return b
}

func azureBench(t *testing.T) *bench {
	s := azuretest.Start(t)
	b := &bench{put: s.Put, proxy: proxyTo(t, s.Addr), tag: "Etag", pinned: ifMatch, missing: 1}
	b.bucket = open(t, azuretest.URLAt(b.proxy.Addr(), ""))
	return b
}

func ifMatch(request *http.Request, stamp string) bool {
	return request.Header.Get("If-Match") == stamp
}

func proxyTo(t *testing.T, addr string) *httpproxy.Proxy {
	p, err := httpproxy.New(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func open(t *testing.T, store string) *objectstore.Bucket { return openWithin(t, store, time.Second) }

// openWithin opens a bucket with a stall limit.
func openWithin(t *testing.T, store string, limit time.Duration) *objectstore.Bucket {
	t.Helper()
	l, err := objectstore.Parse(store)
	if err != nil {
		t.Fatal(err)
	}
	b, err := objectstore.OpenStore(l.Store, limit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func random(n int) []byte {
	data := make([]byte, n)
	rand.NewChaCha8([32]byte{7}).Read(data) //nolint:errcheck // it has none
	return data
}

// limited returns a context for a read that must end.
func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func stat(t *testing.T, s *bench, key string) objectstore.Info {
	t.Helper()
	v, _, err := s.bucket.Stat(limited(t), key, make([]byte, 4))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Temporary faults are repaired by further requests: the bytes are right, and the read ends.
func TestReadAfterTemporaryFaults(t *testing.T) {
	eachStore(t, func(t *testing.T, s *bench) {
		data := random(3 << 20)
		s.put(t, "dir/a b+c", data)
		v := stat(t, s, "dir/a b+c")
		if v.Size != int64(len(data)) || v.Stamp == "" {
			t.Fatalf("found %+v", v)
		}
		requests := func(read func()) int {
			s.proxy.Requests() // of the preparation
			read()
			return s.proxy.Requests()
		}
		usual := requests(func() {
			if err := s.bucket.ReadRange(limited(t), "dir/a b+c", v, make([]byte, 2<<20), 1000); err != nil {
				t.Fatal(err)
			}
		})
		for name, fault := range map[string]struct {
			times int
			fault httpproxy.Fault
		}{
			"unavailable":            {3, httpproxy.Fault{Status: 503}},
			"too many requests":      {2, httpproxy.Fault{Status: 429}},
			"cut":                    {2, httpproxy.Fault{CutAfter: 700_000}},
			"lost answer":            {2, httpproxy.Fault{LoseAnswer: true}},
			"wrong length":           {2, httpproxy.Fault{Missing: 1000}},
			"range that is ignored":  {1, httpproxy.Fault{Headers: http.Header{"Content-Range": nil}}},
			"other range":            {1, httpproxy.Fault{Headers: http.Header{"Content-Range": {"bytes 0-2097151/3145728"}}}},
			"other size":             {1, httpproxy.Fault{Headers: http.Header{"Content-Range": {"bytes 0-9/10"}}}},
			"slow answer":            {1, httpproxy.Fault{Delay: 200 * time.Millisecond}},
			"connection that stalls": {1, httpproxy.Fault{Delay: 1200 * time.Millisecond}},
		} {
			t.Run(name, func(t *testing.T) {
				s.proxy.Inject(fault.times, fault.fault)
				got := make([]byte, 2<<20)
				n := requests(func() {
					if err := s.bucket.ReadRange(limited(t), "dir/a b+c", v, got, 1000); err != nil {
						t.Fatal(err)
					}
				})
				if !bytes.Equal(got, data[1000:][:len(got)]) {
					t.Error("found other bytes")
				}
				if want := usual + fault.times; name != "slow answer" && n < want {
					t.Errorf("found %d requests, expected at least %d", n, want)
				}
			})
		}
	})
}

// A read of an object that was replaced fails with an error that names it. A read that continues after a failure does not mix two versions.
func TestReplacedObject(t *testing.T) {
	eachStore(t, func(t *testing.T, s *bench) {
		data := random(1 << 20)
		s.put(t, "a", data)
		v := stat(t, s, "a")
		other := slices.Clone(data)
		other[17]++
		wantReplaced := func(name string) {
			t.Helper()
			if err := s.bucket.ReadRange(limited(t), "a", v, make([]byte, 1000), 0); !errors.Is(err, objectstore.ErrReplaced) || !strings.Contains(err.Error(), s.bucket.URL("a")) {
				t.Errorf("%s: found error %v", name, err)
			}
		}
		if err := s.bucket.ReadRange(limited(t), "a", v, make([]byte, 1000), 0); err != nil || !s.pinned(s.proxy.Last(), v.Stamp) {
			t.Errorf("expected a request that names the version, found %v", err)
		}
		s.proxy.Inject(100, httpproxy.Fault{Headers: http.Header{s.tag: {"1"}}})
		wantReplaced("store that ignores the version")
		s.proxy.Inject(0, httpproxy.Fault{})
		s.put(t, "a", other)
		wantReplaced("replaced before the read")
		s.put(t, "a", data)
		v = stat(t, s, "a")
		s.proxy.Inject(1, httpproxy.Fault{CutAfter: 300_000})
		read := make(chan error, 1)
		requests := 0
		replaced := make(chan struct{})
		var await func()
		await = func() { // later requests, as after the stall limit of the second
			s.proxy.Before(await)
			<-replaced
		}
		s.proxy.Before(func() {
			requests++
			s.proxy.Before(func() { // between the first and the second request
				s.proxy.Before(await)
				defer close(replaced)
				s.put(t, "a", other)
			})
		})
		go func() { read <- s.bucket.ReadRange(limited(t), "a", v, make([]byte, len(data)), 0) }()
		if err := <-read; !errors.Is(err, objectstore.ErrReplaced) || requests != 1 {
			t.Errorf("replaced during the read: found error %v", err)
		}
	})
}

// A read of an object that does not exist, and a read without permission, fail immediately.
func TestFinalErrorsAreNotRepeated(t *testing.T) {
	eachStore(t, func(t *testing.T, s *bench) {
		s.put(t, "a", []byte("data"))
		v := stat(t, s, "a")
		s.proxy.Requests()
		if _, _, err := s.bucket.Stat(limited(t), "none", make([]byte, 4)); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), s.bucket.URL("none")) {
			t.Errorf("found error %v", err)
		}
		s.proxy.Inject(100, httpproxy.Fault{Status: 403})
		if err := s.bucket.ReadRange(limited(t), "a", v, make([]byte, 4), 0); !errors.Is(err, objectstore.ErrUnavailable) || !strings.Contains(err.Error(), s.bucket.URL("a")) {
			t.Errorf("found error %v", err)
		}
		if n := s.proxy.Requests(); n != s.missing+1 {
			t.Errorf("found %d requests, expected %d", n, s.missing+1)
		}
	})
}

// A read gives up if the fault stays. Nothing that was not delivered is reported as read.
func TestReadGivesUp(t *testing.T) {
	objectstore.SetGiveUp(t, 500*time.Millisecond)
	eachStore(t, func(t *testing.T, s *bench) {
		s.put(t, "a", random(100_000))
		v := stat(t, s, "a")
		for name, test := range map[string]struct {
			fault httpproxy.Fault
			want  string
		}{
			"unavailable":  {httpproxy.Fault{Status: 503}, ""},
			"wrong length": {httpproxy.Fault{Missing: 100_000}, "expected 1000 bytes, found 0"},
			"lost answer":  {httpproxy.Fault{LoseAnswer: true}, "does not answer"},
			"other range":  {httpproxy.Fault{Headers: http.Header{"Content-Range": {"bytes 0-9/10"}}}, "the answer has other bytes"},
		} {
			t.Run(name, func(t *testing.T) {
				s.proxy.Inject(1_000_000, test.fault)
				began := time.Now()
				err := s.bucket.ReadRange(limited(t), "a", v, make([]byte, 1000), 5)
				if !errors.Is(err, objectstore.ErrUnavailable) || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), s.bucket.URL("a")) {
					t.Errorf("found error %v, expected %q", err, test.want)
				}
				if took := time.Since(began); took > 20*time.Second {
					t.Errorf("it took %v", took)
				}
			})
		}
	})
}

// A silent connection ends after the stall limit, and the read continues on another one.
func TestHeldConnection(t *testing.T) {
	s := s3test.Start(t)
	s.Put(t, "a", random(1000))
	proxy, err := tcpproxy.New(s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	b := open(t, s3test.URLAt(proxy.Addr(), ""))
	v, _, err := b.Stat(limited(t), "a", make([]byte, 4))
	if err != nil {
		t.Fatal(err)
	}
	proxy.HoldReplies(true)
	release := time.AfterFunc(1500*time.Millisecond, func() { proxy.HoldReplies(false) })
	defer release.Stop()
	if err := b.ReadRange(limited(t), "a", v, make([]byte, 1000), 0); err != nil {
		t.Error(err)
	}
	proxy.HoldReplies(true)
	ctx, cancel := context.WithCancel(limited(t))
	time.AfterFunc(50*time.Millisecond, cancel)
	if err := b.ReadRange(ctx, "a", v, make([]byte, 1000), 0); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

func TestEmptyObject(t *testing.T) {
	eachStore(t, func(t *testing.T, s *bench) {
		s.put(t, "empty", nil)
		if v := stat(t, s, "empty"); v.Size != 0 || v.Stamp == "" {
			t.Errorf("found %+v", v)
		}
	})
}

// A list has the objects that a URL stands for, also over several pages, or fails.
func TestMatching(t *testing.T) {
	eachStore(t, func(t *testing.T, s *bench) {
		for _, key := range []string{"list/a/1", "list/a/2", "list/a/.3", "list/ab", "list/b/1", "other"} {
			s.put(t, key, []byte("x"))
		}
		for name, want := range map[string][]string{
			"list/a/":     {"list/a/1", "list/a/2"},
			"list/a/*":    {"list/a/1", "list/a/2"},
			"list/*/1":    {"list/a/1", "list/b/1"},
			"list/a*":     {"list/ab"},
			"list/[ab]/2": {"list/a/2"},
			"list/c*":     nil,
		} {
			l, err := objectstore.Parse("s3://b/" + name)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for key, err := range s.bucket.Matching(limited(t), l) {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, key)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: %q, expected %q", name, got, want)
			}
		}
		l, err := objectstore.Parse("s3://b/list/")
		if err != nil {
			t.Fatal(err)
		}
		s.proxy.Inject(100, httpproxy.Fault{CutAfter: 20})
		n := 0
		for _, err := range s.bucket.Matching(limited(t), l) {
			if n++; err == nil || n > 1 {
				t.Errorf("a list that was cut: %d, %v", n, err)
			}
		}
		if n == 0 {
			t.Error("a list that was cut seems to be complete")
		}
	})
}

// A File delivers the bytes at any offset, with and without announced ranges.
func TestFile(t *testing.T) {
	eachStore(t, func(t *testing.T, s *bench) {
		data := random(9<<20 + 11)
		s.put(t, "a", data)
		v := stat(t, s, "a")
		for _, window := range []int64{0, 2 << 20, 1} {
			f := s.bucket.Open(limited(t), "a", v, window, nil)
			same := func(off int64, n int) {
				t.Helper()
				got := make([]byte, n)
				read, err := f.ReadAt(got, off)
				want := data[min(off, int64(len(data))):min(off+int64(n), int64(len(data)))]
				if !bytes.Equal(got[:read], want) || (err != nil) != (len(want) < n) || err != nil && !errors.Is(err, io.EOF) {
					t.Errorf("window %d: %d bytes at %d: found %d, %v", window, n, off, read, err)
				}
			}
			same(5, 10)
			f.Expect(0, int64(len(data)))
			for off := int64(0); off < int64(len(data)); off += 700_001 {
				same(off, 700_001)
			}
			f.Expect(1<<20, 3<<20)
			f.Expect(6<<20, 1<<20)
			same(2<<20, 100)   // behind the first announced byte
			same(100, 100)     // not announced
			same(6<<20+5, 100) // in the second range
			same(2<<20, 100)   // passed
			same(int64(len(data))-3, 10)
			same(int64(len(data)), 1)
			f.Expect(0, int64(len(data)))
			var readers sync.WaitGroup
			for i := range 4 {
				readers.Go(func() {
					for off := int64(i) * 1000; off < int64(len(data)); off += 1_300_000 {
						same(off, 400_000)
					}
				})
			}
			readers.Wait()
			f.Expect(0, int64(len(data)))
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// A File has a window of announced bytes in memory, also if the reader is slow.
func TestWindowIsBounded(t *testing.T) {
	s := s3Bench(t)
	s.put(t, "a", random(8<<20))
	f := s.bucket.Open(limited(t), "a", stat(t, s, "a"), 2<<20, nil)
	defer f.Close()
	s.proxy.Requests()
	f.Expect(0, 8<<20)
	objectstore.Settle(f)
	if n := s.proxy.Requests(); n != 8 {
		t.Errorf("found %d requests of 256 KiB, expected 8, a window", n)
	}
	if _, err := f.ReadAt(make([]byte, 700_000), 0); err != nil { // two pieces and a part of the third
		t.Fatal(err)
	}
	objectstore.Settle(f)
	if n := s.proxy.Requests(); n != 2 {
		t.Errorf("found %d more requests after 2 pieces were read", n)
	}
}

// A later File reads the same ranges from the cache, but no range of another version. A damaged entry is not used.
func TestCache(t *testing.T) {
	eachStore(t, func(t *testing.T, s *bench) {
		dir := t.TempDir()
		cache, err := objectstore.NewCache(dir, 16<<20)
		if err != nil {
			t.Fatal(err)
		}
		first, second := random(1<<20), slices.Repeat([]byte{'x'}, 1<<20)
		read := func(v objectstore.Info, want []byte) (requests int) {
			t.Helper()
			f := s.bucket.Open(limited(t), "a", v, 0, cache)
			defer f.Close()
			s.proxy.Requests()
			f.Expect(0, 1<<20)
			got := make([]byte, 1<<20)
			if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("found other bytes, %v", err)
			}
			return s.proxy.Requests()
		}
		s.put(t, "a", first)
		v1 := stat(t, s, "a")
		if n := read(v1, first); n == 0 {
			t.Error("the first read made no request")
		}
		if n := read(v1, first); n != 0 {
			t.Errorf("the second read made %d requests", n)
		}
		s.put(t, "a", second)
		v2 := stat(t, s, "a")
		if n := read(v2, second); n == 0 {
			t.Error("the read of another version made no request")
		}
		entries, err := filepath.Glob(filepath.Join(dir, "*.range"))
		if err != nil || len(entries) == 0 {
			t.Fatalf("%q, %v", entries, err)
		}
		for _, path := range entries {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			data[len(data)/2]++
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if n := read(v2, second); n == 0 {
			t.Error("damaged entries were used")
		}
	})
}

// The files of a cache stay within the limit. Entries that were used least recently are removed first.
func TestCacheLimit(t *testing.T) {
	dir := t.TempDir()
	const limit = 1 << 20
	cache, err := objectstore.NewCache(dir, limit)
	if err != nil {
		t.Fatal(err)
	}
	data := random(30_000)
	used := objectstore.CacheEntry(cache, "used", 0, len(data))
	used.Write(data)
	for i := range 200 {
		objectstore.CacheEntry(cache, "other", int64(i), len(data)).Write(data)
		if !used.Read(make([]byte, len(data))) {
			t.Fatalf("the entry that was used last was removed after %d others", i)
		}
	}
	if !objectstore.CacheEntry(cache, "other", 199, len(data)).Read(make([]byte, len(data))) {
		t.Error("the newest entry is not kept")
	}
	total := int64(0)
	found, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		total += info.Size()
	}
	if total > limit+limit/16 || total < limit/2 {
		t.Errorf("found %d bytes, expected at most %d", total, limit+limit/16)
	}
	if _, err := objectstore.NewCache(filepath.Join(dir, found[0].Name()), limit); err == nil {
		t.Error("a file was accepted as the directory")
	}
	if _, err := objectstore.NewCache(dir, 0); err == nil {
		t.Error("a limit of 0 was accepted")
	}
}
