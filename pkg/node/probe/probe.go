// Package probe answers kubelet's gRPC probes, and bounds the memory and connections of other clients: every pod of
// the cluster can reach the port.
package probe

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
)

// Services of the gRPC health service. The empty name means liveness too.
const (
	liveness  = "liveness"
	readiness = "readiness"
)

// Timeout bounds one check.
const Timeout = 5 * time.Second

// kubelet opens a connection for each probe, asks once with a few headers and closes it.
const (
	maxStreams       = 8
	maxRequestBytes  = 1 << 10
	maxHeaderBytes   = 8 << 10
	bufferBytes      = 4 << 10
	handshakeTimeout = 5 * time.Second
	maxIdle          = time.Minute
)

// Check returns what is wrong, or nil.
type Check func(context.Context) error

// Serve answers probes on the listener until ctx ends. Clients that probe at the same time share one check.
func Serve(ctx context.Context, listener net.Listener, alive, ready Check) error {
	server := grpc.NewServer(
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxRecvMsgSize(maxRequestBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ReadBufferSize(bufferBytes),
		grpc.WriteBufferSize(bufferBytes),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: maxIdle}),
	)
	living := newAnswer(alive)
	grpc_health_v1.RegisterHealthServer(server, health{answers: map[string]*answer{"": living, liveness: living, readiness: newAnswer(ready)}})
	go func() {
		<-ctx.Done()
		server.Stop()
	}()
	if err := server.Serve(Bound(listener)); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve health checks: %w", err)
	}
	return nil
}

type health struct {
	grpc_health_v1.UnimplementedHealthServer
	answers map[string]*answer
}

// Check implements the health service.
func (h health) Check(ctx context.Context, request *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	answer, known := h.answers[request.GetService()]
	if !known {
		return nil, status.Errorf(codes.NotFound, "unknown service %q: ask for %q or %q", request.GetService(), liveness, readiness)
	}
	response := &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}
	if err := answer.get(ctx); err != nil {
		klog.FromContext(ctx).V(4).Info("Health check failed", "service", request.GetService(), "reason", err.Error())
		response.Status = grpc_health_v1.HealthCheckResponse_NOT_SERVING
	}
	return response, nil
}
