package proxy_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"trainmaster/dataset/proxy"
	pb "trainmaster/proto/trainmaster/v1"
)

// Any specification is refused with a code, or read to its end or to an error with a code.
func FuzzSpecification(f *testing.F) {
	dir := f.TempDir()
	for _, format := range formats {
		put(f, filepath.Join(dir, format), format, text(format, 40))
	}
	if err := os.WriteFile(filepath.Join(dir, "noise"), []byte("no records, 20 bytes or more"), 0o600); err != nil {
		f.Fatal(err)
	}
	names := slices.Concat(formats, []string{"noise", "missing", "..", "", "none/../none"})
	service, err := proxy.NewService(proxy.Config{Roots: []string{dir}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint(0), int64(3), int64(20), int32(0), int64(0), int64(0), int64(5))
	f.Add(uint(3), int64(1), int64(39), int32(2), int64(26), int64(7), int64(1))
	f.Add(uint(5), int64(0), int64(1), int32(1), int64(0), int64(0), int64(0))
	f.Add(uint(8), int64(0), int64(1<<62), int32(0), int64(-1), int64(0), int64(-1))
	f.Fuzz(func(t *testing.T, name uint, start, count int64, format int32, offset, length, from int64) {
		file := &pb.DataFileSpec{
			Path: filepath.Join(dir) + "/" + names[name%uint(len(names))], StartRecord: start, NumRecord: count, Format: pb.FileFormat(format),
			ByteOffset: offset, ByteLength: length,
		}
		message := &pb.DataFilesSpec{Files: []*pb.DataFileSpec{file, {Path: filepath.Join(dir, "none"), NumRecord: 5}}}
		_, err := service.CreateStream(context.Background(), &pb.CreateStreamRequest{Spec: message})
		if err != nil {
			known(t, err)
			return
		}
		spec, err := proxy.NewSpec(message, []string{dir})
		if err != nil {
			t.Fatal(err)
		}
		if from < 0 || from > spec.Len() {
			return
		}
		n := from
		for _, err := range spec.Read(from).Records(context.Background()) {
			if err != nil {
				known(t, err)
				return
			}
			n++
		}
		if n != spec.Len() {
			t.Errorf("read to record %d without an error, expected %d", n, spec.Len())
		}
	})
}

// known requires a code for an error.
func known(t *testing.T, err error) {
	t.Helper()
	if code := status.Code(proxy.Table.Status(err, "")); code == 2 {
		t.Errorf("an error without a code: %v", err)
	}
}

// The client decodes what a server sends as the generated code does, and any bytes without a panic.
func FuzzBatch(f *testing.F) {
	for _, records := range [][][]byte{nil, {nil}, text("a", 3)} {
		message := &pb.DataBatchResponse{}
		for _, data := range records {
			message.Batch = append(message.Batch, &pb.Record{Data: data})
		}
		data, err := proto.Marshal(message)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		records, err := proxy.Decode(data)
		var message pb.DataBatchResponse
		if proto.Unmarshal(data, &message) != nil {
			return
		}
		// A server that repeats a field is legal, and does not exist.
		if again, err := proto.Marshal(&message); err != nil || len(again) != len(data) {
			return
		}
		if err != nil || len(records) != len(message.Batch) {
			t.Fatalf("found %d records, expected %d: %v", len(records), len(message.Batch), err)
		}
		for i, record := range records {
			if string(record) != string(message.Batch[i].Data) {
				t.Errorf("record %d: found %q, expected %q", i, record, message.Batch[i].Data)
			}
		}
	})
}

// Every error of the package has a row in the table.
func TestErrorsHaveCodes(t *testing.T) {
	for _, err := range []error{
		proxy.ErrStreamGone, proxy.ErrTooManyStreams, proxy.ErrTooManyReaders, proxy.ErrStalled, proxy.ErrTooLarge, proxy.ErrFewerRecords, os.ErrNotExist,
		context.Canceled,
	} {
		known(t, errors.Join(err))
	}
}
