package e2e

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"trainmaster/dataset/proxy"
	"trainmaster/internal/freeport"
	"trainmaster/internal/grpcserver"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/recordio"
)

// A client of a data proxy receives each record once and in order while the proxy is killed and started again.
func TestKilledDataProxy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const records, perFile = 40_000, 10_000
	spec := &pb.DataFilesSpec{}
	text := func(i int) []byte { return fmt.Appendf(nil, "record %d %s", i, strings.Repeat("x", i%300)) }
	for first := 0; first < records; first += perFile {
		var b bytes.Buffer
		w := recordio.NewWriter(&b, recordio.WriterOptions{Compression: recordio.Compression(first / perFile % 3), ChunkBytes: 64 << 10})
		for i := range perFile {
			if err := w.Write(text(first + i)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, strconv.Itoa(first))
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		spec.Files = append(spec.Files, &pb.DataFileSpec{
			Path: path, NumRecord: perFile, Stamp: &pb.FileStamp{Size: info.Size(), ModifiedNanos: info.ModTime().UnixNano()},
		})
	}
	addr, err := freeport.Addr("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	launch := func() *process {
		return start(t, "dataproxy", dir, "dataproxy", "--listen", addr, "--data-roots", dir)
	}
	p := launch()
	conn, err := proxy.Dial(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := proxy.Client{Conn: conn, BatchSize: 100}
	n, kills := 0, 0
	for record, err := range client.Records(t.Context(), spec, 0) {
		if err != nil {
			t.Fatalf("record %d: %v", n, err)
		}
		if !bytes.Equal(record, text(n)) {
			t.Fatalf("record %d: found %q", n, record)
		}
		if n++; n%7001 == 0 {
			p.kill()
			p = launch()
			kills++
		}
	}
	if n != records || kills != 5 {
		t.Errorf("found %d records with %d kills, expected %d with 5", n, kills, records)
	}
	if _, err := net.Dial("tcp", addr); err != nil {
		t.Error(err)
	}
	p.signal(syscall.SIGTERM)
	p.wantExit(0)
	if !strings.Contains(p.log(), "stopped") {
		t.Error("expected the log to have the stop")
	}
	refused := run(t, dir, "dataproxy", "--listen", "127.0.0.1:0")
	if refused.code != 2 || !strings.Contains(refused.stderr, "--data-roots") {
		t.Errorf("without --data-roots: found code %d, %s", refused.code, refused.stderr)
	}
	missing := run(t, dir, "dataproxy", "--listen", "127.0.0.1:0", "--data-roots", filepath.Join(dir, "missing"))
	if missing.code != 2 || !strings.Contains(missing.stderr, "missing") {
		t.Errorf("with a missing root: found code %d, %s", missing.code, missing.stderr)
	}
}

// With --data-proxy self, the tasks of a master name its own port, where their records can be read. Together they are the dataset, each
// record once in each pass. Other files are refused.
func TestDataProxyOfAMaster(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	refused := run(t, j.dir, j.in("--data-proxy", "self")...)
	refused.wants(t, 2, "--data-proxy", "--data-roots")
	run(t, j.dir, j.in("--data-proxy", "8082")...).wants(t, 2, "--data-proxy", "expected self or host:port")
	const passes = 2
	m := j.master("--passes", fmt.Sprint(passes), "--data-proxy", "self", "--data-roots", filepath.Join(j.dir, "data"), "--linger", "1s")
	j.awaitLeader(0)
	addr, err := j.store.MasterAddr(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := proxy.Dial(addr.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	coordinator := pb.NewCoordinatorClient(conn)
	if _, err := coordinator.ReportDataset(t.Context(), &pb.ReportDatasetRequest{Paths: j.data.Train.Paths}); err != nil {
		t.Fatal(err)
	}
	client := proxy.Client{Conn: conn}
	var got []string
	task, err := coordinator.GetTask(t.Context(), &pb.TrainerInfo{})
	for err == nil && task.GetEnd() == nil {
		stream := task.GetTrainingTask().GetData().GetStream()
		if stream.GetDataProxyLocation() != addr.Addr {
			t.Fatalf("found task %v, expected a stream at %s", task, addr.Addr)
		}
		for record, err := range client.Records(t.Context(), stream.Files, task.Base) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, string(record))
		}
		var pushed *pb.PushResultResponse
		pushed, err = coordinator.PushResult(t.Context(), &pb.TaskResult{TaskId: task.TaskId, Ask: &pb.TrainerInfo{}})
		task = pushed.GetNext()
	}
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	once := sorted(t, j.data.Train.Paths)
	want := slices.Concat(once, once)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("found %d records, expected the %d of the dataset %d times", len(got), len(once), passes)
	}
	_, err = pb.NewDataProxyClient(conn).CreateStream(t.Context(), &pb.CreateStreamRequest{Spec: &pb.DataFilesSpec{Files: []*pb.DataFileSpec{{Path: "/etc/passwd", NumRecord: 1}}}})
	if grpcserver.Reason(err) != "OUTSIDE_ROOTS" {
		t.Errorf("a file outside of --data-roots: found error %v", err)
	}
	m.wantExit(0)
}
