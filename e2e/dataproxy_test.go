package e2e

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"trainmaster/dataset/proxy"
	"trainmaster/internal/freeport"
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
