package dataset_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"trainmaster/dataset"
	"trainmaster/dataset/tfrecord"
	"trainmaster/internal/httpproxy"
	"trainmaster/internal/objectstore"
	"trainmaster/internal/objectstore/azuretest"
	"trainmaster/internal/objectstore/gcstest"
	"trainmaster/internal/objectstore/s3test"
	"trainmaster/recordio"
)

// store is an object store behind a proxy for faults.
type store struct {
	put    func(t testing.TB, key string, data []byte)
	proxy  *httpproxy.Proxy
	url    func(key string) string // through the proxy
	stores *dataset.Stores
}

func s3Store(t *testing.T) *store {
	s := s3test.Start(t)
	return newStore(t, s.Addr, s.Put, s3test.URLAt)
}

// eachStore runs a test for each store.
func eachStore(t *testing.T, test func(t *testing.T, s *store)) {
	t.Run("s3", func(t *testing.T) { test(t, s3Store(t)) })
	t.Run("gs", func(t *testing.T) {
		s := gcstest.Start(t)
		test(t, newStore(t, s.Addr, s.Put, gcstest.URLAt))
	})
	t.Run("azblob", func(t *testing.T) {
		s := azuretest.Start(t)
		test(t, newStore(t, s.Addr, s.Put, azuretest.URLAt))
	})
}

func newStore(t *testing.T, addr string, put func(t testing.TB, key string, data []byte), url func(addr, key string) string) *store {
	p, err := httpproxy.New(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return &store{put: put, proxy: p, url: func(key string) string { return url(p.Addr(), key) }, stores: stores(t)}
}

func stores(t *testing.T) *dataset.Stores {
	s := new(dataset.Stores)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// recordIO returns a RecordIO file of chunks with 10 records each.
func recordIO(t testing.TB, name string, chunks int) []byte {
	t.Helper()
	var b bytes.Buffer
	w := recordio.NewWriter(&b, recordio.WriterOptions{RecordsPerChunk: 10})
	for i := range 10 * chunks {
		if err := w.Write(bytes.Repeat(fmt.Appendf(nil, "%s %d,", name, i), 50)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func tfRecord(t testing.TB, name string, c tfrecord.Compression, n int) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tfrecord.NewWriter(&b, c)
	for i := range n {
		if err := w.Write(bytes.Repeat(fmt.Appendf(nil, "%s %d,", name, i), 50)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Objects are listed, indexed and read like files, in all formats: by chunks, and as a whole.
func TestDatasetInAStore(t *testing.T) { eachStore(t, datasetInAStore) }

func datasetInAStore(t *testing.T, s *store) {
	local := t.TempDir()
	files := map[string][]byte{
		"a-recordio": recordIO(t, "a", 40), "b-plain": tfRecord(t, "b", tfrecord.None, 5000), "c-gzip": tfRecord(t, "c", tfrecord.Gzip, 3000), "d e+f*": recordIO(t, "d", 2),
	}
	for name, data := range files {
		s.put(t, "data/"+name, data)
		put(t, local+"/"+name, data)
	}
	s.put(t, "data/.hidden", []byte("x"))
	s.put(t, "other", []byte("x"))
	source := dataset.Source{AnyURL: true, Stores: s.stores}
	listing := list(t, source, s.url("data/*"))
	for _, names := range [][]string{{s.url("data/")}, {s.url("data/[a-d]*"), s.url("data/a-recordio")}} {
		if again := list(t, source, names...); again.Digest != listing.Digest {
			t.Errorf("%q: another digest", names)
		}
	}
	want := list(t, dataset.Source{}, local+"/*")
	if len(listing.Files) != len(files) || len(want.Files) != len(files) {
		t.Fatalf("found %d files, expected %d", len(listing.Files), len(files))
	}
	indexer := dataset.Indexer{Stores: s.stores}
	indexes, err := indexer.Index(t.Context(), listing)
	if err != nil {
		t.Fatal(err)
	}
	wantIndexes, err := new(dataset.Indexer).Index(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range listing.Files {
		if f.Size != want.Files[i].Size || f.Header != want.Files[i].Header || f.ETag == "" || !slices.Equal(indexes[i], wantIndexes[i]) {
			t.Errorf("found %+v with chunks %v, expected %+v with %v", f, indexes[i], want.Files[i], wantIndexes[i])
		}
		if again := list(t, source, f.Path); again.Files[0] != f {
			t.Errorf("%s names %+v", f.Path, again.Files[0])
		}
		expected := records(t, want.Files[i].Path)
		whole, err := s.stores.OpenReader(t.Context(), f.Path)
		if err != nil {
			t.Fatal(err)
		}
		wantRecords(t, f.Path, whole.Records(), expected)
		if err := whole.Close(); err != nil {
			t.Error(err)
		}
		n := 0
		for _, ix := range indexes[i] {
			chunk, err := s.stores.OpenReaderAs(t.Context(), f.Path, ix.Layout, f.Stamp())
			if err != nil {
				t.Fatal(err)
			}
			wantRecords(t, f.Path, chunk.Chunk(ix), expected[n:][:ix.Records])
			if err := chunk.Close(); err != nil {
				t.Error(err)
			}
			n += int(ix.Records)
		}
	}
}

func records(t *testing.T, path string) (all [][]byte) {
	t.Helper()
	file, err := dataset.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for record, err := range file.Records() {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, bytes.Clone(record))
	}
	return all
}

func wantRecords(t *testing.T, name string, found func(func([]byte, error) bool), want [][]byte) {
	t.Helper()
	n := 0
	for record, err := range found {
		if err != nil || n >= len(want) || !bytes.Equal(record, want[n]) {
			t.Fatalf("%s: record %d of %d: found %.30q, %v", name, n, len(want), record, err)
		}
		n++
	}
	if n != len(want) {
		t.Errorf("%s: found %d records, expected %d", name, n, len(want))
	}
}

// F41: an object that was replaced since it was listed is an error that names it: when it is indexed, opened and read.
func TestReplacedObject(t *testing.T) { eachStore(t, replacedObject) }

func replacedObject(t *testing.T, s *store) {
	before, after := recordIO(t, "a", 3), recordIO(t, "b", 3)
	s.put(t, "a", before)
	url := s.url("a")
	source := dataset.Source{AnyURL: true, Stores: s.stores}
	listing := list(t, source, url)
	indexer := dataset.Indexer{Stores: s.stores}
	indexes, err := indexer.Index(t.Context(), listing)
	if err != nil {
		t.Fatal(err)
	}
	stamp := listing.Files[0].Stamp()
	open, err := s.stores.OpenReaderAs(t.Context(), url, recordio.First, stamp)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	isReplaced := func(name string, err error) {
		t.Helper()
		if !errors.Is(err, dataset.ErrReplaced) || !strings.Contains(err.Error(), "://checkpoints/a") {
			t.Errorf("%s: found error %v", name, err)
		}
	}
	first := func(r *dataset.Reader) error {
		for _, err := range r.Chunk(indexes[0][1]) {
			return err
		}
		return nil
	}
	s.put(t, "a", after)
	isReplaced("chunk of an open file", first(open))
	_, err = indexer.Index(t.Context(), listing)
	isReplaced("index", err)
	roots, err := dataset.NewRoots([]string{s.url("")})
	if err != nil {
		t.Fatal(err)
	}
	found, err := roots.Stat(t.Context(), s.stores, url)
	if err != nil {
		t.Fatal(err)
	}
	isReplaced("stamp", stamp.Compare(url, found))
	again, err := s.stores.OpenReaderAs(t.Context(), url, recordio.First, stamp)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	isReplaced("chunk", first(again))

	if _, err := s.stores.OpenReaderAs(t.Context(), url, recordio.First, dataset.Stamp{Size: stamp.Size, ModTime: stamp.ModTime}); err == nil || !strings.Contains(err.Error(), "expected a stamp with an ETag") {
		t.Errorf("a stamp without an ETag: found error %v", err)
	}
	if !strings.HasPrefix(url, "s3://") {
		return
	}
	s.put(t, "a", before) // equal bytes have equal ETags there
	if err := first(again); err != nil {
		t.Error(err)
	}
}

// Errors name the object.
func TestErrorsOfAStore(t *testing.T) {
	s := s3Store(t)
	s.put(t, "empty", nil)
	s.put(t, "damaged", []byte("a text, no RecordIO or TFRecord file"))
	source := dataset.Source{AnyURL: true, Stores: s.stores}
	for name, test := range map[string]struct {
		key  string
		want error
	}{
		"empty":    {"empty", recordio.ErrEmpty},
		"missing":  {"missing", fs.ErrNotExist},
		"no match": {"missing*", dataset.ErrNoMatch},
		"prefix":   {"missing/", dataset.ErrNoMatch},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := source.List(t.Context(), []string{s.url(test.key)}); !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.key) {
				t.Errorf("found error %v", err)
			}
		})
	}
	indexer := dataset.Indexer{Stores: s.stores}
	listing := list(t, source, s.url("damaged"))
	if _, err := indexer.Index(t.Context(), listing); !errors.Is(err, recordio.ErrBadMagic) || !strings.Contains(err.Error(), "s3://checkpoints/damaged") {
		t.Errorf("damaged: found error %v", err)
	}
	for _, name := range []string{s.url("a*"), s.url("a/")} {
		if _, err := s.stores.OpenReader(t.Context(), name); err == nil || !strings.Contains(err.Error(), "expected the URL of an object") {
			t.Errorf("%s: found error %v", name, err)
		}
	}
	s.proxy.Inject(1000, httpproxy.Fault{Status: 403})
	if _, err := source.List(t.Context(), []string{s.url("damaged")}); !errors.Is(err, dataset.ErrStore) || !strings.Contains(err.Error(), "s3://checkpoints/damaged") {
		t.Errorf("without permission: found error %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := source.List(ctx, []string{s.url("damaged")}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: found error %v", err)
	}
}

// A second pass reads from the cache.
func TestCacheOfAStore(t *testing.T) {
	s := s3Store(t)
	s.put(t, "a", recordIO(t, "a", 10))
	cache, err := objectstore.NewCache(t.TempDir(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	s.stores.Cache = cache
	listing := list(t, dataset.Source{AnyURL: true, Stores: s.stores}, s.url("a"))
	indexer := dataset.Indexer{Stores: s.stores}
	indexes, err := indexer.Index(t.Context(), listing)
	if err != nil {
		t.Fatal(err)
	}
	for pass := range 2 {
		s.proxy.Requests()
		for _, ix := range indexes[0] {
			file, err := s.stores.OpenReaderAs(t.Context(), listing.Files[0].Path, ix.Layout, listing.Files[0].Stamp())
			if err != nil {
				t.Fatal(err)
			}
			for _, err := range file.Chunk(ix) {
				if err != nil {
					t.Fatal(err)
				}
			}
			file.Close()
		}
		if n := s.proxy.Requests(); (n > 0) != (pass == 0) {
			t.Errorf("pass %d: %d requests", pass, n)
		}
	}
}

// One damaged answer of a store is read again, and is not in the cache of later passes.
func TestDamagedAnswerOfAStore(t *testing.T) {
	for name, data := range map[string][]byte{"recordio": recordIO(t, "a", 10), "tfrecord": tfRecord(t, "a", tfrecord.None, 10)} {
		t.Run(name, func(t *testing.T) {
			s := s3Store(t)
			s.put(t, "a", data)
			listing := list(t, dataset.Source{AnyURL: true, Stores: s.stores}, s.url("a"))
			indexer := dataset.Indexer{Stores: s.stores}
			indexes, err := indexer.Index(t.Context(), listing)
			if err != nil {
				t.Fatal(err)
			}
			ix, file := indexes[0][0], listing.Files[0]
			if s.stores.Cache, err = objectstore.NewCache(t.TempDir(), 1<<20); err != nil {
				t.Fatal(err)
			}
			s.proxy.Inject(1, httpproxy.Fault{Damage: true})
			for pass, mayAsk := range []bool{true, true, false} {
				s.proxy.Requests()
				r, err := s.stores.OpenReaderAs(t.Context(), file.Path, ix.Layout, file.Stamp())
				if err != nil {
					t.Fatal(err)
				}
				n := 0
				for record, err := range r.Chunk(ix) {
					if err != nil {
						t.Fatalf("pass %d: %v", pass, err)
					}
					if n++; !bytes.HasPrefix(record, []byte("a")) {
						t.Errorf("found %q", record)
					}
				}
				r.Close()
				if asked := s.proxy.Requests(); n != int(ix.Records) || asked > 0 != mayAsk {
					t.Errorf("pass %d: %d of %d records, %d requests", pass, n, ix.Records, asked)
				}
			}
		})
	}
}
