package grpcapi

import "google.golang.org/grpc"

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
