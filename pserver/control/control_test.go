package control_test

import (
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/control"
	"trainmaster/pserver/model"
	"trainmaster/pserver/onwire"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/shard"
)

// A rollback to the beginning at any time of an initialization leaves the server running: the trainer gets its placement, or the error of
// an earlier epoch.
func TestInitializationDuringARollback(t *testing.T) {
	table, err := placement.New([]placement.Tensor{{Name: "w", Shape: []int{10}}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(optimizer.Config{Kind: optimizer.SGD, LearningRate: 0.1}, true, table)
	if err != nil {
		t.Fatal(err)
	}
	log, _ := logtest.NewNullLogger()
	s := shard.New(nil, 0, 1, time.Minute, 1<<30)
	service := control.New(s, nil, nil, logrus.NewEntry(log))
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for epoch := uint32(1); ; epoch++ {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			if err := s.Rollback(epoch, nil); err != nil {
				ended <- err
				return
			}
		}
	}()
	initialize := func() (*pb.InitParametersReply, error) {
		defer func() {
			if r := recover(); r != nil {
				t.Errorf("the call panics: %v", r)
			}
		}()
		return service.InitParameters(t.Context(), &pb.InitParametersRequest{Incarnation: 1, JobEpoch: s.JobEpoch(), Model: onwire.ModelToProto(m)})
	}
	for claims := 0; claims < 20_000 && !t.Failed(); {
		reply, err := initialize()
		switch {
		case err == nil && reply.GetPlacement() == nil:
			t.Error("found no placement, expected the placement of the claim")
		case err == nil:
			claims++
		case status.Code(err) != codes.OutOfRange:
			t.Errorf("found %v, expected the error of an earlier epoch", err)
		}
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
