package objectstore_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gocloud.dev/blob"

	"trainmaster/internal/objectstore"
	"trainmaster/internal/objectstore/gcstest"
)

// uploadServer accepts one upload in chunks. It ignores bytes that it has, as the store does.
type uploadServer struct {
	mu     sync.Mutex
	data   []byte
	whole  bool
	faults []string // of the next chunks
}

func (s *uploadServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Method == http.MethodPost {
		if r.URL.Query().Get("uploadType") != "resumable" || r.URL.Query().Get("ifGenerationMatch") != "0" {
			http.Error(w, r.URL.RawQuery, http.StatusBadRequest)
			return
		}
		w.Header().Set("Location", "http://elsewhere.example/upload?upload_id=1")
		return
	}
	fault := ""
	if len(s.faults) > 0 {
		fault, s.faults = s.faults[0], s.faults[1:]
	}
	span, total, _ := strings.Cut(strings.TrimPrefix(r.Header.Get("Content-Range"), "bytes "), "/")
	from, to := len(s.data), len(s.data)-1
	if span != "*" {
		if _, err := fmt.Sscanf(span, "%d-%d", &from, &to); err != nil || to-from+1 != len(body) || from > len(s.data) {
			http.Error(w, "Content-Range", http.StatusBadRequest)
			return
		}
	}
	switch {
	case fault == "refused":
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case fault == "partly kept":
		body = body[:256<<10]
	}
	s.data = append(s.data, body[min(len(s.data)-from, len(body)):]...)
	s.whole = s.whole || total == fmt.Sprint(len(s.data))
	switch {
	case fault == "lost answer":
		panic(http.ErrAbortHandler)
	case s.whole && fault == "other size":
		fmt.Fprint(w, `{"size": "1"}`)
	case s.whole:
		fmt.Fprintf(w, `{"size": "%d"}`, len(s.data))
	default:
		w.Header().Set("Range", fmt.Sprintf("bytes=0-%d", len(s.data)-1))
		w.Header().Set("X-Http-Status-Code-Override", "308")
	}
}

// A large object of gs is uploaded in chunks: its source can pause for longer than the stall limit, and a chunk that failed is sent again.
func TestUploadInChunks(t *testing.T) {
	options := &blob.WriterOptions{ContentType: "text/plain", IfNotExist: true}
	for name, test := range map[string]struct {
		size   int
		faults []string
		pause  time.Duration // of the source
		stall  time.Duration
	}{
		"slow source": {16 << 20, nil, 16 * time.Second, 15 * time.Second},
		"refused":     {17<<20 + 1, []string{"", "refused", "", "refused", ""}, 0, time.Minute},
		"lost answer": {17<<20 + 1, []string{"lost answer", "", "", "lost answer"}, 0, time.Minute},
		"partly kept": {17<<20 + 1, []string{"partly kept", "", "", "partly kept"}, 0, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &uploadServer{faults: test.faults}
			b := openWithin(t, gsAt(serve(t, s.ServeHTTP)), test.stall)
			want := random(test.size)
			source := io.MultiReader(bytes.NewReader(want[:9<<20]), paused(test.pause), bytes.NewReader(want[9<<20:]))
			if err := b.Objects.Upload(limited(t), "a", source, options); err != nil {
				t.Fatal(err)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if !s.whole || !bytes.Equal(s.data, want) {
				t.Errorf("found %d bytes, or others", len(s.data))
			}
		})
	}
	s := &uploadServer{faults: []string{"", "other size"}}
	b := openWithin(t, gsAt(serve(t, s.ServeHTTP)), time.Minute)
	if err := b.Objects.Upload(limited(t), "a", bytes.NewReader(random(9<<20)), options); err == nil || !strings.Contains(err.Error(), "the object has 1") {
		t.Errorf("found %v", err)
	}
}

// paused is a source that takes that time, and has no bytes.
type paused time.Duration

func (p paused) Read([]byte) (int, error) {
	time.Sleep(time.Duration(p)) // the load of the test
	return 0, io.EOF
}

func TestUploadToAServer(t *testing.T) {
	store := gcstest.Start(t)
	b := openWithin(t, store.URL(""), time.Minute)
	for _, size := range []int{0, 1, 8 << 20, 20<<20 + 5} {
		key, want := fmt.Sprint(size), random(size)
		if err := b.Objects.Upload(limited(t), key, bytes.NewReader(want), &blob.WriterOptions{ContentType: "text/plain"}); err != nil {
			t.Fatal(err)
		}
		got, err := b.Objects.ReadAll(limited(t), key)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%d bytes: found %d, or others: %v", size, len(got), err)
		}
		a, err := b.Objects.Attributes(limited(t), key)
		if err != nil || a.ContentType != "text/plain" {
			t.Errorf("found %+v, %v", a, err)
		}
	}
	if _, err := b.Objects.Attributes(limited(t), "missing"); !objectstore.IsNotFound(err) {
		t.Errorf("found %v", err)
	}
}
