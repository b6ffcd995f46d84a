package proxy_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"trainmaster/dataset"
	"trainmaster/dataset/proxy"
	"trainmaster/internal/httpproxy"
	"trainmaster/internal/objectstore"
	"trainmaster/internal/objectstore/s3test"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/recordio"
)

// A data proxy reads objects in its roots as it reads files, also while the store has temporary faults. An object that was replaced, and
// one outside of the roots, is refused.
func TestObjects(t *testing.T) {
	store := s3test.Start(t)
	faults, err := httpproxy.New(store.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer faults.Close()
	url := func(key string) string { return s3test.URLAt(faults.Addr(), key) }
	const records = 20_000
	text := func(i int) []byte { return fmt.Appendf(nil, "record %d %s", i, strings.Repeat("x", i%300)) }
	write := func(key string, first int) {
		var b bytes.Buffer
		w := recordio.NewWriter(&b, recordio.WriterOptions{ChunkBytes: 64 << 10})
		for i := range records {
			if err := w.Write(text(first + i)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		store.Put(t, key, b.Bytes())
	}
	write("data/a", 0)
	write("data/b", records)
	write("other/a", 0)
	stores := new(dataset.Stores)
	defer stores.Close()
	listing, err := dataset.Source{AnyURL: true, Stores: stores}.List(t.Context(), []string{url("data/")})
	if err != nil {
		t.Fatal(err)
	}
	spec := &pb.DataFilesSpec{}
	for _, f := range listing.Files {
		s := f.Stamp()
		spec.Files = append(spec.Files, &pb.DataFileSpec{Path: f.Path, NumRecord: records, Stamp: &pb.FileStamp{Size: s.Size, ModifiedNanos: s.ModTime, Etag: s.ETag}})
	}
	p := serve(t, proxy.Config{Roots: []string{url("data")}, Stores: stores}, "")
	for name, fault := range map[string]httpproxy.Fault{
		"none": {}, "refusal": {Status: 503}, "cut": {CutAfter: 1000}, "wrong length": {Missing: 10}, "lost answer": {LoseAnswer: true},
	} {
		t.Run(name, func(t *testing.T) {
			faults.Inject(4, fault)
			n := 7
			for record, err := range (&proxy.Client{Conn: p.conn}).Records(t.Context(), spec, int64(n)) {
				if err != nil || !bytes.Equal(record, text(n)) {
					t.Fatalf("record %d: found %.30q, %v", n, record, err)
				}
				n++
			}
			if n != 2*records {
				t.Errorf("found %d records", n)
			}
		})
	}
	created, err := p.api.CreateStream(t.Context(), &pb.CreateStreamRequest{Spec: spec})
	if err != nil {
		t.Fatal(err)
	}
	write("data/b", 0)
	in, err := p.api.ReadData(t.Context(), &pb.DataBatchRequest{StreamId: created.StreamId, StartRecord: records, BatchSize: 100})
	if err == nil {
		_, err = in.Recv()
	}
	wants(t, err, codes.FailedPrecondition, "FILE_REPLACED", "data/b")
	_, err = p.api.CreateStream(t.Context(), &pb.CreateStreamRequest{Spec: spec})
	wants(t, err, codes.FailedPrecondition, "FILE_REPLACED", "data/b")
	spec.Files[1].Path = url("other/a")
	_, err = p.api.CreateStream(t.Context(), &pb.CreateStreamRequest{Spec: spec})
	wants(t, err, codes.InvalidArgument, "OUTSIDE_ROOTS", "other/a")
}

// objectsOf writes one object of 10 records, and returns its URL and a function that replaces it.
func objectsOf(t *testing.T) (faults *httpproxy.Proxy, url string, put func(prefix string)) {
	store := s3test.Start(t)
	faults, err := httpproxy.New(store.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(faults.Close)
	put = func(prefix string) {
		var b bytes.Buffer
		w := recordio.NewWriter(&b, recordio.WriterOptions{RecordsPerChunk: 2})
		for i := range 10 {
			if err := w.Write(fmt.Appendf(nil, "%s %d", prefix, i)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		store.Put(t, "data/a", b.Bytes())
	}
	put("first")
	return faults, s3test.URLAt(faults.Addr(), "data/a"), put
}

func storesOf(t *testing.T) *dataset.Stores {
	s := new(dataset.Stores)
	t.Cleanup(func() { s.Close() })
	return s
}

// A run of records with a stamp has no record of another version, also if an earlier run without a stamp has opened that version.
func TestStampOfASecondRun(t *testing.T) {
	_, url, put := objectsOf(t)
	stores := storesOf(t)
	listing, err := dataset.Source{AnyURL: true, Stores: stores}.List(t.Context(), []string{url})
	if err != nil {
		t.Fatal(err)
	}
	stamp := listing.Files[0].Stamp()
	p := serve(t, proxy.Config{Roots: []string{url}, Stores: stores}, "")
	created, err := p.api.CreateStream(t.Context(), &pb.CreateStreamRequest{Spec: &pb.DataFilesSpec{Files: []*pb.DataFileSpec{
		{Path: url, NumRecord: 5},
		{Path: url, StartRecord: 5, NumRecord: 5, Stamp: &pb.FileStamp{Size: stamp.Size, ModifiedNanos: stamp.ModTime, Etag: stamp.ETag}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	put("other")
	in, err := p.api.ReadData(t.Context(), &pb.DataBatchRequest{StreamId: created.StreamId, BatchSize: 1})
	for err == nil {
		var b *pb.DataBatchResponse
		b, err = in.Recv()
		for _, record := range b.GetBatch() {
			if string(record.Data) > "other 4" {
				t.Errorf("read %q of another version", record.Data)
			}
		}
	}
	wants(t, err, codes.FailedPrecondition, "FILE_REPLACED", "data/a")
}

// Damaged answers of a store are read again, and are not in the cache of later streams.
func TestDamagedAnswerOfAStore(t *testing.T) {
	faults, url, _ := objectsOf(t)
	for damaged := range 8 { // requests: to look at the object, to recognize it, and to read it
		stores := storesOf(t)
		var err error
		if stores.Cache, err = objectstore.NewCache(t.TempDir(), 1<<20); err != nil {
			t.Fatal(err)
		}
		p := serve(t, proxy.Config{Roots: []string{url}, Stores: stores}, "")
		faults.Inject(damaged, httpproxy.Fault{Damage: true})
		for range 2 {
			n := 0
			for _, err := range (&proxy.Client{Conn: p.conn}).Records(t.Context(), &pb.DataFilesSpec{Files: []*pb.DataFileSpec{{Path: url, NumRecord: 10}}}, 0) {
				if err != nil {
					t.Fatalf("%d damaged answers: %v", damaged, err)
				}
				n++
			}
			if n != 10 {
				t.Errorf("found %d records", n)
			}
		}
	}
}
