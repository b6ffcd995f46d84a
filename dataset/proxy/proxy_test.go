package proxy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"trainmaster/dataset/proxy"
	"trainmaster/dataset/tfrecord"
	"trainmaster/internal/grpcserver"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/recordio"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func quiet() *logrus.Entry {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return logrus.NewEntry(l)
}

// served is a proxy on a real port.
type served struct {
	t     testing.TB
	addr  string
	conn  *grpc.ClientConn
	api   pb.DataProxyClient
	stop  context.CancelFunc
	ended chan error
}

// serve starts a proxy; addr "": a free port.
func serve(t testing.TB, config proxy.Config, addr string) *served {
	t.Helper()
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	service, err := proxy.NewService(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &served{t: t, addr: l.Addr().String(), stop: stop, ended: make(chan error, 1)}
	go func() { s.ended <- service.Serve(ctx, l, quiet()) }()
	if s.conn, err = proxy.Dial(s.addr); err != nil {
		t.Fatal(err)
	}
	s.api = pb.NewDataProxyClient(s.conn)
	t.Cleanup(func() { s.conn.Close(); s.end() })
	return s
}

// end stops the proxy, once.
func (s *served) end() {
	s.stop()
	select {
	case err, running := <-s.ended:
		if err != nil {
			s.t.Error(err)
		}
		if running {
			close(s.ended)
		}
	case <-time.After(time.Minute):
		s.t.Error("the proxy does not stop")
	}
}

func (s *served) create(files ...*pb.DataFileSpec) int64 {
	s.t.Helper()
	created, err := s.api.CreateStream(s.t.Context(), &pb.CreateStreamRequest{Spec: &pb.DataFilesSpec{Files: files}})
	if err != nil {
		s.t.Fatal(err)
	}
	return created.StreamId
}

// read reads a stream to its end with the generated client, and returns the records and the sizes of the batches.
func (s *served) read(request *pb.DataBatchRequest) (records [][]byte, sizes []int, err error) {
	stream, err := s.api.ReadData(s.t.Context(), request)
	for err == nil {
		var batch *pb.DataBatchResponse
		if batch, err = stream.Recv(); err == nil {
			sizes = append(sizes, len(batch.Batch))
			for _, record := range batch.Batch {
				records = append(records, record.Data)
			}
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return records, sizes, err
}

// wants checks the code, the reason and the words of an error.
func wants(t testing.TB, err error, code codes.Code, reason string, words ...string) {
	t.Helper()
	if status.Code(err) != code || grpcserver.Reason(err) != reason {
		t.Errorf("found %v %s, expected %v %s: %v", status.Code(err), grpcserver.Reason(err), code, reason, err)
	}
	for _, word := range words {
		if !strings.Contains(status.Convert(err).Message(), word) {
			t.Errorf("expected %q in %q", word, status.Convert(err).Message())
		}
	}
}

// text returns n different records, some of them empty.
func text(name string, n int) (records [][]byte) {
	for i := range n {
		records = append(records, nil)
		if i%11 != 3 {
			records[i] = bytes.Repeat(fmt.Appendf(nil, "%s-%d ", name, i), 1+i%5)
		}
	}
	return records
}

// perChunk is the number of records of a RecordIO chunk.
const perChunk = 10

// formats are the kinds of files that the proxy reads.
var formats = []string{"none", "snappy", "gzip", "tfrecord", "tfrecord-gzip"}

// put writes a file in one of the formats, with small chunks.
func put(t testing.TB, path, format string, records [][]byte) {
	t.Helper()
	putChunks(t, path, format, perChunk, records)
}

func putChunks(t testing.TB, path, format string, perChunk int, records [][]byte) {
	t.Helper()
	var b bytes.Buffer
	var w interface {
		Write([]byte) error
		Close() error
	}
	switch format {
	case "tfrecord", "tfrecord-gzip":
		c := tfrecord.None
		if format != "tfrecord" {
			c = tfrecord.Gzip
		}
		w = tfrecord.NewWriter(&b, c)
	default:
		c, err := recordio.ParseCompression(format)
		if err != nil {
			t.Fatal(err)
		}
		w = recordio.NewWriter(&b, recordio.WriterOptions{Compression: c, RecordsPerChunk: perChunk})
	}
	for _, record := range records {
		if err := w.Write(record); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// stamp returns the stamp of a file.
func stamp(t testing.TB, path string) *pb.FileStamp {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return &pb.FileStamp{Size: info.Size(), ModifiedNanos: info.ModTime().UnixNano()}
}

// runs writes a file in each format, and returns runs that begin and end inside chunks, with their records.
func runs(t testing.TB, dir string) (files []*pb.DataFileSpec, want [][]byte) {
	t.Helper()
	for i, format := range formats {
		path, all := filepath.Join(dir, format), text(format, 100)
		put(t, path, format, all)
		for _, r := range [][2]int{{0, 100}, {0, 7}, {13 + i, 2}, {20, 10}, {25, 60}, {99, 1}} {
			files = append(files, &pb.DataFileSpec{Path: path, StartRecord: int64(r[0]), NumRecord: int64(r[1]), Stamp: stamp(t, path)})
			want = append(want, all[r[0]:r[0]+r[1]]...)
		}
	}
	return files, want
}

func equal(a, b [][]byte) bool { return slices.EqualFunc(a, b, bytes.Equal) }

func TestReadsEachRecordOnceInOrder(t *testing.T) {
	dir := t.TempDir()
	files, want := runs(t, dir)
	s := serve(t, proxy.Config{Roots: []string{dir}}, "")
	id := s.create(files...)
	for _, start := range []int{0, 1, 9, 10, 99, 100, 106, 107, 108, 180, 500, len(want) - 1, len(want)} {
		for _, size := range []int{1, 7, 100, math.MaxInt32} {
			found, sizes, err := s.read(&pb.DataBatchRequest{StreamId: id, StartRecord: int64(start), BatchSize: int32(size)})
			if err != nil || !equal(found, want[start:]) {
				t.Fatalf("start %d, batches of %d: found %d records, expected %d: %v", start, size, len(found), len(want)-start, err)
			}
			for i, n := range sizes {
				if n != min(size, len(want)-start-i*size) {
					t.Fatalf("start %d, batches of %d: batch %d has %d records", start, size, i, n)
				}
			}
		}
	}
}

// Each start is exact, in each format, by the Go client.
func TestClientBeginsAtEachRecord(t *testing.T) {
	dir := t.TempDir()
	s := serve(t, proxy.Config{Roots: []string{dir}}, "")
	client := proxy.Client{Conn: s.conn, BatchSize: 8}
	for _, format := range formats {
		path, all := filepath.Join(dir, format), text(format, 45)
		put(t, path, format, all)
		spec := &pb.DataFilesSpec{Files: []*pb.DataFileSpec{{Path: path, StartRecord: 3, NumRecord: 40, Stamp: stamp(t, path)}, {Path: path, StartRecord: 17, NumRecord: 3}}}
		want := slices.Concat(all[3:43], all[17:20])
		for start := range len(want) + 1 {
			found, err := collect(client.Records(t.Context(), spec, int64(start)))
			if err != nil || !equal(found, want[start:]) {
				t.Fatalf("%s, start %d: found %d records, expected %d: %v", format, start, len(found), len(want)-start, err)
			}
		}
	}
}

func collect(records func(func([]byte, error) bool)) (all [][]byte, err error) {
	for record, err := range records {
		if err != nil {
			return all, err
		}
		all = append(all, bytes.Clone(record))
	}
	return all, nil
}

// With a byte range the reader begins there: the bytes before are not read.
func TestByteRangeNeedsNoBytesBefore(t *testing.T) {
	dir := t.TempDir()
	s := serve(t, proxy.Config{Roots: []string{dir}}, "")
	for _, format := range []string{"snappy", "tfrecord"} {
		path, all := filepath.Join(dir, format), text(format, 50)
		put(t, path, format, all)
		offset := int64(0)
		if format == "snappy" {
			f, err := recordio.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			index, err := f.Index()
			if err != nil {
				t.Fatal(err)
			}
			f.Close()
			offset = index[2].Offset
			damage(t, path, index[1].Offset+2)
		} else {
			for _, record := range all[:20] {
				offset += tfrecord.Overhead + int64(len(record))
			}
			damage(t, path, tfrecord.Overhead+int64(len(all[0]))+2)
		}
		ranged := &pb.DataFileSpec{Path: path, StartRecord: 20, NumRecord: 25, ByteOffset: offset, ByteLength: stamp(t, path).Size - offset}
		id := s.create(ranged, &pb.DataFileSpec{Path: path, StartRecord: 20, NumRecord: 25})
		found, _, err := s.read(&pb.DataBatchRequest{StreamId: id, StartRecord: 4, BatchSize: 7})
		if !equal(found, all[24:45]) {
			t.Errorf("%s: found %d records, expected 21", format, len(found))
		}
		wants(t, err, codes.InvalidArgument, "DAMAGED_FILE", path)
	}
}

// damage flips a bit of a file, and keeps its stamp.
func damage(t testing.TB, path string, offset int64) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[offset] ^= 4
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, time.Time{}, info.ModTime()); err != nil {
		t.Fatal(err)
	}
}

func TestSpecificationIsRefused(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	path := filepath.Join(dir, "a")
	put(t, path, "none", text("a", 30))
	put(t, filepath.Join(elsewhere, "b"), "none", text("b", 30))
	for name, err := range map[string]error{
		"link":  os.Symlink(filepath.Join(elsewhere, "b"), filepath.Join(dir, "link")),
		"fifo":  syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600),
		"dir":   os.Mkdir(filepath.Join(dir, "dir"), 0o700),
		"empty": os.WriteFile(filepath.Join(dir, "empty"), nil, 0o600),
	} {
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	s := serve(t, proxy.Config{Roots: []string{dir}}, "")
	good := func() *pb.DataFileSpec { return &pb.DataFileSpec{Path: path, NumRecord: 30, Stamp: stamp(t, path)} }
	for name, test := range map[string]struct {
		change func(f *pb.DataFileSpec)
		code   codes.Code
		reason string
		words  []string
	}{
		"negative start":       {func(f *pb.DataFileSpec) { f.StartRecord = -1 }, codes.InvalidArgument, "BAD_ARGUMENT", []string{"spec.files[1].start_record", "-1"}},
		"no records":           {func(f *pb.DataFileSpec) { f.NumRecord = 0 }, codes.InvalidArgument, "BAD_ARGUMENT", []string{"spec.files[1].num_record"}},
		"negative number":      {func(f *pb.DataFileSpec) { f.NumRecord = math.MinInt64 }, codes.InvalidArgument, "BAD_ARGUMENT", []string{"num_record"}},
		"overflow of the run":  {func(f *pb.DataFileSpec) { f.StartRecord, f.NumRecord = math.MaxInt64, 1 }, codes.InvalidArgument, "BAD_ARGUMENT", []string{"num_record"}},
		"overflow of the sum":  {func(f *pb.DataFileSpec) { f.NumRecord = math.MaxInt64 }, codes.InvalidArgument, "BAD_ARGUMENT", []string{"num_record"}},
		"unknown format":       {func(f *pb.DataFileSpec) { f.Format = 17 }, codes.InvalidArgument, "BAD_ARGUMENT", []string{"format", "17"}},
		"range":                {func(f *pb.DataFileSpec) { f.Path = "range://rows?records=30&per-task=5" }, codes.InvalidArgument, "BAD_ARGUMENT", []string{"spec.files[1].format", "range"}},
		"format of Parquet":    {func(f *pb.DataFileSpec) { f.Format = pb.FileFormat_FILE_FORMAT_PARQUET }, codes.InvalidArgument, "BAD_ARGUMENT", []string{"spec.files[1].format", "Parquet"}},
		"format of a range":    {func(f *pb.DataFileSpec) { f.Format = pb.FileFormat_FILE_FORMAT_RANGE }, codes.InvalidArgument, "BAD_ARGUMENT", []string{"spec.files[1].format", "range"}},
		"negative offset":      {func(f *pb.DataFileSpec) { f.ByteOffset = -1 }, codes.InvalidArgument, "BAD_ARGUMENT", []string{"byte_offset"}},
		"no path":              {func(f *pb.DataFileSpec) { f.Path = "" }, codes.InvalidArgument, "BAD_ARGUMENT", []string{"path"}},
		"relative path":        {func(f *pb.DataFileSpec) { f.Path = "a" }, codes.InvalidArgument, "BAD_ARGUMENT", []string{"path", `"a"`}},
		"parent directory":     {func(f *pb.DataFileSpec) { f.Path = dir + "/../b" }, codes.InvalidArgument, "BAD_ARGUMENT", []string{"path"}},
		"long path":            {func(f *pb.DataFileSpec) { f.Path = "/" + strings.Repeat("a", 5000) }, codes.InvalidArgument, "BAD_ARGUMENT", []string{"4096", "5001"}},
		"zero byte":            {func(f *pb.DataFileSpec) { f.Path = dir + "/a\x00" }, codes.InvalidArgument, "BAD_ARGUMENT", []string{"path"}},
		"URL":                  {func(f *pb.DataFileSpec) { f.Path = "http://bucket/a" }, codes.InvalidArgument, "UNKNOWN_SCHEME", []string{"http", "s3"}},
		"other bucket":         {func(f *pb.DataFileSpec) { f.Path = "s3://bucket/a" }, codes.InvalidArgument, "OUTSIDE_ROOTS", []string{"s3://bucket/a"}},
		"outside of the roots": {func(f *pb.DataFileSpec) { f.Path = filepath.Join(elsewhere, "b") }, codes.InvalidArgument, "OUTSIDE_ROOTS", []string{elsewhere}},
		"link that leads out":  {func(f *pb.DataFileSpec) { f.Path = filepath.Join(dir, "link") }, codes.InvalidArgument, "OUTSIDE_ROOTS", []string{"link"}},
		"missing file":         {func(f *pb.DataFileSpec) { f.Path = filepath.Join(dir, "missing") }, codes.InvalidArgument, "NO_FILES", []string{"missing"}},
		"directory":            {func(f *pb.DataFileSpec) { f.Path = filepath.Join(dir, "dir") }, codes.InvalidArgument, "NOT_RECORDS", []string{"directory"}},
		"FIFO":                 {func(f *pb.DataFileSpec) { f.Path = filepath.Join(dir, "fifo") }, codes.InvalidArgument, "NOT_RECORDS", []string{"FIFO"}},
		"empty file":           {func(f *pb.DataFileSpec) { f.Path = filepath.Join(dir, "empty") }, codes.InvalidArgument, "DAMAGED_FILE", []string{"empty"}},
		"replaced file":        {func(f *pb.DataFileSpec) { f.Stamp.Size++ }, codes.FailedPrecondition, "FILE_REPLACED", []string{path}},
	} {
		t.Run(name, func(t *testing.T) {
			bad := good()
			test.change(bad)
			_, err := s.api.CreateStream(t.Context(), &pb.CreateStreamRequest{Spec: &pb.DataFilesSpec{Files: []*pb.DataFileSpec{good(), bad}}})
			wants(t, err, test.code, test.reason, test.words...)
		})
	}
	for _, request := range []*pb.CreateStreamRequest{{}, {Spec: &pb.DataFilesSpec{}}} {
		_, err := s.api.CreateStream(t.Context(), request)
		wants(t, err, codes.InvalidArgument, "BAD_ARGUMENT", "spec.files")
	}
	id := s.create(good())
	for name, test := range map[string]struct {
		request *pb.DataBatchRequest
		code    codes.Code
		reason  string
	}{
		"unknown stream":    {&pb.DataBatchRequest{StreamId: id + 1, BatchSize: 1}, codes.NotFound, "STREAM_GONE"},
		"no stream":         {&pb.DataBatchRequest{BatchSize: 1}, codes.NotFound, "STREAM_GONE"},
		"negative start":    {&pb.DataBatchRequest{StreamId: id, StartRecord: -1, BatchSize: 1}, codes.InvalidArgument, "BAD_ARGUMENT"},
		"start after end":   {&pb.DataBatchRequest{StreamId: id, StartRecord: 31, BatchSize: 1}, codes.InvalidArgument, "BAD_ARGUMENT"},
		"no batch size":     {&pb.DataBatchRequest{StreamId: id}, codes.InvalidArgument, "BAD_ARGUMENT"},
		"negative size":     {&pb.DataBatchRequest{StreamId: id, BatchSize: math.MinInt32}, codes.InvalidArgument, "BAD_ARGUMENT"},
		"start at infinity": {&pb.DataBatchRequest{StreamId: id, StartRecord: math.MaxInt64, BatchSize: math.MaxInt32}, codes.InvalidArgument, "BAD_ARGUMENT"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := s.read(test.request)
			wants(t, err, test.code, test.reason)
		})
	}
}

func TestDamagedFileIsNamedWithItsOffset(t *testing.T) {
	dir := t.TempDir()
	s := serve(t, proxy.Config{Roots: []string{dir}}, "")
	all := text("a", 40)
	for format, words := range map[string]string{"none": "byte ", "tfrecord": "record 3"} {
		path := filepath.Join(dir, format)
		put(t, path, format, all)
		damage(t, path, stamp(t, path).Size-5)
		id := s.create(&pb.DataFileSpec{Path: path, NumRecord: 40, Stamp: stamp(t, path)})
		found, _, err := s.read(&pb.DataBatchRequest{StreamId: id, BatchSize: 5})
		wants(t, err, codes.InvalidArgument, "DAMAGED_FILE", path, words)
		if len(found) < 30 || !equal(found, all[:len(found)]) {
			t.Errorf("%s: found %d records before the damage", format, len(found))
		}
	}
	noise := filepath.Join(dir, "noise")
	if err := os.WriteFile(noise, bytes.Repeat([]byte("no records "), 100), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, format := range []pb.FileFormat{0, 1, 2} {
		id := s.create(&pb.DataFileSpec{Path: noise, NumRecord: 40, Format: format})
		_, _, err := s.read(&pb.DataBatchRequest{StreamId: id, BatchSize: 5})
		wants(t, err, codes.InvalidArgument, "DAMAGED_FILE", noise)
	}
}

func TestRunBeyondTheEndOfAFileIsNamed(t *testing.T) {
	dir := t.TempDir()
	s := serve(t, proxy.Config{Roots: []string{dir}}, "")
	for _, format := range formats {
		path := filepath.Join(dir, format)
		put(t, path, format, text("a", 40))
		for _, start := range []int64{30, 40, 50} {
			id := s.create(&pb.DataFileSpec{Path: path, StartRecord: start, NumRecord: 11})
			_, _, err := s.read(&pb.DataBatchRequest{StreamId: id, BatchSize: 5})
			wants(t, err, codes.InvalidArgument, "FEWER_RECORDS", path, fmt.Sprint(start+10))
		}
	}
}

// A file that changes after the stream was created is an error of a call that reads it, and of the next call.
func TestReplacedFileIsRefused(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	all := slices.Repeat([][]byte{bytes.Repeat([]byte("x"), 100<<10)}, 300)
	put(t, path, "none", all)
	spec := &pb.DataFileSpec{Path: path, NumRecord: 300, Stamp: stamp(t, path)}
	s := serve(t, proxy.Config{Roots: []string{dir}}, "")
	for name, change := range map[string]func(){
		"another time":    func() {},
		"another content": func() { put(t, path, "none", slices.Repeat([][]byte{bytes.Repeat([]byte("y"), 100<<10)}, 300)) },
	} {
		id := s.create(spec)
		stream, err := s.api.ReadData(t.Context(), &pb.DataBatchRequest{StreamId: id, BatchSize: 1})
		if err == nil {
			_, err = stream.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
		change()
		if err := os.Chtimes(path, time.Time{}, time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		n := 1
		for err == nil {
			var batch *pb.DataBatchResponse
			if batch, err = stream.Recv(); err == nil {
				n++
				if !bytes.Equal(batch.Batch[0].Data, all[0]) {
					t.Fatalf("%s: received a record of the new file", name)
				}
			}
		}
		wants(t, err, codes.FailedPrecondition, "FILE_REPLACED", path)
		if n > 200 { // 20 MiB; the proxy and the connection have 8 MiB of the former file
			t.Errorf("%s: received %d records of a file that has changed", name, n)
		}
		_, _, err = s.read(&pb.DataBatchRequest{StreamId: id, BatchSize: 1})
		wants(t, err, codes.FailedPrecondition, "FILE_REPLACED", path)
		put(t, path, "none", all)
		spec.Stamp = stamp(t, path)
	}
}

// A link that is set after the stream was created leads nowhere.
func TestRootsAreCheckedWhenAFileIsOpened(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	path := filepath.Join(dir, "a")
	put(t, path, "none", text("a", 30))
	put(t, filepath.Join(elsewhere, "secret"), "none", text("secret", 30))
	s := serve(t, proxy.Config{Roots: []string{dir}}, "")
	id := s.create(&pb.DataFileSpec{Path: path, NumRecord: 30})
	if err := errors.Join(os.Remove(path), os.Symlink(filepath.Join(elsewhere, "secret"), path)); err != nil {
		t.Fatal(err)
	}
	found, _, err := s.read(&pb.DataBatchRequest{StreamId: id, BatchSize: 1})
	wants(t, err, codes.InvalidArgument, "OUTSIDE_ROOTS", path)
	if len(found) > 0 {
		t.Errorf("found %d records of a file outside of the roots", len(found))
	}
}

func TestRecordThatFitsNoMessageIsNamed(t *testing.T) {
	dir := t.TempDir()
	s := serve(t, proxy.Config{Roots: []string{dir}}, "")
	for _, format := range []string{"none", "tfrecord"} {
		path := filepath.Join(dir, format)
		largest := bytes.Repeat([]byte("x"), proxy.MaxRecord)
		put(t, path, format, [][]byte{largest})
		id := s.create(&pb.DataFileSpec{Path: path, NumRecord: 1})
		if found, _, err := s.read(&pb.DataBatchRequest{StreamId: id, BatchSize: 5}); err != nil || !equal(found, [][]byte{largest}) {
			t.Errorf("%s: a record of %d bytes: found %d records, %v", format, len(largest), len(found), err)
		}
		put(t, path, format, [][]byte{append(largest, 'x')})
		id = s.create(&pb.DataFileSpec{Path: path, NumRecord: 1})
		_, _, err := s.read(&pb.DataBatchRequest{StreamId: id, BatchSize: 5})
		wants(t, err, codes.ResourceExhausted, "TOO_LARGE", path, "record 0", fmt.Sprint(proxy.MaxRecord+1))
	}
	path := filepath.Join(dir, "chunk")
	put(t, path, "gzip", slices.Repeat([][]byte{make([]byte, 1<<20)}, perChunk))
	id := s.create(&pb.DataFileSpec{Path: path, NumRecord: perChunk})
	_, _, err := s.read(&pb.DataBatchRequest{StreamId: id, BatchSize: 5})
	wants(t, err, codes.ResourceExhausted, "TOO_LARGE", path, "byte 0", fmt.Sprint(proxy.MaxChunk))
}

// A batch that would exceed a message is split.
func TestBatchFitsAMessage(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	all := slices.Repeat([][]byte{bytes.Repeat([]byte("x"), 300<<10)}, 60)
	put(t, path, "none", all)
	s := serve(t, proxy.Config{Roots: []string{dir}}, "")
	found, sizes, err := s.read(&pb.DataBatchRequest{StreamId: s.create(&pb.DataFileSpec{Path: path, NumRecord: 60}), BatchSize: math.MaxInt32})
	if err != nil || !equal(found, all) || len(sizes) != 5 || sizes[0] != 13 {
		t.Errorf("found %d records in batches of %v: %v", len(found), sizes, err)
	}
}

func TestHealthAndReflection(t *testing.T) {
	s := serve(t, proxy.Config{}, "")
	for _, service := range []string{"", pb.DataProxy_ServiceDesc.ServiceName} {
		reply, err := healthpb.NewHealthClient(s.conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		if err != nil || reply.Status != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("%q: found %v, %v", service, reply, err)
		}
	}
}
