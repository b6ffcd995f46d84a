package grpcapi

import "google.golang.org/grpc"

// StatusOf is the error table.
var StatusOf = statusOf

// TableErrors are the errors that have a row.
func TableErrors() (list []error) {
	for _, row := range table {
		list = append(list, row.is)
	}
	return list
}

// Register adds a service, before Serve.
func (s *Server) Register(desc *grpc.ServiceDesc, service any) { s.grpc.RegisterService(desc, service) }
