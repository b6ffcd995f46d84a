package grpcapi

import (
	"context"
	"time"

	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"trainmaster/master"
)

// healthService is the standard health service: SERVING while this master leads. Check is exact; Watch reports a change
// within healthEvery.
type healthService struct {
	*health.Server
	master *master.Master
	names  []string // of the services, "" for all of them
}

func newHealthService(m *master.Master, services ...string) *healthService {
	h := &healthService{Server: health.NewServer(), master: m, names: append(services, "")}
	h.update()
	return h
}

// Check answers for one service.
func (h *healthService) Check(ctx context.Context, req *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	h.update()
	return h.Server.Check(ctx, req)
}

// List answers for all services.
func (h *healthService) List(ctx context.Context, req *healthpb.HealthListRequest) (*healthpb.HealthListResponse, error) {
	h.update()
	return h.Server.List(ctx, req)
}

func (h *healthService) update() {
	now := healthpb.HealthCheckResponse_NOT_SERVING
	if h.master.Leading() {
		now = healthpb.HealthCheckResponse_SERVING
	}
	for _, name := range h.names {
		h.SetServingStatus(name, now)
	}
}

func (h *healthService) watch(ctx context.Context) {
	ticker := time.NewTicker(healthEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			h.update()
		}
	}
}
