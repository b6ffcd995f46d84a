package grpcapi

import (
	"sync"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"

	"trainmaster/master"
	pb "trainmaster/proto/trainmaster/v1"
)

// StatusOf converts an error by the error table.
var StatusOf = table.Status

// TableErrors returns the errors of the table.
func TableErrors() (list []error) {
	for _, row := range table {
		list = append(list, row.Is)
	}
	return list
}

// Register adds a service, before Serve.
func (s *Server) Register(desc *grpc.ServiceDesc, service any) { s.grpc.RegisterService(desc, service) }

// Work serves one stream.
func Work(m *master.Master, log *logrus.Entry, stream pb.Coordinator_WorkServer) error {
	var streams sync.WaitGroup
	defer streams.Wait()
	return (&coordinator{master: m, log: log, streams: &streams}).Work(stream)
}

// ModelSpec is modelSpec.
var ModelSpec = modelSpec
