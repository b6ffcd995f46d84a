package proxy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"trainmaster/dataset/proxy"
	pb "trainmaster/proto/trainmaster/v1"
)

// A reader stops when its batches take the limit, for each size of records and batches, and continues when a batch is taken.
func TestSlowClientStopsItsReader(t *testing.T) {
	dir := t.TempDir()
	for _, record := range []int{0, 1 << 10, 1 << 20, 3 << 20} {
		path := filepath.Join(dir, fmt.Sprint(record))
		n := min(max(3*proxy.AheadBytes/(record+64), 5), 20_000)
		put(t, path, "tfrecord", slices.Repeat([][]byte{make([]byte, record)}, n))
		spec, err := proxy.NewSpec(&pb.DataFilesSpec{Files: []*pb.DataFileSpec{{Path: path, NumRecord: int64(n)}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, size := range []int32{1, 64, math.MaxInt32} {
			synctest.Test(t, func(t *testing.T) {
				ahead, ended := proxy.ReadAhead(t.Context(), spec, size)
				total, most := int32(0), 0
				for {
					synctest.Wait() // until the reader waits
					waiting, held := ahead.Waiting(), 0
					for range waiting {
						bytes, records, _ := ahead.Next()
						held += bytes
						total += records
					}
					most = max(most, held)
					if waiting == 0 {
						break
					}
				}
				if most > proxy.AheadBytes {
					t.Errorf("records of %d bytes, batches of %d: %d bytes wait, expected %d at most", record, size, most, proxy.AheadBytes)
				}
				if err := <-ended; err != nil || int(total) != n {
					t.Errorf("records of %d bytes, batches of %d: found %d records, expected %d: %v", record, size, total, n, err)
				}
			})
		}
	}
}

// acceptsNothing begins calls of ReadData whose clients accept at most the first batch, and returns by how many bytes the heap grew.
func acceptsNothing(t *testing.T, path string, records, readers, batch int, first bool) uint64 {
	t.Helper()
	s := serve(t, proxy.Config{}, "")
	// Without a window of its own, a stream accepts 64 KiB.
	conn, err := grpc.NewClient("passthrough:///"+s.addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStaticStreamWindowSize(64<<10))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	runtime.GC()
	var before, now runtime.MemStats
	runtime.ReadMemStats(&before)
	id := s.create(&pb.DataFileSpec{Path: path, NumRecord: int64(records)})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range readers {
		stream, err := pb.NewDataProxyClient(conn).ReadData(ctx, &pb.DataBatchRequest{StreamId: id, BatchSize: int32(batch)})
		if err == nil {
			_, err = stream.Header() // the call was accepted
		}
		if err == nil && first {
			_, err = stream.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	most := before.HeapAlloc
	for range 20 {
		// The readers have this time to read more than they may.
		time.Sleep(20 * time.Millisecond)
		runtime.GC()
		runtime.ReadMemStats(&now)
		most = max(most, now.HeapAlloc)
	}
	return most - before.HeapAlloc
}

const memoryOfReader = 16 << 20 // of docs/data-proxy.md

// Clients that accept nothing do not let the proxy take memory.
func TestSlowClientsTakeBoundedMemory(t *testing.T) {
	const readers, records = 8, 85
	path := filepath.Join(t.TempDir(), "a")
	put(t, path, "tfrecord", slices.Repeat([][]byte{make([]byte, 768<<10)}, records))
	if grew := acceptsNothing(t, path, records, readers, 5, false); grew > readers*memoryOfReader {
		t.Errorf("the heap grew by %d MiB, expected %d at most", grew>>20, readers*memoryOfReader>>20)
	}
}

// A batch of a small record does not have the capacity of a large record before it.
func TestSmallBatchesAfterALargeRecordTakeBoundedMemory(t *testing.T) {
	const readers = 2
	path := filepath.Join(t.TempDir(), "a")
	records := slices.Concat([][]byte{make([]byte, 3<<20)}, slices.Repeat([][]byte{make([]byte, 60<<10)}, 100))
	put(t, path, "tfrecord", records)
	if grew := acceptsNothing(t, path, len(records), readers, 1, true); grew > readers*memoryOfReader {
		t.Errorf("the heap grew by %d MiB, expected %d at most", grew>>20, readers*memoryOfReader>>20)
	}
}

func TestReadersAreBounded(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	put(t, path, "tfrecord", slices.Repeat([][]byte{make([]byte, 1<<20)}, 60))
	s := serve(t, proxy.Config{MaxReaders: 2}, "")
	id := s.create(&pb.DataFileSpec{Path: path, NumRecord: 60})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 2 {
		stream, err := s.api.ReadData(ctx, &pb.DataBatchRequest{StreamId: id, BatchSize: 1})
		if err == nil {
			_, err = stream.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	_, _, err := s.read(&pb.DataBatchRequest{StreamId: id, BatchSize: 1})
	wants(t, err, codes.ResourceExhausted, "TOO_MANY_READERS", "2")
	cancel()
	client := proxy.Client{Conn: s.conn} // waits for a place
	if found, err := collect(client.Records(t.Context(), &pb.DataFilesSpec{Files: []*pb.DataFileSpec{{Path: path, NumRecord: 60}}}, 50)); err != nil || len(found) != 10 {
		t.Errorf("after the calls: found %d records, %v", len(found), err)
	}
}

// A client that accepts no batch loses its call, not the place of the next reader.
func TestStalledClientLosesItsCall(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	put(t, path, "tfrecord", slices.Repeat([][]byte{make([]byte, 1<<20)}, 60))
	s := serve(t, proxy.Config{MaxReaders: 1, Idle: 100 * time.Millisecond}, "")
	id := s.create(&pb.DataFileSpec{Path: path, NumRecord: 60})
	stream, err := s.api.ReadData(t.Context(), &pb.DataBatchRequest{StreamId: id, BatchSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	client := proxy.Client{Conn: s.conn}
	if found, err := collect(client.Records(t.Context(), &pb.DataFilesSpec{Files: []*pb.DataFileSpec{{Path: path, NumRecord: 60}}}, 0)); err != nil || len(found) != 60 {
		t.Errorf("the next reader: found %d records, %v", len(found), err)
	}
	for err == nil {
		_, err = stream.Recv()
	}
	wants(t, err, codes.Unavailable, "STALLED")
}

func TestIdleStreamExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := proxy.NewStreams(time.Minute)
		idle, used := add(t, s, 1), add(t, s, 1)
		end, err := s.Use(used)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // of the bubble
		if _, err := s.Use(idle); !errors.Is(err, proxy.ErrStreamGone) {
			t.Errorf("idle stream: found %v", err)
		}
		end()
		time.Sleep(time.Minute - 1) // of the bubble
		end, err = s.Use(used)
		if err != nil {
			t.Fatalf("used stream: found %v", err)
		}
		end()
		time.Sleep(time.Minute) // of the bubble
		if _, err := s.Use(used); !errors.Is(err, proxy.ErrStreamGone) || s.Len() != 0 {
			t.Errorf("after the last use: found %v, %d streams", err, s.Len())
		}
	})
}

func add(t *testing.T, s *proxy.Streams, files int) int64 {
	t.Helper()
	spec, err := proxy.NewSpec(&pb.DataFilesSpec{Files: slices.Repeat([]*pb.DataFileSpec{{Path: "/" + strings.Repeat("a", 3000), NumRecord: 1}}, files)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	id, err := s.Add(spec)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// A new stream replaces the stream that was used least recently, if it has no readers.
func TestNumberOfStreamsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := proxy.NewStreams(time.Hour)
		var ids []int64
		for range proxy.MaxStreams {
			ids = append(ids, add(t, s, 1))
			time.Sleep(time.Nanosecond) // of the bubble
		}
		if slices.Sort(ids); len(slices.Compact(ids)) != proxy.MaxStreams {
			t.Fatal("two streams have one id")
		}
		used := add(t, s, 1)
		end, err := s.Use(used)
		if err != nil {
			t.Fatal(err)
		}
		defer end()
		for range 2 * proxy.MaxStreams {
			add(t, s, 1)
		}
		if s.Len() != proxy.MaxStreams {
			t.Errorf("found %d streams, expected %d", s.Len(), proxy.MaxStreams)
		}
		gone := 0
		for _, id := range ids {
			if end, err := s.Use(id); err != nil {
				gone++
			} else {
				end()
			}
		}
		if gone != len(ids) {
			t.Errorf("%d of %d old streams are gone", gone, len(ids))
		}
		if end, err := s.Use(used); err != nil {
			t.Errorf("the stream with a reader: found %v", err)
		} else {
			end()
		}
	})
}

func TestMemoryOfStreamsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := proxy.NewStreams(time.Hour)
		for range 100 { // 3 MiB each
			add(t, s, 1000)
		}
		if s.Len() < 80 || s.Len() > 86 {
			t.Errorf("found %d streams, expected 85 streams of 3 MiB in 256 MiB", s.Len())
		}
	})
}

// A restarted proxy repeats no id of the former process.
func TestRestartedProxyHasOtherIDs(t *testing.T) {
	a, b := proxy.NewStreams(time.Hour), proxy.NewStreams(time.Hour)
	var ids []int64
	for range 100 {
		ids = append(ids, add(t, a, 1), add(t, b, 1))
	}
	if slices.Sort(ids); len(slices.Compact(ids)) != 200 {
		t.Error("two streams have one id")
	}
	if _, err := b.Use(ids[0] + 1); !errors.Is(err, proxy.ErrStreamGone) {
		t.Errorf("found %v", err)
	}
}

// The client continues at the next record when the proxy is stopped and started again.
func TestClientContinuesAfterRestarts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	all := text("a", 20_000)
	put(t, path, "snappy", all)
	spec := &pb.DataFilesSpec{Files: []*pb.DataFileSpec{{Path: path, NumRecord: int64(len(all)), Stamp: stamp(t, path)}}}
	s := serve(t, proxy.Config{}, "")
	client := proxy.Client{Conn: s.conn, BatchSize: 16, MaxWait: 20 * time.Second}
	n, restarts := 0, 0
	for record, err := range client.Records(t.Context(), spec, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(record, all[n]) {
			t.Fatalf("record %d: found %q", n, record)
		}
		if n++; n%5003 == 0 {
			s.end()
			addr := s.addr
			s = serve(t, proxy.Config{}, addr)
			restarts++
		}
	}
	if n != len(all) || restarts != 3 {
		t.Errorf("found %d records with %d restarts, expected %d", n, restarts, len(all))
	}
}

// A proxy that stops ends the calls in progress with UNAVAILABLE.
func TestStopIsUnavailable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	put(t, path, "tfrecord", slices.Repeat([][]byte{make([]byte, 1<<20)}, 60))
	s := serve(t, proxy.Config{}, "")
	stream, err := s.api.ReadData(t.Context(), &pb.DataBatchRequest{StreamId: s.create(&pb.DataFileSpec{Path: path, NumRecord: 60}), BatchSize: 1})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	s.stop()
	for err == nil {
		_, err = stream.Recv()
	}
	wants(t, err, codes.Unavailable, "STOPPING")
}

// Without a proxy the client ends after MaxWait, with the reason.
func TestClientEndsWithoutAProxy(t *testing.T) {
	s := serve(t, proxy.Config{}, "")
	s.end()
	client := proxy.Client{Conn: s.conn, MaxWait: 50 * time.Millisecond}
	_, err := collect(client.Records(t.Context(), &pb.DataFilesSpec{Files: []*pb.DataFileSpec{{Path: "/a", NumRecord: 1}}}, 0))
	if err == nil || !strings.Contains(err.Error(), "no record within 50ms") || !strings.Contains(err.Error(), "refused") {
		t.Errorf("found %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = collect((&proxy.Client{Conn: s.conn}).Records(ctx, &pb.DataFilesSpec{Files: []*pb.DataFileSpec{{Path: "/a", NumRecord: 1}}}, 0))
	if err == nil {
		t.Error("canceled: found no error")
	}
}
