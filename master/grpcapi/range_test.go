package grpcapi_test

import (
	"context"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"trainmaster/master"
	"trainmaster/master/grpcapi"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

// Tasks of a range have record numbers without a file: no stamp and no bytes. An invalid range is an invalid argument.
func TestTasksOfARangeOverGRPC(t *testing.T) {
	s := serve(t, 0, master.Config{Queue: taskqueue.Options{Passes: 1}})
	p := s.plain(t, 1)
	if _, err := p.client.ReportDataset(t.Context(), &pb.ReportDatasetRequest{Paths: []string{"range://rows?records=7&per-task=0"}}); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "per-task") {
		t.Errorf("invalid range: found %v", err)
	}
	if _, err := p.client.ReportDataset(t.Context(), &pb.ReportDatasetRequest{Paths: []string{"range://rows?records=7&per-task=3"}}); err != nil {
		t.Fatal(err)
	}
	numbers := map[int64]int{}
	spec := p.get()
	for spec.GetEnd() == nil {
		files := spec.GetTrainingTask().GetData().GetFiles().GetFiles()
		if len(files) != 1 {
			t.Fatalf("found %v", spec)
		}
		f := files[0]
		if f.GetPath() != "range://rows?records=7&per-task=3" || f.GetFormat() != pb.FileFormat_FILE_FORMAT_RANGE || f.GetStamp() != nil || f.GetByteOffset() != 0 || f.GetByteLength() != 0 || f.GetNumRecord() > 3 {
			t.Fatalf("found %v, expected at most 3 records of the range, without a stamp and bytes", f)
		}
		for n := range f.GetNumRecord() {
			numbers[f.GetStartRecord()+n]++
		}
		spec = p.push(&pb.TaskResult{TaskId: spec.GetTaskId(), Ask: &pb.TrainerInfo{TrainerId: 1}}).GetNext()
	}
	for n := range int64(7) {
		if numbers[n] != 1 {
			t.Errorf("record %d: found %d times, expected once", n, numbers[n])
		}
	}
}

// Trainers resolve the numbers of a range also if the master names a data proxy, which has no records of it.
func TestTasksOfARangeNameNoDataProxy(t *testing.T) {
	s := serve(t, 0, master.Config{Queue: taskqueue.Options{Passes: 1}})
	p := naming(t, s.Master, "127.0.0.1:1")
	if _, err := p.client.ReportDataset(t.Context(), &pb.ReportDatasetRequest{Paths: []string{"range://rows?records=7&per-task=3"}}); err != nil {
		t.Fatal(err)
	}
	if data := p.get().GetTrainingTask().GetData(); data.GetStream() != nil || len(data.GetFiles().GetFiles()) != 1 {
		t.Errorf("found %v, expected the range without a stream", data)
	}
}

// naming returns a trainer of a port whose tasks name a data proxy.
func naming(t *testing.T, m *master.Master, proxy string) *plain {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- grpcapi.New(m, quiet(), grpcapi.DataProxy{Addr: proxy}).Serve(ctx, l) }()
	conn := dial(t, l.Addr().String())
	t.Cleanup(func() {
		conn.Close()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return &plain{t, pb.NewCoordinatorClient(conn), 1, func() {}}
}
