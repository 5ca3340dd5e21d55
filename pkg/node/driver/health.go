package driver

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Services of the gRPC health endpoint. The empty name means liveness too.
const (
	livenessService  = "liveness"
	readinessService = "readiness"
)

// probeTimeout bounds one question to our own sockets.
const probeTimeout = 5 * time.Second

// ServeHealth answers gRPC health checks on the listener until ctx ends.
func (d *Driver) ServeHealth(ctx context.Context, listener net.Listener) error {
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, healthServer{driver: d})
	go func() {
		<-ctx.Done()
		server.Stop()
	}()
	if err := server.Serve(listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve health checks: %w", err)
	}
	return nil
}

type healthServer struct {
	grpc_health_v1.UnimplementedHealthServer
	driver *Driver
}

// Check implements the health service.
func (h healthServer) Check(ctx context.Context, request *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	var err error
	switch request.GetService() {
	case "", livenessService:
		err = h.driver.alive(ctx)
	case readinessService:
		err = h.driver.Ready()
	default:
		return nil, status.Errorf(codes.NotFound, "unknown service %q: ask for %q or %q", request.GetService(), livenessService, readinessService)
	}
	response := &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Health check failed", "service", request.GetService(), "reason", err.Error())
		response.Status = grpc_health_v1.HealthCheckResponse_NOT_SERVING
	}
	return response, nil
}

// alive asks both sockets, as kubelet would.
func (d *Driver) alive(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	registrar, dra := d.sockets()
	if err := call(ctx, registrar, func(conn *grpc.ClientConn) error {
		_, err := registerapi.NewRegistrationClient(conn).GetInfo(ctx, &registerapi.InfoRequest{})
		return err
	}); err != nil {
		return err
	}
	return call(ctx, dra, func(conn *grpc.ClientConn) error {
		_, err := drapb.NewDRAPluginClient(conn).NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{})
		return err
	})
}

func call(ctx context.Context, socket string, ask func(*grpc.ClientConn) error) error {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("dial %s: %w", socket, err)
	}
	defer func() {
		if err := conn.Close(); err != nil {
			klog.FromContext(ctx).V(4).Info("Closing a health check's connection did not work", "socket", socket, "err", err)
		}
	}()
	if err := ask(conn); err != nil {
		return fmt.Errorf("ask %s: %w", socket, err)
	}
	return nil
}
